"""What an experiment is in MLflow's terms: runs with params and tags as its log folds to, metrics over samples seen."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.scoring.objectives import named_rates, objective_name, objective_value
from tune.experiments.events import (
    RATES,
    BaselineMeasured,
    Entry,
    Evaluated,
    GuardMeasured,
    HeldOutMeasured,
    TrialProposed,
)
from tune.experiments.results import REPORT_FOLDER, TRACKING_FILE
from tune.experiments.training_plan import TRIAL
from tune.search.guards import guard_names
from tune.search.records import TrialRecord, role_of
from tune.tracking.mlflow_connection import RunStatus, milliseconds, system_tags
from tune.tracking.mlflow_texts import (
    interrupted,
    search_begins,
    search_ended,
    training_begins,
    training_ended,
    trial_note,
)
from tune.util.console import key_settings

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.saved import SavedExperiment

EXPERIMENT_KEY = "tune_whisper.experiment"
"""Tag of a search's run by which it is found: when its first session began, in seconds since the epoch."""
PARENT, TRIAL_ID, ROLE, STATUS = "mlflow.parentRunId", "trial_id", "role", "status"
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
MEMBERS = "members"
"""Tag of an average: the runs whose weights it is the mean of."""
WINNER, BEST = "winner", "best"
"""Tags of the trial whose settings won, and of the run whose weights are exported."""
LOSS = "loss"
TRAINING = {
    LOSS: LOSS,
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
    "step": "optimizer_step",
}
"""What a training reports of itself, and what MLflow calls it: `step` is an axis there."""
SAMPLES, SECONDS, GPU_HOURS = "samples_seen", "seconds", "gpu_hours"
_RUN_STATUS: dict[str, RunStatus] = {
    "running": "RUNNING",
    "completed": "FINISHED",
    "early_stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
}
_WORDS = {None: "null", True: "true", False: "false"}
Metric = tuple[str, float, int, int]
"""Key, value, timestamp in ms, step."""


@dataclasses.dataclass
class RunContent:
    """What one run holds besides the points of its events."""

    name: str
    state: str
    """The tag `status`: how it ended, or `running`."""
    ended: float
    """When it ended, if it has."""
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    """Empty where the run has them already."""
    metrics: list[Metric] = dataclasses.field(default_factory=list)
    """What it came to."""

    def __post_init__(self) -> None:
        self.tags[STATUS] = self.state

    @property
    def status(self) -> RunStatus:
        """As MLflow says it."""
        return _RUN_STATUS[self.state]

    @property
    def end_ms(self) -> int | None:
        """When it ended, as MLflow notes it; None while it runs."""
        return None if self.state == "running" else milliseconds(self.ended)


def trial_run(record: TrialRecord, saved: SavedExperiment, *, new: bool) -> RunContent:
    """The run of a trial or repeat; `new` where it holds nothing yet."""
    state, status = saved.state, record.status
    if status == "running" and state.ended:
        status = "interrupted"
    what = f"mean of {', '.join(record.members)}" if record.members else key_settings(record.config)
    name = f"{record.trial_id} {what}"
    run = RunContent(name, status, record.ended or state.heard)
    if new:
        run.params = _own_params(record, saved.settings.base)
        run.tags |= {**_about(saved.settings.base), ROLE: role_of(record.trial_id), TRIAL_ID: record.trial_id}
        if record.members:
            run.tags[MEMBERS] = " ".join(record.members)
    if record.status != "running":
        run.metrics = _results(record, saved)
        run.tags[NOTE] = trial_note(record)
        if record.stop is not None:
            run.tags |= {"stop_reason": record.stop.reason, "stop": record.stop.describe()}
    return run


