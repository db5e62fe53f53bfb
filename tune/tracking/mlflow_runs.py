"""What an experiment is in MLflow's terms: runs with params and tags as its log folds to, metrics over samples seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.scoring.objectives import named_rates, objective_value
from trainer.training.report import FIGURES
from tune.experiments.events import RATES, Entry, Evaluated, HeldOutMeasured, Prepared, TrialProposed
from tune.experiments.options import TRIAL
from tune.search.records import Trial, role_of
from tune.tracking.mlflow_texts import experiment_note, trial_note
from tune.util.console import key_settings

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.experiment import Experiment

EXPERIMENT_KEY = "tune_whisper.experiment"
"""Tag of a search's run by which it is found: when its first session began, in seconds since the epoch."""
PARENT, TRIAL_ID, ROLE, STATUS = "mlflow.parentRunId", "trial_id", "role", "status"
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
WINNER, BEST = "winner", "best"
"""Tags of the trial whose settings won, and of the run whose weights are exported."""
LOSS = "loss"
SAMPLES, SECONDS, GPU_HOURS = "samples_seen", "seconds", "gpu_hours"
_SYSTEM = "system/"
"""What names of metrics begin with that MLflow shows on a page of their own: GPU use and memory."""
_MAIN = (
    *("model", "language", "task", "method", "precision", "seed", "optimizer", "learning_rate"),
    *("scheduler_type", "warmup_ratio", "weight_decay", "train_batch_size", "gradient_accumulation_steps"),
)
"""Settings that every run has as params, the defaults too."""
_UNITS = (
    "Units: error rates in percent, gains in percentage points; `seconds` in s; `samples_seen` in "
    "training clips, which are also the steps of a trial's metrics (those of a search count trials); "
    "`system/gpu_*` in percent and MB."
)
_TRAINING = {name: name for name in (*FIGURES, "epoch")} | {"step": "optimizer_step"}
"""What a training reports of itself, and what MLflow calls it: `step` is an axis there."""
_RUN_STATUS = {
    "running": "RUNNING",
    "completed": "FINISHED",
    "early_stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
}
OUTCOME = ("ended_by", "best_trial", "winner", "tie", "guards")
"""Tags of a search that has ended."""
_WORDS = {None: "null", True: "true", False: "false"}
Metric = tuple[str, float, int, int]
"""Key, value, timestamp in ms, step."""


@dataclasses.dataclass
class RunContent:
    """What one run is to hold besides the points of its events."""

    status: str
    """As MLflow says it."""
    end_ms: int | None
    """When it ended; None while it runs."""
    tags: dict[str, str]
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    metrics: list[Metric] = dataclasses.field(default_factory=list)
    """What it came to."""


def run_name(record: Trial) -> str:
    """What the run of a trial, repeat or average is called: its number and settings."""
    what = f"mean of {', '.join(record.members)}" if record.members else key_settings(record.config)
    return f"{record.trial_id} {what}"


def trial_run(record: Trial, saved: Experiment, *, new: bool = True) -> RunContent:
    """The run of a trial, repeat or average; without params unless it is `new`."""
    state, base = saved.state, saved.settings.base
    status = "interrupted" if record.status == "running" and state.ended else record.status
    run = _content(status, record.ended or state.last_event_time, base, role_of(record.trial_id))
    run.tags[TRIAL_ID] = record.trial_id
    if record.members:
        run.tags["members"] = " ".join(record.members)
    if new:
        run.params = _own_params(record, saved)
    if record.status != "running":
        run.metrics = _results(record, saved)
        run.tags[NOTE] = trial_note(record)
        if record.stop is not None:
            run.tags |= {"stop_reason": record.stop.reason, "stop": record.stop.describe()}
    if state.ended is not None:
        best = state.best()
        named = {BEST: best.trial_id if best else None, WINNER: state.winner}
        run.tags |= {tag: "true" for tag, trial in named.items() if trial == record.trial_id}
    return run


def own_run(saved: Experiment, option: str) -> RunContent:
    """The experiment's own run; `option` is what a command that names it ends with, as ` --storage DIR`."""
    state, ended, best = saved.state, saved.state.ended, saved.state.best()
    status = ended.status if ended else "running"
    run = _content(status, state.last_event_time, saved.settings.base, "experiment")
    run.params = _shared_params(saved)
    run.tags[NOTE] = f"{experiment_note(saved, option)}\n\n{_UNITS}"
    if saved.is_training:  # as a trial, so that the view of an experiment's trials shows it
        run.tags |= {ROLE: "trial", TRIAL_ID: TRIAL}
    else:  # what `--resume` can change is no param: MLflow takes no other value of one
        run.tags["trials"] = str(state.options.trials if state.session else 0)
    if ended is None:
        return run
    value, name, step = state.value, state.objective, len(state.records)
    metrics: dict[str, float | None] = {}
    if best is not None and best.best_value is not None:
        metrics[f"best_{name}"] = round(best.best_value, 4)
    if value is not None:
        metrics[f"{name}_gain"] = round(state.comparable_base - value, 4)
    if saved.is_training:
        step = max((record.samples_seen for record in state.records.all()), default=0)
    else:
        metrics[SECONDS] = round(state.seconds, 1)
        named = {
            "ended_by": state.end.reason if state.end else None,
            "best_trial": best.trial_id if best else None,
            "winner": state.winner,
        }
        if state.verdict is not None:
            metrics[f"winner_mean_{name}"] = state.verdict.score.mean
            named["tie"] = _text(state.verdict.tie)
        if state.guards_judged is not None:
            kept = all(each.kept for each in state.guards_judged.models[state.guards_judged.run])
            named["guards"] = "kept" if kept else "lost"
        run.tags |= {tag: name for tag, name in named.items() if name is not None}
    run.metrics = points(metrics, step, state.last_event_time)
    return run


