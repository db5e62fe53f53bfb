"""Experiments as searches leave them, with made-up learning curves, written by the project's own classes in seconds."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made_logs import events_of
from plans import search_plan

from trainer.data.clips import load_clips
from trainer.data.drops import Drop
from trainer.data.kept_splits import SPLITS_FILE
from trainer.data.prepared import prepare
from tune.cluster.resources import TrialResources
from tune.experiments.events import (
    Baseline,
    Data,
    FinalRoundPlanned,
    Prepared,
    ResultsWritten,
    SearchEnded,
    TrialsOver,
)
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import ExperimentLog, read_log
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.results import succeeded, write_results
from tune.experiments.storage import Storage
from tune.runs.candidates import measure_average
from tune.runs.final_round import choose_export, compare
from tune.runs.outcome import Outcome
from tune.runs.plan import Plan, write_experiment_file
from tune.runs.session import data_of, session_started
from tune.search.records import Stop, Trial
from tune.util.environment import package_versions
from tune.workers.averages import Measured

RUNGS = (384, 1088, 3200)
"""Of the space `lr_batch` on the demo's 800 training clips."""
CLIPS, WORDS = 200, 10
"""Validation clips, and words of each."""
SECONDS_PER_SAMPLE = 0.5


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
) -> Trial:
    """A trial with these WERs at the first rungs: completed with one at each, else stopped early at the last one.

    Args:
        number: its number.
        wers: in percent.
        rate, warmup, batch, accumulation: settings of the space `lr_batch`.
        stop: why it ended before its budget; ASHA's where it is not given.
        error: it failed with this.
        config: other settings, in place of those.
    """
    usual = {"learning_rate": rate, "warmup_ratio": warmup, "train_batch_size": batch}
    settings = dict(config or {**usual, "gradient_accumulation_steps": accumulation})
    record = Trial(f"{number:03d}", settings)
    for rung, wer in zip(RUNGS, wers, strict=False):
        last = rung == RUNGS[-1]
        ended = None
        if rung == RUNGS[len(wers) - 1] and not last and error is None:
            ended = stop or Stop("asha", rung, wer, wer - 1, 3)
        metrics = {"wer": wer, "cer": wer / 3, "samples_seen": rung, "epoch": rung / 800}
        record.add_evaluation({**metrics, "eval_loss": 0.2 + wer / 50, "finished": float(last)}, ended)
    if not wers and error is None:
        ended = stop or Stop("diverged", RUNGS[0])
        record.add_evaluation({"wer": float("nan"), "samples_seen": RUNGS[0]}, ended)
    record.error = error
    record.end(
        "failed" if error is not None else ("interrupted" if record.outcome == "running" else record.outcome)
    )  # type: ignore[arg-type]
    return record


