"""The base model's error rates, with which an experiment begins, and the test split, with which it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import ray

from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.model.pretrained import load_model_config
from trainer.scoring.objectives import objective_value, objective_words
from trainer.scoring.part import chosen_clips, enough_clips
from trainer.scoring.translation import TRANSLATE
from trainer.train import Evaluation
from trainer.training.window import FRAMES_PER_SECOND, GUARD_CLIPS, varies, window_frames, window_problem
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import Baseline
from tune.experiments.results import BASELINE_CLIPS_FILE
from tune.runs.session import Session, finite
from tune.search.records import Trial
from tune.util.console import doing
from tune.util.errors import ResourceError, error_line, first_line
from tune.workers.inputs import TrialInputs
from tune.workers.trainable import evaluate_checkpoint, evaluate_shared, run_and_free

Result = TypeVar("Result")
_LOSES_TIMES = 80.0
"""WER in percent from which on the usual rate made whisper-base write no timestamps (benchmarks/README.md)."""


def measure_baseline(session: Session) -> Baseline:
    """The base model on the validation split; its errors by clip are written for the report.

    Raises:
        UserError: the model cannot be used.
    """
    base = session.plan.base
    if base.full_window_evaluation:
        found = measure_base_model(session, base)
        _choose_window(session, found)
    else:
        _choose_window(session, None)
        found = measure_base_model(session, session.plan.base)
    session.say(
        f"baseline: {base.model} before fine-tuning has {found.describe()} on {found.rates['clips']} validation clips"
    )
    if found.sources:
        how = objective_words(base.objective) or "all clips together"
        own = ", ".join(f"{name} {objective_value(rates):.2f} %" for name, rates in found.sources.items())
        session.say(f"by source: {own}; WER that decides: {how} (--set objective=...)")
    if objective_value(found.rates) >= _LOSES_TIMES and base.task != TRANSLATE and not base.timestamp_share:
        session.say(
            "note: with such a high WER whisper-base lost its timestamps in our tests; "
            "--set timestamp_share=0.2 keeps them"
        )
    if session.plan.rates_depend_on_baseline:
        session.plan = session.plan.after_baseline(objective_value(found.rates))
        searched = f"; searched: {text}" if (text := session.plan.searched_rates) else ""
        session.say(f"the usual learning rate for this WER is {session.plan.base.learning_rate:g}{searched}")
    part = None
    if not session.plan.is_training and base.max_eval_clips is None and found.utterances:
        part = enough_clips(found.utterances)
    if found.utterances is not None:
        (session.plan.folder / BASELINE_CLIPS_FILE).write_text(found.utterances.to_json(), encoding="utf-8")
    trials = _as_trials(session, part)
    return Baseline(
        rates=finite(found.rates),
        trial_rates=finite(trials.rates) if trials else {},
        trial_clips=part,
        sources=found.sources,
        trial_sources=trials.sources if trials else {},
    )


def _choose_window(session: Session, whole: Evaluation | None) -> None:
    """Have trainings use the model's whole window where the base model cannot be trusted in a shorter one.

    Args:
        session: its plan is changed.
        whole: the base model in its whole window, where all clips were measured in it.
    """
    base, data = session.plan.base, session.data
    full, frames = _frames(session)
    if (frames == full and not varies(base)) or len(session.plan.values_of("audio_window")) > 1:
        return
    clips = chosen_clips(data.splits["validation"].origins.sources, GUARD_CLIPS, base.data_seed)
    every = range(len(clips))
    if whole is None or base.objective != "clips":  # by which each source's share is that of these clips
        whole_base = base.replace(full_window_evaluation=True)
        before = measure_base_model(session, whole_base, clips=clips).written(every)
    else:
        before = whole.written(clips)
    short = measure_base_model(session, base.replace(full_window_evaluation=False), clips=clips)
    problem = window_problem(before, short.written(every))
    if problem is None:
        return
    seconds, own = frames / FRAMES_PER_SECOND, full / FRAMES_PER_SECOND
    where = "in windows of its clips" if varies(base) else f"in a window of {seconds:.3g} s"
    reason = f"{where} the transcripts of {base.model} cannot be trusted before fine-tuning: {problem}"
    if isinstance(base.audio_window, float):
        better = f"{own:g}" if base.streaming else f"auto, or {own:g} for the whole one"
        session.say(f"warning: audio_window={base.audio_window:g}: {reason}; take {better}")
    else:
        session.say(f"trainings use the whole window of {own:g} s: {reason}")
        session.plan = dataclasses.replace(session.plan, base=base.replace(audio_window=own))


def _as_trials(session: Session, part: int | None) -> Evaluation | None:
    """The base model, with which trials are compared at their rungs; None where they are measured as it was.

    Args:
        part: validation clips that trials measure; None for all.
    """
    base, (full, frames) = session.plan.base, _frames(session)
    whole = session.plan.whole_window_trials or (frames == full and not varies(base))
    if part is None and (whole or not base.full_window_evaluation):
        return None
    clips = part and chosen_clips(session.data.splits["validation"].origins.sources, part, base.data_seed)
    measured = base if whole else base.replace(full_window_evaluation=False)
    return measure_base_model(session, measured, clips=clips or None)


def _frames(session: Session) -> tuple[int, int]:
    """Feature frames of the model's own window, and of the trainings'."""
    full = 2 * int(load_model_config(session.plan.base.model).max_source_positions)
    return full, window_frames(session.plan.base, session.data, full)


def measure_held_out(
    session: Session, config: TrainConfig, run: Trial
) -> tuple[Evaluation, Evaluation] | None:
    """A run's best checkpoint, and the base model, on the test split; None where the weights cannot be had."""
    try:
        files = CheckpointFiles(session.experiment.folder)
        inputs = session.inputs(config)
        found = begin_in_worker(evaluate_checkpoint, inputs, files, str(run.checkpoint), "test")
        whole = session.plan.base.replace(full_window_evaluation=True)
        base = measure_base_model(session, whole, "test")  # beside it, where there is room
        with doing(session.console, "measuring the best run on the test split"):
            return found(), base
    except (UserError, ray.exceptions.RayError) as error:
        session.say(f"warning: the best run could not be measured on the test split: {first_line(error)}")
        return None


