"""Ray Tune's events, written to the experiment's log before anything acts on them, and shown on the screen."""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray.tune
from rich.markup import escape

from trainer.scoring.objectives import objective_value, rates_by_source
from trainer.training.checkpoints import is_only_for_resume
from trainer.training.report import FIGURES, Decision, Kept, Order
from tune.cluster.progress_channel import EVALUATED, SAVED, START
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import (
    RATES,
    CheckpointSaved,
    Evaluated,
    TrialEnded,
    TrialProposed,
    TrialRecovered,
    TrialStarted,
)
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.log import ProgressLog
from tune.experiments.object_stores.object_store import StorageError
from tune.search.finalists import DEFAULT_COUNT, resumable_rungs
from tune.search.records import OUTCOMES, Records, Stop, Trial, TrialOutcome, rank, role_of
from tune.search.scheduler import TRIAL_ID, Judge
from tune.util.cloud_errors import cloud_errors
from tune.util.console import LiveDisplay, key_settings, short_path
from tune.util.errors import error_line
from tune.workers.retries import ACCUMULATION, BROKEN_CHECKPOINT, MICRO_BATCH

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.runs.session import Session

SAVE_SECONDS = 60.0
"""For which the end of trainings waits for checkpoints that are being written."""
_TRAINING = (*FIGURES, "epoch", "step", "train_seconds", "train_samples")


class Listener(abc.ABC):
    """Takes in what trainings tell, in the thread of a `ProgressReader`: to the log, to disk and on the screen."""

    def __init__(self, session: Session, records: Records, display: LiveDisplay) -> None:
        """`records` are those of the log's state that belong to the trainings: the trials, or the repeats."""
        self._experiment, self._channel = session.experiment, session.channel
        # Here, as it may ask the hub for the model's configuration, which nobody waits for behind Ctrl-C.
        self._gigabytes = session.plan.checkpoint_bytes() / 1e9
        self._log, self._records = session.experiment.log, records
        self._files = CheckpointFiles(session.experiment.folder)
        self._progress = ProgressLog(session.experiment.folder.path)
        self.display = display
        self._asked: set[str] = set()
        """Trainings that were asked to save where they are, and have not yet."""
        self._saved_at: dict[str, float] = {}
        """When each training began or saved last, in seconds of the monotonic clock."""
        self.interrupted = False

    def interrupt(self, why: str) -> None:
        """Have the trainings save where they are, and end there, to go on another time."""
        self.interrupted = True
        running = {run.trial_id for run in self._records.running()}
        self._ask("end", running)
        saved = (
            f": saving checkpoints of what is running ({len(running)}), about {self._gigabytes:.2g} GB each, in at "
            f"most {SAVE_SECONDS:g} s; Ctrl-C once more ends at once"
        )
        self.display.event(f"[yellow]{escape(why)}[/]{saved if running else ''}")

    def _ask(self, order: Order, trial_ids: set[str]) -> None:
        self._asked |= trial_ids
        self._channel.order.remote(order, trial_ids)

    def saving(self) -> bool:
        """Whether a training is about to save something; not one that has trained for seconds only."""
        return any(
            run.unsaved
            or (run.trial_id in self._asked and run.progress.get("epoch", 0.0) > run.checkpoint_epoch)
            for run in self._records.running()
        )

    def receive(self, trial_id: str, kind: str, content: dict[str, Any], timestamp: float) -> Any:
        """Take in what a training tells; the answer where it asks."""
        if trial_id not in self._records:
            return None
        record = self._records[trial_id]
        if kind in (START, SAVED):
            self._saved_at[trial_id] = time.monotonic()
        if kind == START:
            return {"folder": f"{TRIALS_FOLDER}/{record.folder}", "checkpoints": record.resumable}
        if kind == EVALUATED:
            return dataclasses.asdict(self.evaluated(record, content))
        if kind == SAVED:
            self._saved(record, content)
        else:
            self.progress(trial_id, content, timestamp)
        return None

    def called(self, trial_id: str) -> str:
        """What a training is called on the screen."""
        return f"{role_of(trial_id)} {trial_id}"

    @abc.abstractmethod
    def evaluated(self, record: Trial, metrics: dict[str, Any]) -> Decision:
        """Write down an evaluation with what is decided on it, which is returned."""

    def _decided(
        self, record: Trial, metrics: Mapping[str, Any], stop: Stop | None, keep: Kept | None
    ) -> Decision:
        """Write down an evaluation that a training reported."""
        found = {name: float(metrics[name]) for name in (*RATES, *_TRAINING) if name in metrics}
        self._log.append(
            Evaluated(
                trial_id=record.trial_id,
                samples_seen=int(metrics["samples_seen"]),
                epoch=float(metrics.get("epoch", 0.0)),
                metrics={key: value if math.isfinite(value) else None for key, value in found.items()},
                finished=bool(metrics.get("finished")),
                stop=stop,
                keep=keep,
                sources=rates_by_source(metrics),
            )
        )
        unsaved = record.unsaved.get(int(metrics["samples_seen"]))
        return Decision(record.outcome == "running", unsaved.keep if unsaved else None)

    def progress(self, trial_id: str, metrics: dict[str, float], timestamp: float) -> None:
        """Take in loss and learning rate between two evaluations, and what a training did to go on.

        Ask for a save where one is due.
        """
        who = f"[yellow]{self.called(trial_id)}"
        if MICRO_BATCH in metrics:
            self.display.event(
                f"{who} ran out of memory[/] and goes on with micro-batch {metrics[MICRO_BATCH]:g} and accumulation "
                f"{metrics[ACCUMULATION]:g}: the effective batch is unchanged"
            )
            return
        if BROKEN_CHECKPOINT in metrics:
            how = "goes on from the one before it" if metrics[BROKEN_CHECKPOINT] else "starts again"
            self.display.event(f"{who} found its checkpoint damaged[/] and {how}")
            return
        self._records[trial_id].add_progress(metrics)
        self._progress.add(trial_id, metrics, timestamp)
        minutes, since = self._experiment.state.options.save_every, self._saved_at.get(trial_id)
        late = minutes and since is not None and time.monotonic() - since >= 60 * minutes
        if late and trial_id not in self._asked:
            self._ask("save", {trial_id})

    def flush_progress(self) -> None:
        self.display.look()
        try:
            self._progress.flush()
        except OSError as error:  # it may be lost
            self.display.event(f"[yellow]losses between evaluations are not kept[/]: {escape(str(error))}")

    def _saved(self, record: Trial, saved: dict[str, Any]) -> None:
        kept, measured = record.checkpoints, saved["samples_seen"] in record.unsaved
        # Else by a process that outlived its training's failure.
        if measured or record.trial_id in self._asked:
            self._log.append(CheckpointSaved(trial_id=record.trial_id, **saved))
            self._tidy(record, [path for path in kept if path not in record.checkpoints])
            if not measured:  # what it was asked for may come behind an evaluation
                self._asked.discard(record.trial_id)

    def _recovered(self, record: Trial, reason: str) -> None:
        self._log.append(TrialRecovered(trial_id=record.trial_id, reason=reason))
        where = (
            f"goes on from its checkpoint at epoch {record.checkpoint_epoch:.2f}"
            if record.resumable
            else "starts again"
        )
        called = self.called(record.trial_id)
        self.display.event(f"[yellow]{called} failed and {where}[/]: {escape(reason.rstrip('.'))}")

    def _tidy(self, record: Trial, over: Sequence[str], *, ended: bool = False) -> None:
        """Remove checkpoints that others have replaced; a training that has `ended` needs nothing to go on with."""
        kept = record.checkpoint if ended else None
        if not over and kept is None:
            return
        try:
            self._experiment.before_deletion()
            for path in over:
                self._files.remove(path)
            if kept is not None:
                self._files.strip(kept, is_only_for_resume)
        except cloud_errors(StorageError) as error:
            called = self.called(record.trial_id)
            self.display.event(f"[yellow]checkpoints of {called} were not deleted[/]: {escape(str(error))}")