def write_experiment(
    folder: Path,
    trials: Sequence[Trial],
    *,
    baseline: float = 60.0,
    name: str = "made",
    space: str = "lr_batch",
    asked: int | None = None,
    repeats: Mapping[str, Sequence[float]] | None = None,
    base_clips: bool = False,
    gpus: float = 1.0,
    drops: Sequence[Drop] = (),
    settings: Mapping[str, Any] | None = None,
    state: str = "finished",
    real_data: bool = False,
    began: float | None = None,
) -> ExperimentFolder:
    """An experiment in `folder / name`, its log written event by event.

    Args:
        folder: the storage.
        trials: all of them.
        baseline: WER of the base model.
        name: of the experiment.
        space: packaged, or a file.
        asked: trials that were asked for; as many as there are.
        repeats: finalists, with a WER for each seed.
        base_clips: whether the base model's errors by clip are kept.
        gpus: what each trial holds; none is CPUs.
        drops: clips that could not be used.
        settings: as of `--set`.
        state: `finished`; or `running`, `interrupted` or `killed`: its last trial is open then.
        real_data: the log tells of the data as it is, and its splits are kept.
        began: when, in seconds since the epoch; an hour ago where it is not given.
    """
    repeats = repeats or {}
    plan = search_plan(
        Storage.parse(folder),
        name,
        space=space,
        trials=len(trials) if asked is None else asked,
        finalists=len(repeats),
        repeats=max((len(wers) for wers in repeats.values()), default=2),
        settings=dict(settings or {}),
    )
    plan.folder.mkdir(parents=True)
    (plan.folder / "space.yaml").write_text(plan.space.source_text)
    data = (
        _real_data(plan)
        if real_data
        else Data(features_key="made", clips={"train": 800, "validation": CLIPS, "test": CLIPS})
    )
    prepared = _prepared(plan, data, _rates(baseline), drops, gpus)
    write_experiment_file(plan, prepared)
    if base_clips:
        (plan.folder / "baseline_utterances.json").write_text(json.dumps(_clips(baseline, 99)))
    began = int(time.time()) - 3600.0 if began is None else began
    experiment = OpenExperiment(plan.experiment_folder)
    log, clock = experiment.log, _Clock(began)
    log._clock = clock
    log.append(
        session_started(plan, prepared.resources, "auto", clock.now, None),
        prepared,
    )
    for trial in trials:
        _finish(plan, trial)
        _show_evaluation(log, clock, trial, opened=state != "finished" and trial is trials[-1])
    if state == "finished":
        log.append(TrialsOver())
        _repeat(plan, log, clock, repeats)
        if compare(experiment):
            measure_average(experiment, _worse_mean, print)
        choose_export(experiment, print)
    clock.now = began + 3600.0  # to the second, however long writing took
    if state in ("finished", "interrupted"):
        found = log.state
        word = "interrupted" if found.something_is_left else "completed" if succeeded(found) else "failed"
        log.append(SearchEnded(status=word))  # type: ignore[arg-type]
        write_results(plan.experiment_folder, found)
        log.append(ResultsWritten())
    if state == "running":
        _RUNNING.append(experiment)  # the lock lasts as long as this process
    else:
        experiment.close()
    return plan.experiment_folder


def _worse_mean(config: object, checkpoints: object, name: str, most_wer: float) -> Measured:
    return Measured(_rates(most_wer + 1.0), kept=False)


