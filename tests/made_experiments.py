"""Experiments as searches leave them, with made-up learning curves, written by the project's own classes in seconds."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np

from trainer.drops import Drop
from trainer.train import Evaluation
from tune.cluster import TrialResources
from tune.comparison import Repeat, Verdict, judge_finalists
from tune.curves import FamilyName, LearningCurves, draw_curves
from tune.search.records import Stop
from tune.experiment_folder import ExperimentFolder
from tune.final_round import FinalRound
from tune.finalists import trial_of
from tune.plan import SearchPlan, SearchRequest, make_plan
from tune.search.records import Records, TrialRecord
from tune.results import RESULTS_FILE, SearchOutcome, write_experiment_file
from tune.search_state import SearchState
from tune.simulated_controller import Limits
from tune.simulation import simulate_search
from tune.storage import Storage

RUNGS = (384, 1088, 3200)
"""Of the space `lr_batch` on the demo's 800 training clips."""
CLIPS, WORDS = 200, 10
"""Validation clips, and words of each."""
SECONDS_PER_SAMPLE = 0.5
FAMILIES = get_args(FamilyName)


def made_trial(
    number: int,
    wers: Sequence[float],
    *,
    rate: float = 1e-3,
    warmup: float = 0.1,
    batch: int = 8,
    accumulation: int = 1,
    stop: Stop | None = None,
    error: str | None = None,
    config: Mapping[str, Any] | None = None,
    rungs: Sequence[int] = RUNGS,
) -> TrialRecord:
    """A trial with these WERs at the first rungs: completed with one at each, else stopped early at the last one.

    Args:
        number: its number.
        wers: in percent.
        rate, warmup, batch, accumulation: settings of the space `lr_batch`.
        stop: why it ended before its budget; ASHA's where it is not given.
        error: it failed with this.
        config: other settings, in place of those.
        rungs: samples seen.
    """
    usual = {"learning_rate": rate, "warmup_ratio": warmup, "train_batch_size": batch}
    settings = dict(config or {**usual, "gradient_accumulation_steps": accumulation})
    record = TrialRecord(f"{number:03d}", settings)
    for rung, wer in zip(rungs, wers, strict=False):
        last = rung == rungs[-1]
        ended = None
        if rung == rungs[len(wers) - 1] and not last and error is None:
            ended = stop or Stop("asha", rung, wer, wer - 1, 3)
        metrics = {"wer": wer, "cer": wer / 3, "samples_seen": rung, "epoch": rung / 800}
        record.add_evaluation({**metrics, "eval_loss": 0.2 + wer / 50, "finished": float(last)}, ended)
    if not wers and error is None:
        ended = stop or Stop("diverged", rungs[0])
        record.add_evaluation({"wer": float("nan"), "samples_seen": rungs[0]}, ended)
    record.error = error
    record.end(
        "failed" if error is not None else ("interrupted" if record.outcome == "running" else record.outcome)
    )  # type: ignore[arg-type]
    return record


def write_experiment(
    folder: Path,
    trials: Sequence[TrialRecord],
    *,
    baseline: float = 60.0,
    name: str = "made",
    space: str = "lr_batch",
    asked: int | None = None,
    repeats: Mapping[str, Sequence[float]] | None = None,
    repeat_seconds: Mapping[str, float] | None = None,
    base_clips: bool = False,
    gpus: float = 1.0,
    drops: Sequence[Drop] = (),
    settings: Mapping[str, Any] | None = None,
    state: str = "finished",
) -> ExperimentFolder:
    """An experiment in `folder / name`.

    Args:
        folder: the storage.
        trials: all of them.
        baseline: WER of the base model.
        name: of the experiment.
        space: packaged, or a file.
        asked: trials that were asked for; as many as there are.
        repeats: finalists, with a WER for each seed.
        repeat_seconds: time of each finalist's repeats, where it matters.
        base_clips: whether the base model's errors by clip are kept.
        gpus: what each trial holds; none is CPUs.
        drops: clips that could not be used.
        settings: as of `--set`.
        state: `finished`; or `running`, `interrupted` or `killed`: its last trial is open then.
    """
    request = SearchRequest(
        space=space,
        trials=len(trials) if asked is None else asked,
        storage=Storage.parse(folder),
        experiment=name,
        finalists=len(repeats or {}),
        settings=dict(settings or {}),
    )
    plan = make_plan(request)
    plan.folder.mkdir(parents=True)
    (plan.folder / "space.yaml").write_text(plan.space.source_text)
    evaluation = _write_settings(plan, baseline, drops, gpus)
    if base_clips:
        (plan.folder / "baseline_utterances.json").write_text(json.dumps(_clips(baseline, 99)))
    search = SearchState(plan.folder)
    search.earlier_seconds = 3600.0
    for trial in trials:
        _finish(plan, trial)
        search.records.add(trial)
    if state != "finished" and trials:
        _reopen(trials[-1])
    verdict = _repeat(plan, search, repeats or {}, repeat_seconds or {})
    search.save()
    if state in ("finished", "interrupted"):
        final = FinalRound(verdict)
        outcome = SearchOutcome.collect(plan, search, evaluation, final, None, 3600.0)
        (plan.folder / RESULTS_FILE).write_text(json.dumps(outcome.to_dict(), allow_nan=False) + "\n")
    if state == "running":
        search.lock()
        _RUNNING.append(search)  # the lock lasts as long as this process
    return plan.experiment_folder


_RUNNING: list[SearchState] = []


