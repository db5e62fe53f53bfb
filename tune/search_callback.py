"""Ray Tune's events, passed on to the records, to MLflow and to the screen."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.tune
from rich.markup import escape

from tune.attempts import ACCUMULATION, BROKEN_CHECKPOINT, MICRO_BATCH
from tune.checkpoint_files import CheckpointFiles
from tune.display import key_settings, short_path
from tune.experiment_folder import TRIALS_FOLDER
from tune.mlflow_story import trial_ended
from tune.scheduler import TRIAL_ID
from tune.trainable import is_only_for_resume

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.decisions import Judge
    from tune.display import SearchDisplay
    from tune.experiment_folder import ExperimentFolder
    from tune.mlflow_logging import MlflowRecorder
    from tune.records import Outcome, Records, TrialRecord
    from tune.search_state import SearchState

_RATES = ("wer", "cer", "wer_orthographic", "cer_orthographic", "eval_loss", "eval_clips", "wer_error")
_TRAINING = ("loss", "learning_rate", "grad_norm", "epoch", "step")


class SearchCallback(ray.tune.Callback):
    """Runs in the driver's main thread; `progress` is called by the mailbox's thread."""

    def __init__(
        self,
        base: TrainConfig,
        folder: ExperimentFolder,
        state: SearchState,
        records: Records,
        judge: Judge,
        recorder: MlflowRecorder,
        display: SearchDisplay,
    ) -> None:
        """`records` are those of the state that belong to the trials: the search's own, or the repeats."""
        self._folder = folder
        self._files = CheckpointFiles(folder)
        self._base = base
        self._state = state
        self._judge = judge
        self._records = records
        self._role = "trial" if records is state.records else "repeat"
        self._recorder = recorder
        self._display = display
        self._announced: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles the callback into its own files, where threads and screens have no place."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Open the trial's record and run."""
        self._open(trial)

    def _open(self, trial: Any) -> None:
        config = dict(trial.config)
        trial_id = config.pop(TRIAL_ID)
        folder = Path(trial.local_path).name
        if trial_id in self._records:
            self._records[trial_id].folder = folder
            if self._state.is_restored(trial_id) and trial_id not in self._announced:
                self._announced.add(trial_id)
                self._display.event(
                    f"trial {trial_id} goes on at epoch {self._records[trial_id].checkpoint_epoch:.2f}"
                )
            return
        resolved = self._base.replace(**config)
        self._records.start(trial_id, config, resolved.effective_batch_size).folder = folder
        self._recorder.trial_started(
            trial_id,
            name=f"{trial_id} {key_settings(config)}",
            params={**resolved.to_dict(), "effective_batch_size": resolved.effective_batch_size},
            tags={
                "trial_id": trial_id,
                "role": self._role,
                "model": self._base.model,
                "data": self._base.data,
            },
        )
        self._state.save()
        self._display.event(f"{self._role} {trial_id} started: {escape(key_settings(config))}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tell of a failure after which the trial goes on."""
        record = self._record(trial)
        reason = (
            error_line(Path(trial.error_file).read_text(encoding="utf-8")) if trial.error_file else "lost"
        )
        where = (
            f"goes on from its checkpoint at epoch {record.checkpoint_epoch:.2f}"
            if record.last_checkpoint
            else "starts again"
        )
        self._display.event(
            f"[yellow]trial {record.trial_id} failed and {where}[/]: {escape(reason.rstrip('.'))}"
        )

    def evaluated(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Take in an evaluation before Ray or Optuna act on it; whether the trial ends with it."""
        record = self._records[trial_id]
        stop = self._judge.judge(record, result)
        before = self._records.best()
        name, kept = result.get("checkpoint_dir_name"), record.checkpoints
        self._state.evaluated(
            record, result, stop, f"{TRIALS_FOLDER}/{record.folder}/{name}" if name else None
        )
        self._remove(record, [path for path in kept if path not in record.checkpoints])
        if math.isfinite(float(result["wer"])):
            self._tell(record, before, result)
        return stop is not None

    def _tell(self, record: TrialRecord, before: TrialRecord | None, result: dict[str, Any]) -> None:
        """Show an evaluation, and send it to MLflow."""
        metrics = {name: float(result[name]) for name in (*_RATES, *_TRAINING) if name in result}
        self._recorder.log(record.trial_id, _named(metrics), step=record.samples_seen)
        news = ""
        if self._records.best() is record and (before is not record or record.wer == record.best_wer):
            news = ", best so far"
            if not record.best_is_partial:  # else it would rise again once a trial is measured on all clips
                self._recorder.log(None, {"best_wer": float(result["wer"])}, step=len(self._records.all()))
        error = f" ± {result['wer_error']:.2f}" if "wer_error" in result else ""
        self._display.event(
            f"trial {record.trial_id} epoch {record.epoch:.2f}: WER {record.wer:.2f}{error} %{news}"
        )

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial as what was decided on its last evaluation."""
        record = self._record(trial)
        outcome = record.outcome
        self._end(record, "failed" if outcome == "running" else outcome)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial as failed, with the last line of its error on the screen."""
        record = self._record(trial)
        record.error = Path(trial.error_file).read_text(encoding="utf-8")
        self._display.event(
            f"[red]trial {record.trial_id} failed[/]: {escape(error_line(record.error).rstrip('.'))}; "
            f"all of it is in {escape(f'{short_path(self._folder.path)}/{TRIALS_FOLDER}/{record.folder}/error.txt')}"
        )
        self._end(record, "failed")

    def progress(self, trial_id: str, metrics: dict[str, float], timestamp: float) -> None:
        """Take in loss and learning rate between two evaluations, and what a trial did to go on."""
        if trial_id not in self._records:
            return
        if MICRO_BATCH in metrics:
            self._display.event(
                f"[yellow]trial {trial_id} ran out of memory[/] and goes on with micro-batch "
                f"{metrics[MICRO_BATCH]:g} and accumulation {metrics[ACCUMULATION]:g}: the effective batch stays"
            )
        elif BROKEN_CHECKPOINT in metrics:
            how = "goes on from the one before it" if metrics[BROKEN_CHECKPOINT] else "starts again"
            self._display.event(f"[yellow]trial {trial_id} found its checkpoint damaged[/] and {how}")
        else:
            with self._records.lock:
                self._records[trial_id].add_progress(metrics)
            values = _named({name: metrics[name] for name in _TRAINING if name in metrics})
            self._recorder.log(trial_id, values, step=int(metrics["samples_seen"]), timestamp=timestamp)

    def _record(self, trial: Any) -> TrialRecord:
        if trial.config[TRIAL_ID] not in self._records:  # its process was lost before it had begun
            self._open(trial)
        return self._records[trial.config[TRIAL_ID]]

    def _end(self, record: TrialRecord, outcome: Outcome) -> None:
        kept = record.last_checkpoint, record.earlier_checkpoint
        over = [path for path in record.checkpoints if path != record.checkpoint]
        with self._records.lock:
            outcome = record.end(outcome)
            record.last_checkpoint = record.earlier_checkpoint = None
        self._state.save()  # before the files go: what it names is there
        if not self._drop_what_is_over(record, over):
            record.last_checkpoint, record.earlier_checkpoint = kept
        stop = record.stop
        error = error_line(record.error) if record.error else None
        self._recorder.trial_ended(record.trial_id, outcome, **trial_ended(record, error))
        if stop is not None:
            word = "stopped early" if outcome == "early_stopped" else "diverged"
            self._display.event(
                f"[yellow]trial {record.trial_id} {word}[/] at epoch {record.epoch:.2f}: {escape(stop.describe())}"
            )
        self._display.trial_ended()

    def _drop_what_is_over(self, record: TrialRecord, over: list[str]) -> bool:
        """A trial that has ended needs its best weights, and nothing to go on with; whether the rest is gone."""
        if not self._remove(record, over):
            return False
        try:
            if record.checkpoint:
                self._files.strip(record.checkpoint, is_only_for_resume)
        except OSError as error:
            self._display.event(
                f"[yellow]the checkpoint of trial {record.trial_id} stays whole[/]: {escape(str(error))}"
            )
            return False
        return True

    def _remove(self, record: TrialRecord, checkpoints: list[str]) -> bool:
        """Remove checkpoints that nobody needs any more; whether that could be done."""
        try:
            for path in checkpoints:
                self._files.remove(path)
        except OSError as error:
            self._display.event(
                f"[yellow]checkpoints of trial {record.trial_id} stay[/]: {escape(str(error))}"
            )
            return False
        return True


def error_line(report: str) -> str:
    """The line of Ray's failure report that names the error: a traceback's last one, else the first."""
    last = report.rsplit("Failure #", maxsplit=1)[-1].partition("\n")[2] or report
    lines = [line for line in last.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b.*:", line)]
    return named[-1] if named else lines[0] if lines else "unknown error"


def _named(metrics: dict[str, float]) -> dict[str, float]:
    """MLflow's names: `step` is an axis there already, so the optimiser's step gets its own name."""
    return {("optimizer_step" if name == "step" else name): value for name, value in metrics.items()}
