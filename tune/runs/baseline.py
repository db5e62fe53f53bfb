"""The base model's error rates, with which an experiment begins, and the test split, with which it ends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from trainer.model.whisper import load_model_config
from trainer.scoring.objectives import objective_words
from trainer.training.early_evaluation import early_clips
from trainer.training.window import FRAMES_PER_SECOND, GUARD_CLIPS, window_frames, window_problem
from tune.experiments.events import BaselineMeasured
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.settings_file import write_baseline_clips
from tune.runs.session import Session, finite, share_folders
from tune.util.errors import UserError, first_line
from tune.workers.inputs import TrialInputs, shared_folders
from tune.workers.trainable import evaluate_shared, freeing_memory

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.data.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.search.records import TrialRecord


Result = TypeVar("Result")


def measure_baseline(session: Session[Any]) -> Evaluation:
    """The base model untouched, on the validation split, as measured before or now; kept for the log and the report.

    Raises:
        UserError: the model cannot be used.
    """
    began, base = time.time(), session.plan.base
    found, known = _measure_base(session, "validation")
    session.say(
        f"baseline: {base.model} untouched has {found.describe()} "
        f"on {found.clips} validation clips{' (measured before)' if known else ''}"
    )
    if found.sources:
        how = objective_words(base.objective) or "all clips together"
        own = ", ".join(f"{name} {rates['wer']:.2f} %" for name, rates in found.sources.items())
        session.say(f"by source: {own}; what decides is {how} (--set objective=...)")
    problem = _choose_window(session, found)
    plan = session.plan.after_baseline(found.wer)
    if (usual := plan.base.learning_rate) != session.plan.base.learning_rate:
        searched = f"; searched: {text}" if (text := plan.searched_rates) else ""
        session.say(f"the usual learning rate of a model with such a WER is {usual:g}{searched}")
    else:
        usual = None
    session.plan = plan
    session.baseline = BaselineMeasured(
        rates=finite(found.rates()),
        window_rates=_rates_in_window(session),
        window_problem=problem,
        learning_rate=usual,
        seconds=time.time() - began,
        sources=found.sources,
        objective=base.objective,
    )
    write_baseline_clips(session.plan.folder, found)
    return found


def _choose_window(session: Session[Any], whole: Evaluation) -> str:
    """Have trainings use the model's whole window where the untouched one cannot be trusted in a shorter one.

    Returns:
        why, or nothing.
    """
    base, data = session.plan.base, session.data
    full = 2 * int(load_model_config(base).max_source_positions)
    frames = window_frames(base, data, full)
    if frames == full or len(session.plan.values_of("audio_window")) > 1:
        return ""
    origins = data.splits["validation"].origins
    sources = [origins.kinds[number].source for number in origins.numbers]
    clips = early_clips(sources, GUARD_CLIPS, base.data_seed)
    short = _measure_in_window(session, clips)
    problem = window_problem(whole.written(clips), short.written(range(len(clips))))
    if problem is None:
        return ""
    seconds, own = frames / FRAMES_PER_SECOND, full / FRAMES_PER_SECOND
    reason = f"in a window of {seconds:.3g} s {base.model} untouched cannot be trusted: {problem}"
    if isinstance(base.audio_window, float):
        session.say(
            f"warning: audio_window={base.audio_window:g}: {reason}; take auto, or {own:g} for the whole one"
        )
        return ""
    session.say(f"trainings use the whole window of {own:g} s: {reason}")
    session.plan = dataclasses.replace(session.plan, base=base.replace(audio_window=own))
    return problem


def _rates_in_window(session: Session[Any]) -> dict[str, float]:
    """The base model's, with which trials are compared at their rungs; none where they use the whole window."""
    base = session.plan.base
    full = 2 * int(load_model_config(base).max_source_positions)
    if session.plan.whole_window_trials or window_frames(base, session.data, full) == full:
        return {}
    clips = range(len(session.data.splits["validation"]))
    return finite(_measure_in_window(session, clips).rates())