def _write_settings(plan: SearchPlan, baseline: float, drops: Sequence[Drop], gpus: float) -> Evaluation:
    counts = dict(Counter(drop.reason for drop in drops))
    notes = [f"dropped {len(drops)} clips"] if drops else []
    splits = {"train": range(800), "validation": range(CLIPS), "test": range(CLIPS)}
    data: Any = SimpleNamespace(splits=splits, drop_counts=lambda: counts, notes=notes)
    if drops:
        lines = [json.dumps(dataclasses.asdict(drop)) + "\n" for drop in drops]
        (plan.folder / "dropped_clips.jsonl").write_text("".join(lines))
    rates = {
        "wer": baseline,
        "cer": baseline / 2,
        "wer_orthographic": baseline,
        "cer_orthographic": baseline / 2,
    }
    evaluation = Evaluation(**rates, loss=1.0, clips=CLIPS, predictions=[])
    rungs = plan.rungs(800)
    base = plan.base.replace(evaluate_at=rungs)
    write_experiment_file(plan, base, data, TrialResources(gpus, 4.0, 2), rungs, evaluation)
    return evaluation


def _finish(plan: SearchPlan, run: TrialRecord, seconds: float | None = None) -> None:
    """Time, batch and checkpoint as a real run has them."""
    batch = int(run.config.get("train_batch_size", 8))
    run.effective_batch = batch * int(run.config.get("gradient_accumulation_steps", 1))
    run.samples_seen = max(run.samples_seen, run.evaluations[-1][0] if run.evaluations else 0)
    run.seconds = 20 + run.samples_seen * SECONDS_PER_SAMPLE if seconds is None else seconds
    run.epoch = run.samples_seen / 800
    if run.best_wer is not None:
        run.checkpoint = f"trials/{run.trial_id}/checkpoint_000000"
        checkpoint = plan.folder / run.checkpoint
        checkpoint.mkdir(parents=True, exist_ok=True)
        # As after the search: the weights are gone, what was measured is not.
        (checkpoint / "utterances.json").write_text(json.dumps(_clips(run.best_wer, len(run.trial_id))))


def _reopen(trial: TrialRecord) -> None:
    trial.status, trial.stop, trial.finished, trial.ended = "running", None, False, 0.0
    trial.seconds = 0.0
    trial.evaluations, trial.losses = trial.evaluations[:1], trial.losses[:1]
    if trial.evaluations:
        trial.samples_seen, trial.wer = trial.evaluations[0]
        trial.best_samples_seen, trial.best_wer = trial.evaluations[0]
        trial.epoch = trial.samples_seen / 800


def _clips(wer: float, seed: int) -> dict[str, list[int]]:
    """Errors of each clip that come to this WER, or the nearest one that there is."""
    wanted = round(wer / 100 * CLIPS * WORDS)
    errors = np.random.default_rng(seed).multinomial(wanted, np.full(CLIPS, 1 / CLIPS))
    return {"word_errors": errors.tolist(), "words": [WORDS] * CLIPS}


def _repeat(
    plan: SearchPlan,
    search: SearchState,
    repeats: Mapping[str, Sequence[float]],
    seconds: Mapping[str, float],
) -> Verdict | None:
    found: dict[str, list[Repeat]] = {}
    for trial_id, wers in repeats.items():
        for seed, wer in enumerate(wers, start=1):
            start = search.records[trial_id].evaluations
            record = made_trial(
                0, [*(wer for _, wer in start[:-1]), wer], config=search.records[trial_id].config
            )
            record.trial_id = f"{trial_id}-r{seed}"
            record.config["seed"] = seed
            _finish(plan, record, seconds.get(trial_id))
            search.repeats.add(record)
            clips = {name: np.array(values) for name, values in _clips(wer, seed).items()}
            found.setdefault(trial_of(record.trial_id), []).append(
                Repeat(record.trial_id, wer, record.seconds, **clips)
            )
    return judge_finalists(found) if found else None


def simulated(
    folder: Path, *, trials: int = 24, family: FamilyName = "noisy", seed: int = 0, **kinds: Any
) -> ExperimentFolder:
    """A search by the real searcher and scheduler on made-up curves (see `tune.curves`).

    Args:
        folder: the storage.
        trials: how many.
        family: of `tune.curves`.
        seed: of the search and the curves.
        kinds: other arguments of `write_experiment`.
    """
    request = SearchRequest(space="lr_batch", trials=trials, storage=Storage.parse(folder), experiment="plan")
    plan = make_plan(request)
    curve: LearningCurves = draw_curves(family, seed, RUNGS[-1], float(plan.base.learning_rate or 1e-3))
    records = simulate(plan, curve, trials, seed, curve.baseline)
    completed = [t for t in records.all() if t.status == "completed" and t.best_wer is not None]
    best = sorted(completed, key=lambda trial: trial.best_wer or 0.0)[:2]
    repeats = {
        trial.trial_id: [curve(trial.config, RUNGS[-1], number)["wer"] for number in (7, 8)] for trial in best
    }
    finished = kinds.get("state", "finished") == "finished"
    return write_experiment(
        folder,
        records.all(),
        **{"baseline": curve.baseline, "repeats": repeats if finished else {}, **kinds},
    )


def simulate(plan: SearchPlan, curve: Callable[..., Any], trials: int, seed: int, baseline: float) -> Records:
    """The trials of such a search."""
    limits = Limits(trials=trials)
    return simulate_search(plan.space, curve, RUNGS, limits, seed=seed, slots=2, baseline=baseline).records