def _content(status: str, ended: float, base: TrainConfig, role: str) -> RunContent:
    """Of a run that ended then, in seconds since the epoch, if it has."""
    tags = {"model": base.model, "data": base.data, ROLE: role, STATUS: status}
    return RunContent(_RUN_STATUS[status], None if status == "running" else milliseconds(ended), tags)


def _own_params(record: Trial, saved: Experiment) -> dict[str, str]:
    """Of a run: its searched settings, and what it has of the search."""
    settings = _notable(saved.settings.base.replace(**record.config))
    # The weight of a source is chosen by itself, and a part of one setting.
    params = settings | record.config | {"effective_batch_size": record.effective_batch}
    return {key: _text(value) for key, value in params.items()}


def _shared_params(saved: Experiment) -> dict[str, str]:
    """Params of the experiment's run: settings that its trials share, and what is searched."""
    base, space, settings = saved.settings.base, saved.space, saved.settings
    params = _notable(base)
    if space is None:
        params["effective_batch_size"] = base.effective_batch_size
    else:
        params = {name: value for name, value in params.items() if name not in space.ranges}
        params |= {f"search.{name}": text for name, text in space.describe()}
        params |= {"space": space.path.name, "gpus_per_trial": f"{settings.resources.gpus:g}"}
        params["cpus_per_trial"] = f"{settings.resources.cpus:g}"
    return {key: _text(value) for key, value in params.items()}


def _notable(config: TrainConfig) -> dict[str, Any]:
    """The settings that matter, and those that differ from the defaults."""
    usual = type(config)().to_dict()
    return {
        name: value
        for name, value in config.to_dict().items()
        if name in _MAIN or (value != usual[name] and name not in ("cache_dir", "splits"))
    }


def _text(value: Any) -> str:
    """A value as in YAML: `null`, `true`, a number that reads back exactly (`3e-05`)."""
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)


def _results(record: Trial, saved: Experiment) -> list[Metric]:
    session, name, best = saved.state.session, saved.state.objective, record.best_value
    baseline = objective_value(saved.state.base_rates_for(record))
    metrics: dict[str, float | None] = {SAMPLES: record.samples_seen, SECONDS: round(record.seconds, 1)}
    if best is not None:
        metrics[f"best_{name}"] = round(best, 4)
        metrics[f"{name}_gain"] = round(baseline - round(best, 4), 4)
    if session is not None and session.gpus_per_trial:
        metrics[GPU_HOURS] = round(session.gpus_per_trial * record.seconds / 3600, 4)
    return points(metrics, record.samples_seen, record.ended)


def points(metrics: Mapping[str, float | None], step: int, time: float) -> list[Metric]:
    """The finite metrics of one moment; `time` in seconds since the epoch."""
    return [
        (key, float(value), milliseconds(time), int(step))
        for key, value in metrics.items()
        if value is not None and math.isfinite(value)
    ]


def event_points(
    entries: Sequence[Entry], saved: Experiment, after: int = 0
) -> dict[str | None, list[Metric]]:
    """The points of all events behind number `after`, by trial or repeat; None is the experiment's own run."""
    by_run: dict[str | None, list[Metric]] = {}
    records, trials, best = saved.state.records, 0, math.inf
    objective = saved.state.objective

    def log(trial_id: str | None, metrics: Mapping[str, float | None], step: int) -> None:
        if entry.number > after:
            key = None if saved.is_training else trial_id
            by_run.setdefault(key, []).extend(points(metrics, step, time))

    for entry in entries:
        event, time = entry.event, entry.time
        if isinstance(event, Prepared):
            log(None, {f"baseline_{name}": rate for name, rate in event.baseline.rates.items()}, 0)
            log(None, named_rates(event.baseline.sources, "baseline_"), 0)
        elif isinstance(event, TrialProposed):
            trials += role_of(event.trial_id) == "trial"
        elif isinstance(event, HeldOutMeasured):
            tested = {"test_": event.rates, "baseline_test_": event.baseline}
            by_source = named_rates(event.baseline_sources, "baseline_test_")
            log(None, {f"{before}{objective}": objective_value(tested[before]) for before in tested}, trials)
            log(None, {**named_rates(event.sources, "test_"), **by_source}, trials)
        elif isinstance(event, Evaluated) and math.isfinite(value := objective_value(event.metrics)):
            values = {name: event.metrics[name] for name in RATES if name in event.metrics}
            # What was measured again, as its process had ended before its weights were saved, is the same point.
            time = saved.state.run(event.trial_id).first_logged.get((event.samples_seen, value), time)
            log(event.trial_id, {**values, **named_rates(event.sources)}, event.samples_seen)
            is_trial = event.trial_id in records and not saved.is_training
            if is_trial and value <= best:
                best = value
                log(None, {f"best_{objective}": value}, trials)
    return by_run


def progress_points(row: Mapping[str, Any]) -> list[Metric]:
    metrics = row["metrics"]
    known = {new: metrics[name] for name, new in _TRAINING.items() if name in metrics}
    known |= {name: value for name, value in metrics.items() if name.startswith(_SYSTEM)}
    return points(known, metrics[SAMPLES], row["time"])


def milliseconds(seconds: float) -> int:
    """A time as MLflow notes it, from seconds since the epoch."""
    return int(seconds * 1000)