def _measure_in_window(session: Session[Any], clips: Sequence[int]) -> Evaluation:
    """The base model on validation clips, in the window that trainings have."""
    inputs = session.inputs(session.plan.base.replace(full_window_evaluation=False))
    every = len(clips) == len(session.data.splits["validation"])
    return measure_untouched(
        session,
        inputs,
        session.data,
        "validation",
        "in the trainings' window",
        clips=None if every else clips,
    )[0]


def measure_held_out(
    session: Session[Any], config: TrainConfig, run: TrialRecord
) -> tuple[Evaluation, Evaluation] | None:
    """A run's best checkpoint, and the base model, on the test split; None where the weights cannot be had.

    Args:
        session: the cluster and the data; its experiment has the checkpoint.
        config: all settings that the run had.
        run: the training.
    """
    import ray

    try:
        with session.experiment.folder.checkpoint(str(run.checkpoint)) as checkpoint:
            config = config.replace(model=str(checkpoint))
            share = share_folders(session.plan, shared_folders(config, session.data))
            found = begin_in_worker(session, evaluate_shared, session.inputs(config, share), "test")
            base = _measure_base(session, "test")[0]  # beside it, where there is room
            with session.console.status("measuring the test split ..."):
                return found(), base
    except (UserError, StorageError, ray.exceptions.RayError) as error:
        session.say(f"warning: the best run is not measured on the test split: {first_line(error)}")
        return None


def _measure_base(session: Session[Any], split: str) -> tuple[Evaluation, bool]:
    """The base model on a split, and whether it was measured before."""
    base = session.plan.base.replace(full_window_evaluation=True)
    return measure_untouched(session, session.inputs(base), session.data, split)


def measure_untouched(
    session: Session[Any],
    inputs: TrialInputs,
    data: PreparedData,
    split: str,
    where: str = "",
    *,
    clips: Sequence[int] | None = None,
) -> tuple[Evaluation, bool]:
    """The model of `inputs` as it is on a split of `data`, which they have, and whether it was measured before.

    In the window of trainings where their settings do not have the whole one; `clips`: these alone.
    """
    from trainer.baseline_cache import keep_rates, recall_rates

    device, base = "gpu" if session.resources.gpus else "cpu", inputs.config
    how: dict[str, Any] = {"as_in_training": not base.full_window_evaluation, "clips": clips}
    known = recall_rates(base, data, device, split, **how) if base.reuse_baseline else None
    if known is not None:
        return known, True
    with session.console.status(f"measuring the base model {base.model} {where}".rstrip() + " ..."):
        found = in_worker(session, evaluate_shared, inputs, split, *how.values())
    if base.reuse_baseline:
        try:
            keep_rates(base, data, device, split, found, **how)
        except OSError as error:
            session.say(f"note: the next search measures the base model again: {error}")
    return found, False


def in_worker(
    session: Session[Any], work: Callable[..., Result], inputs: TrialInputs, *arguments: object
) -> Result:
    """What `work(inputs, *arguments)` returns in a process with what one worker of a trial has.

    Raises:
        UserError: a mistake that only shows there, such as weights that do not load.
        RayError: any other failure.
    """
    return begin_in_worker(session, work, inputs, *arguments)()


def begin_in_worker(
    session: Session[Any], work: Callable[..., Result], inputs: TrialInputs, *arguments: object
) -> Callable[[], Result]:
    """Begin what `in_worker` does; what it returns waits for the end of it, and raises the same."""
    import ray

    remote: Any = ray.remote(num_cpus=inputs.cpus, num_gpus=session.resources.gpus_per_worker)(
        freeing_memory(work)
    )
    begun = remote.remote(inputs, *arguments)

    def wait() -> Result:
        try:
            found: Result = ray.get(begun)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
        return found

    return wait