class SearchCallback(Listener, ray.tune.Callback):
    """Runs in the driver's main thread, but for what a `Listener` does."""

    def __init__(
        self,
        base: TrainConfig,
        session: Session,
        records: Records,
        judge: Judge,
        display: LiveDisplay,
    ) -> None:
        super().__init__(session, records, display)
        self._base, self._judge = base, judge
        state = session.state
        self._before = objective_value(
            state.trial_base_rates if records is state.records else state.base_rates
        )
        """The base model's rate, measured as these trainings are."""
        self._running: set[str] = set()
        rungs = base.evaluate_at or ()
        self._passed_by = {*rungs[:-1]} - resumable_rungs(rungs)
        """Rungs, in samples, from which no repeat needs to go on."""
        self.fetch: Callable[[], None] = lambda: None
        """Takes in all that trials have reported so far."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles the callback into its own files, where threads and screens have no place."""
        return {}

    def proposed(self, trial_id: str, config: dict[str, Any]) -> None:
        """Write down a trial's settings; one that is proposed again keeps its record."""
        if trial_id in self._records:
            return
        resolved = self._base.replace(**config)
        batch = resolved.effective_batch_size
        self._log.append(TrialProposed(trial_id=trial_id, config=config, effective_batch=batch))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        trial_id = trial.config[TRIAL_ID]
        record = self._records[trial_id]
        self._log.append(TrialStarted(trial_id=trial_id, folder=Path(trial.local_path).name))
        if trial_id in self._running:
            return
        self._running.add(trial_id)
        if record.evaluations or record.resumable:
            where = f"goes on at epoch {record.checkpoint_epoch:.2f}" if record.resumable else "starts again"
            self.display.event(f"{self.called(trial_id)} {where}")
        else:
            self.display.event(f"{self.called(trial_id)} started: {escape(key_settings(record.config))}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.fetch()
        error = Path(trial.error_file).read_text(encoding="utf-8") if trial.error_file else None
        self._recovered(self._record(trial), error_line(error) if error else "lost")

    def evaluated(self, record: Trial, metrics: dict[str, Any]) -> Decision:
        """Judge it, before Ray, Optuna or the trial act."""
        before = self._records.best()
        stop = self._judge.judge(record, metrics)
        keep = self._kept(record, metrics, goes_on=stop is None and not metrics.get("finished"))
        decision = self._decided(record, metrics, stop, keep)
        if math.isfinite(objective_value(metrics)):
            news = ", best so far" if before is None or objective_value(metrics) <= rank(before) else ""
            if news and objective_value(metrics) >= self._before:
                news += f", but no better than the base model's {self._before:.2f} %"
            self.display.event(
                f"{self.called(record.trial_id)} epoch {record.epoch:.2f}: WER {record.value:.2f} %{news}"
            )
        return decision

    def _kept(self, record: Trial, result: Mapping[str, Any], *, goes_on: bool) -> Kept | None:
        """What is saved of an evaluation: all to go on from; of a trial that ends here only what may be exported.

        Nothing where it is not the trial's best. A repeat goes on from some rungs only, as nothing is decided on it.
        Only what compares clips where enough trials are ahead, whose weights stay until the export is chosen. Of one
        that had its whole budget, and so could be a finalist, only others that had it too are: those that still run may
        end otherwise.
        """
        value = objective_value(result)
        if not math.isfinite(value):
            return None
        repeat = role_of(record.trial_id) == "repeat"
        if goes_on and not (repeat and int(result["samples_seen"]) in self._passed_by):
            return "all"
        if not record.would_be_best(value):
            return None
        asked = self._experiment.state.options
        if asked.keep_checkpoints == "all" or repeat:
            return "weights"
        wanted = max(asked.n_finalists, DEFAULT_COUNT if asked.guard else 0)  # guards may pass over some
        ahead = sum(
            rank(other) < value
            for other in self._records.all()
            if other is not record and other.has_weights
            if not (wanted and result.get("finished")) or other.status == "completed"
        )
        return "weights" if ahead < max(1, wanted) else "errors"

    def _saved(self, record: Trial, saved: dict[str, Any]) -> None:
        unknown = (
            saved["samples_seen"] not in record.unsaved and saved["checkpoint"] not in record.checkpoints
        )
        if unknown and record.trial_id not in self._asked:
            self._tidy(record, [saved["checkpoint"]])
        super()._saved(record, saved)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial as what was decided on its last evaluation."""
        record = self._record(trial)
        outcome = record.outcome
        if (
            outcome != "running" or not self.interrupted
        ):  # else it has saved where it was, to go on another time
            self._end(record, "failed" if outcome == "running" else outcome)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Close the trial as failed, with the last line of its error on the screen."""
        record = self._record(trial)
        error = Path(trial.error_file).read_text(encoding="utf-8")
        place = f"{short_path(self._experiment.folder.path)}/{TRIALS_FOLDER}/{record.folder}/error.txt"
        self.display.event(
            f"[red]{self.called(record.trial_id)} failed[/]: {escape(error_line(error).rstrip('.'))}; "
            f"the whole error is in {escape(place)}"
        )
        outcome = record.outcome
        self._end(record, "diverged" if outcome == "diverged" else "failed", error)

    def _record(self, trial: Any) -> Trial:
        record = self._records[trial.config[TRIAL_ID]]
        if not record.folder:  # its process was lost before it had begun
            self.on_trial_start(0, [], trial)
        return record

    def _end(self, record: Trial, outcome: TrialOutcome, error: str | None = None) -> None:
        over = [path for path in record.checkpoints if path != record.checkpoint]
        self._log.append(
            TrialEnded(
                trial_id=record.trial_id,
                status=outcome,
                error=error,
                samples_seen=record.samples_now,
                epoch=record.epoch_now,
            )
        )
        self._tidy(record, over, ended=True)
        if record.stop is not None and outcome in ("early_stopped", "diverged"):
            self.display.event(
                f"[yellow]{self.called(record.trial_id)} {OUTCOMES[outcome]}[/] at epoch {record.epoch:.2f}: "
                f"{escape(record.stop.describe())}"
            )
        self.display.print_progress()