def measure_base_model(
    session: Session,
    config: TrainConfig,
    split: str = "validation",
    *,
    clips: Sequence[int] | None = None,
    guard: str | None = None,
) -> Evaluation:
    """The base model as these settings measure it, on some clips or all of a split, or of a guard."""
    whole = config.full_window_evaluation
    where = f" on {guard}" if guard else " on the test split" if split == "test" else ""
    where += "" if whole else " in the trainings' window"
    if clips is not None and len(clips) == len(session.data.splits[split]):
        clips = None
    with doing(session.console, f"measuring the base model {config.model}{where}"):
        return in_worker(evaluate_shared, session.inputs(config, guard), split, not whole, clips)


def in_worker(work: Callable[..., Result], inputs: TrialInputs, *arguments: object) -> Result:
    """What `work(inputs, *arguments)` returns in a process with what one worker of a trial has.

    Raises:
        UserError: a mistake that only shows there, such as weights that do not load.
        RayError: any other failure.
    """
    return begin_in_worker(work, inputs, *arguments)()


def begin_in_worker(
    work: Callable[..., Result], inputs: TrialInputs, *arguments: object
) -> Callable[[], Result]:
    """Begin what `in_worker` does; what it returns waits for the end of it, and raises the same."""
    remote: Any = ray.remote(num_cpus=inputs.cpus, num_gpus=inputs.gpus)(run_and_free)
    begun = remote.remote(work, inputs, *arguments)

    def wait() -> Result:
        try:
            found: Result = ray.get(begun)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
        except ray.exceptions.OutOfMemoryError as error:
            raise ResourceError(error_line(str(error))) from error
        return found

    return wait
