"""What the driver makes of the workers' messages: the record, MLflow, the screen."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.markup import escape

from tune.experiment_folder import TRIALS_FOLDER
from tune.search_callback import error_line
from tune.train_messages import EARLIER, EVALUATION, FAILURE, PROGRESS
from tune.train_workers import TRIAL, checkpoint_name

if TYPE_CHECKING:
    from tune.mlflow_logging import MlflowRecorder
    from tune.records import TrialRecord
    from tune.search_state import SearchState
    from tune.train_display import TrainDisplay

_RATES = ("wer", "cer", "wer_orthographic", "cer_orthographic", "eval_loss")
_TRAINING = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm", "epoch": "epoch",
             "step": "optimizer_step"}  # fmt: skip
"""Metrics and what MLflow calls them: `step` is an axis there."""


class TrainingWatch:
    """Takes in messages, in the mailbox's thread, until `stop` of its reader returns."""

    def __init__(
        self, state: SearchState, recorder: MlflowRecorder, display: TrainDisplay, max_failures: int
    ) -> None:
        self._state = state
        self._recorder = recorder
        self._display = display
        self._failures, self._max_failures = 0, max_failures

    @property
    def record(self) -> TrialRecord:
        """The training's only trial."""
        return self._state.records[TRIAL]

    def receive(self, kind: str, metrics: dict[str, float], timestamp: float) -> None:
        """Take in one message."""
        if kind == PROGRESS:
            self._progress(metrics, timestamp)
        elif kind == EVALUATION and metrics.get("diverged"):
            with self._state.records.lock:
                self.record.status, self.record.samples_seen = "diverged", int(metrics["samples_seen"])
            self._state.save()
        elif kind == EARLIER:
            self._earlier(metrics, timestamp)
        elif kind == EVALUATION:
            self._evaluation(metrics, timestamp)
        elif kind.startswith(FAILURE):
            self._failure(kind.removeprefix(FAILURE))

    def _progress(self, metrics: dict[str, float], timestamp: float) -> None:
        with self._state.records.lock:
            self.record.add_progress(metrics)
        self._log(metrics, timestamp)
        self._display.update(self.record, metrics)

    def _evaluation(self, metrics: dict[str, float], timestamp: float) -> None:
        record = self.record
        self._add(metrics)
        self._log(metrics, timestamp)
        if record.wer is None:
            return
        best = ", best so far" if record.wer == record.best_wer else ""
        self._display.event(f"epoch {record.epoch:.2f}: WER {record.wer:.2f} %{best}")
        self._display.update(record, metrics)
        if not metrics["finished"]:
            self._display.told()

    def _earlier(self, metrics: dict[str, float], timestamp: float) -> None:
        """Take in an evaluation before the checkpoint from which the workers go on, if it is not known."""
        if int(metrics["samples_seen"]) not in {seen for seen, _ in self.record.evaluations}:
            self._add(metrics)
            self._log(metrics, timestamp)

    def _add(self, metrics: dict[str, float]) -> None:
        with self._state.records.lock:
            self.record.add_evaluation(metrics)
            self.record.add_checkpoint(f"{TRIALS_FOLDER}/{TRIAL}/{checkpoint_name(metrics['step'])}")
        self._state.save()

    def _failure(self, report: str) -> None:
        record = self.record
        self._failures += 1
        with self._state.records.lock:
            record.error = report
            record.samples_seen = record.evaluations[-1][0] if record.evaluations else 0
        self._state.save()
        if self._failures > self._max_failures:
            return  # the summary tells of it
        where = (
            f"goes on from its checkpoint at {record.samples_seen:,} samples"
            if record.evaluations
            else "starts again"
        )
        self._display.event(
            f"[yellow]the training failed and {where}[/]: {escape(error_line(report).rstrip('.'))}"
        )
        self._display.restart()

    def _log(self, metrics: dict[str, float], timestamp: float) -> None:
        values = {name: float(metrics[name]) for name in _RATES if name in metrics}
        values |= {new: float(metrics[name]) for name, new in _TRAINING.items() if name in metrics}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._recorder.log(None, finite, step=int(metrics["samples_seen"]), timestamp=timestamp)