def own_run(saved: SavedExperiment, option: str, *, new: bool) -> RunContent:
    """The experiment's own run.

    Args:
        saved: with the state after the last event of a delivery.
        option: what a command that names the experiment ends with, as ` --storage DIR`.
        new: whether it holds nothing yet.
    """
    state, ended, best = saved.state, saved.state.ended, saved.state.best()
    run = RunContent(saved.name, ended.status if ended else "running", state.heard)
    if new:
        run.params = parent_params(saved)
        run.tags |= {
            **_about(saved.settings.base),
            EXPERIMENT_KEY: experiment_key(state.created),
            ROLE: "experiment",
        }
        if saved.is_training:  # as a trial, so that the view of an experiment's trials shows it
            run.tags |= {ROLE: "trial", TRIAL_ID: TRIAL}
    if ended is None:
        run.tags[NOTE] = training_begins(saved.base) if saved.is_training else search_begins(saved)
        return run
    value, name, step = state.value, state.objective, len(state.records)
    metrics = {
        f"baseline_{name}": state.base_rates.get(name),
        f"best_{name}": None if best is None or best.best_value is None else round(best.best_value, 4),
        f"{name}_gain": None if value is None else round(state.comparable_base - value, 4),
    }
    if saved.is_training:
        (record,) = state.records.all() or [TrialRecord(TRIAL, {})]
        unfinished = record.status == "running" and interrupted(saved)
        run.tags["outcome"] = "interrupted" if unfinished else record.status
        run.tags[NOTE] = training_ended(saved, option)
        step = record.samples_seen
    else:
        metrics[SECONDS] = round(state.seconds, 1)
        if state.verdict is not None:
            metrics[f"winner_mean_{name}"] = state.verdict.standing.mean
            run.tags["tie"] = str(state.verdict.tie).lower()
        if state.guards_judged is not None:
            kept = all(each.kept for each in state.guards_judged.models[state.guards_judged.run])
            run.tags["guards"] = "kept" if kept else "lost"
        named = {
            "ended_by": state.end.reason if state.end else None,
            "best_trial": best.trial_id if best else None,
            "winner": state.winner,
        }
        run.tags |= {tag: name for tag, name in named.items() if name is not None}
        run.tags[NOTE] = search_ended(saved, option)
    run.metrics = points(metrics, step, state.heard)
    return run


def _about(base: TrainConfig) -> dict[str, str]:
    return {**system_tags(), "model": base.model, "data": base.data}


def _own_params(record: TrialRecord, base: TrainConfig) -> dict[str, str]:
    """Of a run's settings those that were chosen for it, and those that are not the search's."""
    shared, settings = param_texts(base.to_dict()), base.replace(**record.config).to_dict()
    # The weight of a source is chosen by itself, and a part of one setting.
    params = param_texts({**record.config, **settings, "effective_batch_size": record.effective_batch})
    return {key: text for key, text in params.items() if key in record.config or shared.get(key) != text}


def _results(record: TrialRecord, saved: SavedExperiment) -> list[Metric]:
    session, state = saved.state.session, saved.state
    baseline, name = objective_value(state.base_rates_for(record)), state.objective
    seconds, best = round(record.seconds, 1), record.best_value
    metrics: dict[str, float | None] = {SAMPLES: record.samples_seen, SECONDS: seconds}
    if best is not None:
        metrics[f"best_{name}"] = round(best, 4)
        metrics[f"{name}_gain"] = round(baseline - round(best, 4), 4)
    if session is not None and session.gpus_per_trial:
        metrics[GPU_HOURS] = round(session.gpus_per_trial * seconds / 3600, 4)
    return points(metrics, record.samples_seen, record.ended)


def points(metrics: Mapping[str, float | None], step: int, time: float) -> list[Metric]:
    """The finite metrics of one moment; `time` in seconds since the epoch."""
    return [
        (key, float(value), milliseconds(time), int(step))
        for key, value in metrics.items()
        if value is not None and math.isfinite(value)
    ]


