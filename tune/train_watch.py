"""What the driver makes of the workers' messages: events of the log, progress, the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from tune.errors import error_line
from tune.experiments.events import TrialEnded, TrialRecovered
from tune.runs.callback import evaluation
from tune.train_messages import EARLIER, EVALUATION, FAILURE, PROGRESS
from tune.workers.ray_train import TRIAL, checkpoint_name

if TYPE_CHECKING:
    from tune.experiments.log import ExperimentLog, ProgressLog
    from tune.runs.training_display import TrainDisplay
    from tune.search.records import TrialRecord


class TrainingWatch:
    """Takes in messages, in the mailbox's thread, until `stop` of its reader returns."""

    def __init__(
        self, log: ExperimentLog, progress: ProgressLog, display: TrainDisplay, max_failures: int
    ) -> None:
        self._log = log
        self._progress_log = progress
        self._display = display
        self._failures, self._max_failures = 0, max_failures
        self.error: str | None = None
        """The last failure, whole."""

    @property
    def record(self) -> TrialRecord:
        """The training's only trial."""
        return self._log.state.records[TRIAL]

    def receive(self, kind: str, metrics: dict[str, float], timestamp: float) -> None:
        """Take in one message."""
        if kind == PROGRESS:
            self._progress(metrics, timestamp)
        elif kind == EVALUATION and metrics.get("diverged"):
            self._log.append(
                TrialEnded(trial_id=TRIAL, status="diverged", samples_seen=int(metrics["samples_seen"]))
            )
        elif kind == EARLIER:
            self._earlier(metrics)
        elif kind == EVALUATION:
            self._evaluation(metrics)
        elif kind.startswith(FAILURE):
            self._failure(kind.removeprefix(FAILURE))

    def flush_progress(self) -> None:
        """Write what came in the last second."""
        try:
            self._progress_log.flush()
        except OSError as error:  # it may be lost
            self._display.event(f"[yellow]losses between evaluations are not kept[/]: {escape(str(error))}")

    def _progress(self, metrics: dict[str, float], timestamp: float) -> None:
        self.record.add_progress(metrics)
        self._progress_log.add(TRIAL, metrics, timestamp)
        self._display.update(self.record, metrics)

    def _evaluation(self, metrics: dict[str, float]) -> None:
        record = self.record
        self._add(metrics)
        if record.wer is None:
            return
        best = ", best so far" if record.wer == record.best_wer else ""
        self._display.event(f"epoch {record.epoch:.2f}: WER {record.wer:.2f} %{best}")
        self._display.update(record, metrics)
        if not metrics["finished"]:
            self._display.told()

    def _earlier(self, metrics: dict[str, float]) -> None:
        """Take in an evaluation before the checkpoint from which the workers go on, if it is not known."""
        if int(metrics["samples_seen"]) not in {seen for seen, _ in self.record.evaluations}:
            self._add(metrics)

    def _add(self, metrics: dict[str, float]) -> None:
        named = {**metrics, "checkpoint_dir_name": checkpoint_name(metrics["step"])}
        self._log.append(evaluation(TRIAL, named, None, TRIAL))

    def _failure(self, report: str) -> None:
        record = self.record
        self._failures += 1
        self.error = report
        record.progress = {}
        if self._failures > self._max_failures:
            return  # the summary tells of it
        self._log.append(TrialRecovered(trial_id=TRIAL, reason=error_line(report)))
        where = (
            f"goes on from its checkpoint at {record.samples_seen:,} samples"
            if record.evaluations
            else "starts again"
        )
        self._display.event(
            f"[yellow]the training failed and {where}[/]: {escape(error_line(report).rstrip('.'))}"
        )
        self._display.restart()
