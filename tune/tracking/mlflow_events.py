"""What the events of an experiment's log are in MLflow's terms: runs, params, metrics over samples seen, tags."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.experiments.events import (
    BaselineMeasured,
    Entry,
    Evaluated,
    HeldOutMeasured,
    ResultsWritten,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialStarted,
)
from tune.search.records import TrialRecord, role_of
from tune.tracking.mlflow_connection import RunStatus, system_tags
from tune.tracking.mlflow_texts import (
    interrupted,
    search_begins,
    search_ended,
    standing_of,
    training_begins,
    training_ended,
    trial_note,
    won_wer,
)
from tune.tracking.mlflow_view import BEST, WINNER, trials_view
from tune.tracking.mlflow_writes import RunWrites, param_texts
from tune.tracking.tracker import TRACKING_FOLDER
from tune.util.console import key_settings

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.saved import SavedExperiment

EXPERIMENT_KEY = "tune_whisper.experiment"
"""Tag of a search's run by which it is found: when its first session began, in seconds since the epoch."""
PARENT, TRIAL_ID, ROLE, STATUS = "mlflow.parentRunId", "trial_id", "role", "status"
NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""
NAMED_BY = {BEST: "best_trial", WINNER: "winner"}
"""Tags of trials, and the search's tags that name the trial which has them."""
RATES = ("wer", "cer", "wer_orthographic", "cer_orthographic", "eval_loss", "eval_clips", "wer_error")
TRAINING = {
    "loss": "loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
    "step": "optimizer_step",
}
"""What a training reports of itself, and what MLflow calls it: `step` is an axis there."""
BASELINE_WER, BEST_WER, WER_GAIN, WINNER_MEAN = "baseline_wer", "best_wer", "wer_gain", "winner_mean_wer"
TEST_WER, BASELINE_TEST_WER = "test_wer", "baseline_test_wer"
TRAINING_TRIAL = "001"
"""The only trial of a single training."""
SAMPLES, SECONDS, GPU_HOURS = "samples_seen", "seconds", "gpu_hours"
FINAL_FILES = ("experiment.yaml", "results.json", "dropped_clips.jsonl")
REPORT_FOLDER = "report"
_RUN_STATUS: dict[str, RunStatus] = {
    "completed": "FINISHED",
    "early_stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
}