def event_points(
    entries: Sequence[Entry], saved: SavedExperiment, after: int = 0
) -> dict[str | None, list[Metric]]:
    """The points of all events behind number `after`, by trial or repeat; None is the experiment's own run.

    Args:
        entries: the whole log.
        saved: with the state to which it folds.
        after: number of the last event whose points are not wanted.
    """
    found: dict[str | None, list[Metric]] = {}
    records, trials, best = saved.state.records, 0, math.inf
    objective = saved.state.objective

    def log(trial_id: str | None, metrics: Mapping[str, float | None], step: int) -> None:
        if entry.number > after:
            key = None if saved.is_training else trial_id
            found.setdefault(key, []).extend(points(metrics, step, time))

    def log_guard(event: GuardMeasured) -> None:
        objective = objective_name(event.rates)
        name, value = f"guard_{_metric_part(event.guard, saved)}_{objective}", event.rates.get(objective)
        if event.run is None:
            log(None, {f"baseline_{name}": value}, 0)
        else:
            log(event.run, {name: value}, saved.state.run(event.run).best_samples_seen)

    for entry in entries:
        event, time = entry.event, entry.time
        if isinstance(event, BaselineMeasured):
            log(None, {f"baseline_{name}": rate for name, rate in event.rates.items()}, 0)
            log(None, named_rates(event.sources, "baseline_"), 0)
        elif isinstance(event, GuardMeasured):
            log_guard(event)
        elif isinstance(event, TrialProposed):
            trials += event.kind == "trial"
        elif isinstance(event, HeldOutMeasured):
            tested = {"test": event.rates, "baseline_test": event.baseline}
            log(None, {f"{what}_{objective}": objective_value(tested[what]) for what in tested}, trials)
            log(None, named_rates(event.sources, "test_"), trials)
            log(None, named_rates(event.baseline_sources, "baseline_test_"), trials)
        elif isinstance(event, Evaluated) and math.isfinite(value := objective_value(event.metrics)):
            reported = {**event.metrics, "epoch": event.epoch}
            values = {name: reported[name] for name in RATES if name in reported}
            values |= named_rates(event.sources)
            # What was measured again, as its process had ended before its weights were saved, is the same point.
            time = saved.state.run(event.trial_id).first_heard.get((event.samples_seen, value), time)
            log(event.trial_id, values | _of_training(reported), event.samples_seen)
            is_trial = event.trial_id in records and not saved.is_training
            if is_trial and value <= best:
                best = value
                log(None, {f"best_{objective}": value}, trials)
    return found


def _metric_part(guard: str, saved: SavedExperiment) -> str:
    """A guard's name, of what MLflow allows in names of metrics."""
    return re.sub(r"[^\w.-]", "_", guard_names(saved.state.asked_guards).get(guard, guard)).strip("_")


def progress_points(row: Mapping[str, Any]) -> list[Metric]:
    """Those of a row of `progress.jsonl`."""
    metrics = row["metrics"]
    return points(_of_training(metrics), metrics[SAMPLES], row["time"]) if SAMPLES in metrics else []


def _of_training(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {new: metrics[name] for name, new in TRAINING.items() if name in metrics}


def param_texts(params: Mapping[str, Any]) -> dict[str, str]:
    """Settings as params, written as in YAML: `null`, `true`, numbers that read back exactly (`3e-05`)."""
    return {
        key: _WORDS[value] if value is None or isinstance(value, bool) else str(value)
        for key, value in params.items()
    }


def experiment_key(created: float) -> str:
    """What the tag `EXPERIMENT_KEY` holds."""
    return f"{created:.6f}"


def parent_params(saved: SavedExperiment) -> dict[str, str]:
    """Params of the search's run: all settings that its trials share, and what is searched."""
    base, space, settings = saved.settings.base, saved.space, saved.settings
    if space is None:
        return param_texts({**base.to_dict(), "effective_batch_size": base.effective_batch_size})
    asked, resources = saved.state.session, settings.resources
    return param_texts(
        {
            "trials": asked.trials if asked else None,
            "seed": settings.seed,
            "space": space.path.name,
            "gpus_per_trial": f"{resources.gpus:g}",
            "cpus_per_trial": f"{resources.cpus:g}",
            **{f"search.{name}": text for name, text in space.describe()},
            **base.to_dict(),
        }
    )


def first_files(saved: SavedExperiment) -> list[tuple[Path, str | None]]:
    """What is stored with the experiment's run from the beginning on, each with its folder there."""
    versions = saved.folder.path / TRACKING_FILE.replace("mlflow", "versions")
    space = saved.folder.path / "space.yaml"
    versions.write_text(json.dumps(saved.settings.versions, indent=2) + "\n", encoding="utf-8")
    return [(path, None) for path in (versions, space) if path.is_file()]


def final_files(saved: SavedExperiment) -> list[tuple[Path, str | None]]:
    """What is stored with it at the end."""
    folder = saved.folder.path
    files = [folder / name for name in ("experiment.yaml", "results.json", "dropped_clips.jsonl")]
    found = [*first_files(saved), *((path, None) for path in files if path.is_file())]
    return [*found, *folder_files(folder / REPORT_FOLDER)]


def folder_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """All files of a folder but hidden ones, each with where it goes: below the folder's name."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield file, file.parent.relative_to(folder.parent).as_posix()