class _Clock:
    """Time that passes when it is told to."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


_RUNNING: list[OpenExperiment] = []


def _real_data(plan: Plan) -> Data:
    table = load_clips(plan.base)
    data = prepare(plan.base, table=table)
    (plan.folder / SPLITS_FILE).write_bytes(data.encode_splits(table))
    return data_of(data)


def _prepared(
    plan: Plan, data: Data, rates: dict[str, float], drops: Sequence[Drop], gpus: float
) -> Prepared:
    if drops:
        lines = [json.dumps(dataclasses.asdict(drop)) + "\n" for drop in drops]
        (plan.folder / "dropped_clips.jsonl").write_text("".join(lines))
    rungs = plan.rungs(800)
    return Prepared(
        train_config=plan.base.replace(evaluate_at=rungs).to_dict(),
        space=plan.space.to_dict(),
        rungs=rungs,
        resources=TrialResources(gpus, 4.0, 2),
        data=data,
        baseline=Baseline(rates=rates),
        dropped=dict(Counter(drop.reason for drop in drops)),
        notes=(f"dropped {len(drops)} clips",) if drops else (),
        versions=package_versions(),
    )


def _rates(wer: float) -> dict[str, float]:
    return {
        "wer": wer,
        "cer": wer / 2,
        "wer_orthographic": wer,
        "cer_orthographic": wer / 2,
        "loss": 1.0,
        "clips": float(CLIPS),
    }


def _finish(plan: Plan, run: Trial) -> None:
    """Time, batch and checkpoint as a real run has them."""
    batch = int(run.config.get("train_batch_size", 8))
    run.effective_batch = batch * int(run.config.get("gradient_accumulation_steps", 1))
    run.samples_seen = max(run.samples_seen, run.evaluations[-1][0] if run.evaluations else 0)
    run.seconds = 20 + run.samples_seen * SECONDS_PER_SAMPLE
    run.epoch = run.samples_seen / 800
    if run.best_value is not None:
        run.checkpoint = f"trials/{run.trial_id}/checkpoint_000000"
        checkpoint = plan.folder / run.checkpoint
        checkpoint.mkdir(parents=True, exist_ok=True)
        # As after the search: the weights are gone, what was measured is not.
        (checkpoint / "utterances.json").write_text(json.dumps(_clips(run.best_value, len(run.trial_id))))


def _show_evaluation(log: ExperimentLog, clock: _Clock, run: Trial, *, opened: bool = False) -> None:
    """Write what a record says as events; an open one has at most its first evaluation."""
    *events, last = events_of(run, epoch_samples=800, opened=opened)
    log.append(*events)
    before, clock.now = clock.now, clock.now + (0.0 if opened else run.seconds)
    log.append(last)
    clock.now = before + (0.0 if opened else 1.0)


def _clips(wer: float, seed: int) -> dict[str, list[int]]:
    """Errors of each clip that come to this WER, or the nearest one that there is."""
    wanted = round(wer / 100 * CLIPS * WORDS)
    errors = np.random.default_rng(seed).multinomial(wanted, np.full(CLIPS, 1 / CLIPS))
    return {"word_errors": errors.tolist(), "words": [WORDS] * CLIPS}


def _repeat(plan: Plan, log: ExperimentLog, clock: _Clock, repeats: Mapping[str, Sequence[float]]) -> None:
    made = []
    for trial_id, wers in repeats.items():
        for seed, wer in enumerate(wers, start=1):
            trial = log.state.records[trial_id]
            *earlier, last = (found for _, found in trial.evaluations)
            # Its curve is the trial's, moved: what was lowest before is lowest again.
            record = made_trial(0, [*(found - last + wer for found in earlier), wer], config=trial.config)
            record.trial_id = f"{trial_id}-r{seed}"
            record.config = {**trial.config, "seed": seed}
            _finish(plan, record)
            made.append(record)
    if made:
        planned = {record.trial_id: record.config for record in made}
        log.append(FinalRoundPlanned(finalists=list(repeats), repeats=planned))
    for record in made:
        _show_evaluation(log, clock, record)


def search_outcome(folder: Path, *, baseline: float = 60.0, **kinds: Any) -> Outcome:
    """What a search of 12 trials came to, of which the first has the usual settings, and 003 and 004 are finalists.

    Args:
        folder: where its files go.
        baseline: WER of the base model.
        kinds: other arguments of `write_experiment`.
    """
    usual = [made_trial(1, [50.0, 30.0, 12.0])]
    better = [made_trial(n, [48.0, 28.0, 11.0 - n / 10], rate=2e-3 + n / 1e4) for n in range(2, 5)]
    others = [made_trial(n, [55.0], rate=n / 1e4) for n in range(5, 13)]
    kinds = {"repeats": {"003": [10.5, 11.5], "004": [10.0, 10.4]}, **kinds}
    written = write_experiment(folder, [*usual, *better, *others], baseline=baseline, **kinds)
    asked = {"space": "lr_batch", "trials": 12, "finalists": len(kinds["repeats"])}
    plan = search_plan(Storage.parse(folder / "elsewhere"), "made", **asked)
    return Outcome(plan, read_log(written.path / EVENTS_FILE))


def bring(made: ExperimentFolder, store: ObjectStore) -> None:
    """Upload an experiment of a folder, as its search would have: nothing that is hidden."""
    for file in sorted(made.path.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            store.write(f"{made.name}/{file.relative_to(made.path).as_posix()}", file.read_bytes())