class Translation:
    """What one delivery writes, run by run; a single training is one run, with the key None."""

    def __init__(self, saved: SavedExperiment, option: str) -> None:
        """Args:
        saved: with the state after the last event of the delivery.
        option: what a command that names the experiment ends with, as ` --storage DIR`.
        """
        self.runs: dict[str | None, RunWrites] = {}
        """By trial or repeat; None for the run of the search."""
        self.named: dict[str, str | None] | None = None
        """At the end of a session the runs that stand out, by their tag in `NAMED_BY`."""
        self.view: str | None = None
        """How the page of the experiment looks, once that is known."""
        self._saved = saved
        self._option = option
        self._trials = 0
        self._best = math.inf

    def add(self, entries: Sequence[Entry]) -> None:
        """Translate events; what comes of one is the same wherever a delivery begins or ends."""
        self._look_back(entries)
        for entry in entries:
            self._tell(entry.event, entry.time)

    def add_progress(self, row: dict[str, Any]) -> None:
        """Translate a row of `progress.jsonl`."""
        metrics = row["metrics"]
        if SAMPLES in metrics:
            values = {new: metrics[name] for name, new in TRAINING.items() if name in metrics}
            self._run(row["trial_id"]).log(values, metrics[SAMPLES], row["time"])

    def _look_back(self, entries: Sequence[Entry]) -> None:
        """How many trials there were, and the lowest WER of any on all clips, before these events."""
        events = [entry.event for entry in entries]
        records = self._saved.state.records
        new = {event.trial_id for event in events if isinstance(event, TrialProposed)}
        self._trials = sum(record.trial_id not in new for record in records.all())
        told = {(event.trial_id, event.samples_seen) for event in events if isinstance(event, Evaluated)}
        if told:
            before = (
                wer
                for record in records.all()
                for seen, wer in record.evaluations
                if (record.trial_id, seen) not in told and seen not in record.wer_errors
            )
            self._best = min(before, default=math.inf)

    @functools.cached_property
    def _base(self) -> TrainConfig:
        return self._saved.settings.base

    @functools.cached_property
    def _shared(self) -> dict[str, str]:
        return param_texts(self._base.to_dict())

    @property
    def _about(self) -> dict[str, str]:
        return {"model": self._base.model, "data": self._base.data}

    @property
    def _gpus(self) -> float:
        session = self._saved.state.session
        return session.gpus_per_trial if session else 0.0

    def _own_params(self, record: TrialRecord) -> dict[str, str]:
        """Of a run's settings those that were chosen for it, and those that are not the search's."""
        config = self._base.replace(**record.config)
        params = param_texts({**config.to_dict(), "effective_batch_size": record.effective_batch})
        return {
            key: text for key, text in params.items() if key in record.config or self._shared.get(key) != text
        }

    def _run(self, trial_id: str | None) -> RunWrites:
        return self.runs.setdefault(None if self._saved.is_training else trial_id, RunWrites())

    @functools.singledispatchmethod
    def _tell(self, event: Any, now: float) -> None:
        """Of other events MLflow is told nothing by themselves."""

    @_tell.register
    def _(self, event: SessionStarted, now: float) -> None:
        saved, run = self._saved, self._run(None)
        if now == saved.state.created:  # the first, whatever its number
            run.started, run.name = saved.state.created, saved.name
            run.params = parent_params(saved)
            run.tag({**system_tags(), **self._about, EXPERIMENT_KEY: experiment_key(saved)})
            # As a trial, so that the view of an experiment's trials shows it.
            run.tag({ROLE: "trial", TRIAL_ID: TRAINING_TRIAL} if saved.is_training else {ROLE: "experiment"})
            if saved.space is not None:
                self.view = trials_view(list(saved.space.parameters), gpus=event.gpus_per_trial > 0)
        else:
            run.status = "RUNNING"
            self._go_on(event.session)
        run.tag({STATUS: "running"})
        run.tag({NOTE: training_begins(saved.base) if saved.is_training else search_begins(saved)})

    def _go_on(self, session: int) -> None:
        """Trials that go on in this session; and those that ended in the one before, without an event that says so."""
        for record in [] if self._saved.is_training else self._saved.state.runs:
            if record.folder and record.status == "running":
                self._run(record.trial_id).status = "RUNNING"
                self._run(record.trial_id).tag({STATUS: "running"})
            elif record.folder and record.session == session - 1:
                self._end(record)

    @_tell.register
    def _(self, event: BaselineMeasured, now: float) -> None:
        rates = {f"baseline_{name}": rate for name, rate in event.rates.items()}
        self._run(None).log(rates, 0, now)

    @_tell.register
    def _(self, event: TrialProposed, now: float) -> None:
        self._trials += event.kind == "trial"

    @_tell.register
    def _(self, event: TrialStarted, now: float) -> None:
        saved, run = self._saved, self._run(event.trial_id)
        record = saved.state.run(event.trial_id)
        if saved.is_training:
            self.view = trials_view(list(record.config), gpus=self._gpus > 0)
            return
        run.started = now if run.started is None else run.started
        run.status = "RUNNING"
        run.name = f"{event.trial_id} {key_settings(record.config)}"
        run.params = self._own_params(record)
        run.tag({**system_tags(), **self._about, ROLE: role_of(event.trial_id)})
        run.tag({TRIAL_ID: event.trial_id, STATUS: "running"})

    @_tell.register
    def _(self, event: Evaluated, now: float) -> None:
        wer = event.metrics.get(event.objective)
        if wer is None:
            return
        reported = {**event.metrics, "epoch": event.epoch}
        values = {name: reported[name] for name in RATES if name in reported}
        values |= {new: reported[name] for name, new in TRAINING.items() if name in reported}
        self._run(event.trial_id).log(values, event.samples_seen, now)
        is_trial = event.trial_id in self._saved.state.records and not self._saved.is_training
        # Of a part of the clips it would rise again once a trial is measured on all.
        if is_trial and "eval_clips" not in event.metrics and wer <= self._best:
            self._best = wer
            self._run(None).log({BEST_WER: wer}, self._trials, now)

    @_tell.register
    def _(self, event: TrialEnded, now: float) -> None:
        record = self._saved.state.run(event.trial_id)
        if record.folder and not self._saved.is_training:
            self._end(record)

    @_tell.register
    def _(self, event: HeldOutMeasured, now: float) -> None:
        found = {TEST_WER: event.rates.get("wer"), BASELINE_TEST_WER: event.baseline.get("wer")}
        self._run(None).log(found, self._trials, now)

    @_tell.register
    def _(self, event: SearchEnded, now: float) -> None:
        saved, state, run = self._saved, self._saved.state, self._run(None)
        best, wer, baseline = state.best(), won_wer(saved), saved.baseline.get("wer")
        metrics: dict[str, float | None] = {BASELINE_WER: baseline}
        if best is not None and best.best_wer is not None:
            metrics[BEST_WER] = round(best.best_wer, 4)
        if wer is not None and baseline is not None:
            metrics[WER_GAIN] = round(baseline - wer, 4)
        if saved.is_training:
            (record,) = state.records.all() or [TrialRecord(TRAINING_TRIAL, {})]
            status = "interrupted" if record.status == "running" and interrupted(saved) else record.status
            run.log(metrics, record.samples_seen, now)
            run.tag({"outcome": status, NOTE: training_ended(saved, self._option)})
        else:
            self.named = {BEST: None if best is None else best.trial_id, WINNER: state.winner}
            metrics[SECONDS] = round(state.seconds, 1)
            standing = standing_of(saved, state.winner)
            if standing is not None and state.verdict is not None:
                metrics[WINNER_MEAN] = float(standing["mean"])
                run.tag({"tie": str(bool(state.verdict.get("tie"))).lower()})
            if state.end is not None:
                run.tag({"ended_by": state.end.reason})
            run.log(metrics, self._trials, now)
            run.tag({NAMED_BY[tag]: trial for tag, trial in self.named.items() if trial is not None})
            run.tag({NOTE: search_ended(saved, self._option)})
            for record in state.runs:
                if record.folder and record.status == "running":
                    self._close(self._run(record.trial_id), "interrupted", now)
        self._close(run, event.status, now)

    @_tell.register
    def _(self, event: ResultsWritten, now: float) -> None:
        self._run(None).files = list(final_files(self._saved))

    def _end(self, record: TrialRecord) -> None:
        """The end of a trial, as the state has it."""
        saved, run = self._saved, self._run(record.trial_id)
        metrics: dict[str, float | None] = {
            SAMPLES: float(record.samples_seen),
            SECONDS: round(record.seconds, 1),
        }
        if record.best_wer is not None:
            metrics[BEST_WER] = round(record.best_wer, 4)
            if "wer" in saved.baseline:
                metrics[WER_GAIN] = round(saved.baseline["wer"] - round(record.best_wer, 4), 4)
        if self._gpus:
            metrics[GPU_HOURS] = round(self._gpus * round(record.seconds, 1) / 3600, 4)
        run.log(metrics, record.samples_seen, record.ended)
        if record.stop is not None:
            run.tag({"stop_reason": record.stop.reason, "stop": record.stop.describe()})
        run.tag({NOTE: trial_note(record)})
        self._close(run, record.status, record.ended)

    @staticmethod
    def _close(run: RunWrites, status: str, now: float) -> None:
        run.tag({STATUS: status})
        run.status, run.ended = _RUN_STATUS[status], now


def experiment_key(saved: SavedExperiment) -> str:
    """What the tag `EXPERIMENT_KEY` holds."""
    return f"{saved.state.created:.6f}"


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
    """What is stored with the experiment's run from the beginning on."""
    versions, space = saved.folder.path / TRACKING_FOLDER / "versions.json", saved.folder.path / "space.yaml"
    versions.write_text(json.dumps(saved.settings.versions, indent=2) + "\n", encoding="utf-8")
    return [(path, None) for path in (versions, space) if path.is_file()]


def final_files(saved: SavedExperiment) -> Iterator[tuple[Path, str | None]]:
    """What is stored with the experiment's run at the end, each with its folder there."""
    folder = saved.folder.path
    for name in FINAL_FILES:
        if (folder / name).is_file():
            yield folder / name, None
    yield from folder_files(folder / REPORT_FOLDER)


def folder_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """All files of a folder but hidden ones, each with where it goes: below the folder's name."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield file, file.parent.relative_to(folder.parent).as_posix()
