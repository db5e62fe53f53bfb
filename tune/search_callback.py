"""Ray Tune's events, passed on to the records, to MLflow and to the screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.tune
from rich.markup import escape

from tune.display import key_settings, short_path
from tune.searcher import TRIAL_ID

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.display import SearchDisplay
    from tune.mlflow_logging import MlflowRecorder
    from tune.records import Outcome, Records, TrialRecord

_RATES = ("wer", "cer", "wer_orthographic", "cer_orthographic", "eval_loss")
_TRAINING = ("loss", "learning_rate", "grad_norm", "epoch", "step")


class SearchCallback(ray.tune.Callback):
    """Runs in the driver's main thread; `progress` is called by the mailbox's thread."""

    def __init__(
        self,
        base: TrainConfig,
        trials_folder: Path,
        records: Records,
        recorder: MlflowRecorder,
        display: SearchDisplay,
    ) -> None:
        self._trials_folder = trials_folder
        self._base = base
        self._records = records
        self._recorder = recorder
        self._display = display

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles the callback into its own files, where threads and screens have no place."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Open the trial's record and run."""
        config = dict(trial.config)
        trial_id = config.pop(TRIAL_ID)
        if trial_id in self._records:
            return
        self._records.start(trial_id, config)
        resolved = self._base.replace(**config)
        self._recorder.trial_started(
            trial_id,
            name=f"{trial_id} {key_settings(config)}",
            params={**resolved.to_dict(), "effective_batch_size": resolved.effective_batch_size},
            tags={"trial_id": trial_id, "role": "trial", "model": self._base.model, "data": self._base.data},
        )
        self._display.event(f"trial {trial_id} started: {escape(key_settings(config))}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Take in an evaluation."""
        record = self._record(trial)
        before = self._records.best()
        with self._records.lock:
            record.add_evaluation(result)
        if record.status == "diverged" or record.wer is None:
            return
        metrics = {name: float(result[name]) for name in (*_RATES, *_TRAINING) if name in result}
        self._recorder.log(record.trial_id, _named(metrics), step=record.samples_seen)
        best = self._records.best()
        news = ""
        if best is record and (before is None or before is not record or record.wer == record.best_wer):
            news = ", best so far"
            self._recorder.log(None, {"best_wer": record.wer}, step=len(self._records.all()))
        self._display.event(f"trial {record.trial_id} epoch {record.epoch:.2f}: WER {record.wer:.2f} %{news}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial: completed at the full budget, stopped early, or diverged."""
        last = trial.last_result or {}
        self._end(self._record(trial), "completed" if last.get("finished") else "early_stopped")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial as failed, with the last line of its error on the screen."""
        record = self._record(trial)
        record.error = Path(trial.error_file).read_text(encoding="utf-8")
        self._display.event(
            f"[red]trial {record.trial_id} failed[/]: {escape(error_line(record.error).rstrip('.'))}; "
            f"all of it is in {escape(short_path(self._trials_folder / record.trial_id / 'error.txt'))}"
        )
        self._end(record, "failed")

    def progress(self, trial_id: str, metrics: dict[str, float], timestamp: float) -> None:
        """Take in loss and learning rate between two evaluations."""
        with self._records.lock:
            if trial_id not in self._records:
                return
            self._records[trial_id].add_progress(metrics)
        values = _named({name: metrics[name] for name in _TRAINING if name in metrics})
        self._recorder.log(trial_id, values, step=int(metrics["samples_seen"]), timestamp=timestamp)

    def _record(self, trial: Any) -> TrialRecord:
        return self._records[trial.config[TRIAL_ID]]

    def _end(self, record: TrialRecord, outcome: Outcome) -> None:
        with self._records.lock:
            outcome = record.end(outcome)
        rates = {} if record.best_wer is None else {"best_wer": record.best_wer}
        self._recorder.trial_ended(record.trial_id, outcome, metrics=rates)
        if outcome in ("early_stopped", "diverged"):
            word = "stopped early" if outcome == "early_stopped" else "diverged"
            self._display.event(f"[yellow]trial {record.trial_id} {word}[/] at epoch {record.epoch:.2f}")
        self._display.trial_ended()


def error_line(report: str) -> str:
    """The line of Ray's failure report that names the error: a traceback's last one, else the first."""
    lines = [line for line in report.splitlines() if line.strip() and not line.startswith("Failure #")]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b.*:", line)]
    return named[-1] if named else lines[0] if lines else "unknown error"


def _named(metrics: dict[str, float]) -> dict[str, float]:
    """MLflow's names: `step` is an axis there already, so the optimiser's step gets its own name."""
    return {("optimizer_step" if name == "step" else name): value for name, value in metrics.items()}
