"""An experiment in MLflow: one run for the search and one for each trial, repeat and average.

A run is looked for by its tags before it is created, and a point that is sent again is the same point, so that
everything can be sent twice. How far the store is, is a tag of the search's run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.scoring.objectives import words
from tune.experiments.events import ResultsWritten
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import read_log
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, check_store, default_artifact_root, is_server
from tune.experiments.settings import read_tracking_uri
from tune.experiments.training_plan import TRIAL
from tune.tracking.mlflow_connection import (
    FoundRun,
    RecordRefusedError,
    RunGoneError,
    TrackingStore,
    milliseconds,
)
from tune.tracking.mlflow_runs import (
    BEST,
    EXPERIMENT_KEY,
    PARENT,
    STATUS,
    TRIAL_ID,
    WINNER,
    Metric,
    RunContent,
    event_points,
    experiment_key,
    final_files,
    first_files,
    folder_files,
    own_run,
    progress_points,
    trial_run,
)
from tune.tracking.mlflow_view import trials_view
from tune.tracking.sync import Log, Store, Target
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.saved import SavedExperiment
    from tune.search.records import TrialRecord

POSITION = "tune_whisper.delivered"
"""Tag of the search's run: number of the last event that the store has, bytes of progress, and time of that event."""
_Item = tuple[str, Any]
"""One of `_KINDS`, and a record of it."""
_KINDS = ("params", "metrics", "tags")


class MlflowStore(Store):
    """The runs of one experiment in one store."""

    def __init__(self, store: TrackingStore, option: str) -> None:
        """`option` ends the commands that the search's note shows, as ` --storage DIR`."""
        super().__init__()
        self._store = store
        self._option = option
        self._opened = False
        self._own: FoundRun | None = None
        """The experiment's own run."""
        self._trials: dict[str, FoundRun] = {}
        """Those of its trials, repeats and averages."""
        self._view = ""

    def sync(self, log: Log) -> None:
        """See `Store.sync`: trials first, then the experiment's own run, which so ends last."""
        saved = log.saved
        if not self._opened:
            self._open(log)
            self._opened = True
        if not log.entries:
            return
        own = self._own_run(saved)
        new = len(log.entries) > self.delivered
        rows, progress = log.progress(self.progress)
        points = event_points(log.entries, saved, after=self.delivered) if new else {}
        for row in rows:
            points.setdefault(None if saved.is_training else row["trial_id"], []).extend(progress_points(row))
        if new:
            self._show(saved)
        for record in [] if saved.is_training else saved.state.runs:
            if record.begun and (new or points.get(record.trial_id)):
                run = self._trial_run(record, saved, own)
                if run is not None:
                    content = trial_run(record, saved, new=STATUS not in run.tags)
                    self._tag_best(run, content, saved)
                    self._write(run, content, points.get(record.trial_id, []), saved.state.task)
        self._write(
            own,
            own_run(saved, self._option, new=STATUS not in own.tags),
            points.get(None, []),
            saved.state.task,
        )
        if new:
            self._finish(own, log)
        self.delivered, self.progress = len(log.entries), progress
        with contextlib.suppress(RunGoneError):  # the next process begins further back
            position = f"{self.delivered} {self.progress} {log.entries[-1].time}"
            self._store.log_batch(own.run_id, tags=[(POSITION, position)])
        self.run_ids = {trial: run.run_id for trial, run in self._trials.items() if not run.deleted}
        if saved.is_training:
            self.run_ids = {TRIAL: own.run_id}

    def _open(self, log: Log) -> None:
        """Connect, and find out what the store has."""
        saved = log.saved
        check_store(self._store.uri)
        if self._store.find() is None or not saved.state.created:
            return
        self._own = find_own(self._store, saved.state.created)
        for run in self._store.find_runs(**{PARENT: self._own.run_id}) if self._own is not None else ():
            trial = run.tags.get(TRIAL_ID)
            if trial is not None and (trial not in self._trials or not run.deleted):
                self._trials[trial] = run
        events, progress, moment = (self._own.tags.get(POSITION, "") if self._own else "").split() or "000"
        # Another event of that number is there where the log was brought back from an older copy.
        if any(f"{entry.time}" == moment for entry in log.entries[int(events) - 1 : int(events)]):
            self.delivered, self.progress = int(events), int(progress)

    def _own_run(self, saved: SavedExperiment) -> FoundRun:
        """The experiment's own run, created where there is none."""
        if self._own is None:
            self._store.connect()
            tags = {EXPERIMENT_KEY: experiment_key(saved.state.created)}
            self._own = self._store.create_run(saved.name, tags, milliseconds(saved.state.created))
        return self._own

    def _trial_run(self, record: TrialRecord, saved: SavedExperiment, own: FoundRun) -> FoundRun | None:
        """The run of a trial that has begun, created where there is none; None where the store refuses it."""
        run, started = self._trials.get(record.trial_id), milliseconds(record.begun)
        if run is not None and run.start_ms != started:  # of a log whose end was lost
            self._delete(run)
            run = None
        if run is None:
            tags = {PARENT: own.run_id, TRIAL_ID: record.trial_id}
            name = trial_run(record, saved, new=False).name
            run = self._attempt(self._store.create_run, name, tags, started)
            if run is not None:
                self._trials[record.trial_id] = run
        return run

    def _tag_best(self, run: FoundRun, content: RunContent, saved: SavedExperiment) -> None:
        """At the end of a session tag the runs that stand out, and no longer those of an earlier one."""
        if saved.state.ended is None:
            return
        best = saved.state.best()
        for tag, trial in ((BEST, best.trial_id if best else None), (WINNER, saved.state.winner)):
            if trial == run.tags[TRIAL_ID]:
                content.tags[tag] = "true"
            elif tag in run.tags:
                content.tags[tag] = "false"

    def _write(self, run: FoundRun, content: RunContent, points: Sequence[Metric], task: str) -> None:
        """Bring a run to what it is to hold, and add points; nothing where it holds that."""
        tags = {key: words(text, task) for key, text in content.tags.items()}
        tags = {key: text for key, text in tags.items() if run.tags.get(key) != text}
        same = (run.status, run.end_ms) == (content.status, content.end_ms) and not tags
        if same and not points:
            return
        if content.status == "RUNNING" != run.status:
            self._attempt(self._store.set_status, run.run_id, "RUNNING")
        # First, by themselves: the tags say that the run has them, and MLflow splits what is more than a hundred.
        if content.params:
            self._log(run.run_id, [("params", pair) for pair in content.params.items()])
        found = dict.fromkeys([*points, *([] if same else content.metrics)])
        items: list[_Item] = [("metrics", point) for point in found]
        self._log(run.run_id, [*items, *(("tags", pair) for pair in tags.items())])
        if content.end_ms is not None and (run.status, run.end_ms) != (content.status, content.end_ms):
            self._attempt(self._store.set_status, run.run_id, content.status, content.end_ms)
        run.tags |= tags
        run.status, run.end_ms = content.status, content.end_ms

    def _log(self, run_id: str, items: Sequence[_Item]) -> None:
        """Write records; where the store refuses them, halves of them, so that a bad one takes no other with it."""
        kinds = {kind: [content for each, content in items if each == kind] for kind in _KINDS}
        try:
            self._store.log_batch(run_id, **kinds)
        except RecordRefusedError as error:
            half = len(items) // 2
            if half and not isinstance(error, RunGoneError):
                self._log(run_id, items[:half])
                self._log(run_id, items[half:])
            else:
                self.refused += [str(error)] * len(items)

    def _attempt(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call; None where the store refuses for good."""
        try:
            return call(*arguments)
        except RecordRefusedError as error:
            self.refused.append(str(error))
            return None

    def _delete(self, run: FoundRun) -> None:
        if not run.deleted:
            self._attempt(self._store.delete_run, run.run_id)

    def _show(self, saved: SavedExperiment) -> None:
        """Let the page of the experiment show what is searched."""
        session, trials, space = saved.state.session, saved.state.records.all(), saved.space
        settings = list(space.parameters) if space else [name for trial in trials for name in trial.config]
        view = trials_view(
            settings, saved.state.objective, gpus=session is not None and session.gpus_per_trial > 0
        )
        if view != self._view:
            self._attempt(self._store.tag_experiment, TRIALS_VIEW_TAG, view)
            self._view = view

    def _finish(self, own: FoundRun, log: Log) -> None:
        """Store files, and take back runs of trials that the log does not know: its end was lost with a machine."""
        saved, written = log.saved, [e.number for e in log.entries if isinstance(e.event, ResultsWritten)]
        if self.delivered == 0:
            # Stored once more at the end: a place of artifacts that is away now holds up nothing else.
            with contextlib.suppress(TrackingError):
                for path, place in first_files(saved):
                    self._store.upload(own.run_id, path, place)
        if written and written[-1] > self.delivered:
            for path, place in final_files(saved):
                self._attempt(self._store.upload, own.run_id, path, place)
            for trial in self._trials.keys() - {record.trial_id for record in saved.state.runs}:
                self._delete(self._trials.pop(trial))


def make_store(target: Target) -> MlflowStore:
    """The MLflow store of a target."""
    uri, folder = target.tracking_uri, target.folder
    root = None if is_server(uri) else default_artifact_root(folder.path)
    return MlflowStore(TrackingStore(uri, folder.name, root), target.option)


def find_own(store: TrackingStore, created: float) -> FoundRun | None:
    """The run of the search, or of the single training, that began then; also one that was deleted."""
    found = store.find_runs(**{EXPERIMENT_KEY: experiment_key(created)})
    return min(found, key=lambda run: run.deleted, default=None)


def check_known(uri: str, experiment: str, created: float) -> None:
    """Find out whether a store has the run of an experiment that began then.

    Raises:
        TrackingError: it has not, or cannot be reached.
    """
    check_store(uri)
    store = TrackingStore(uri, experiment, None)
    if store.find() is None or find_own(store, created) is None:
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: has no run of {experiment!r}; --tracking-uri must name the store "
            "that the search used"
        )


def attach_folder(folder: ExperimentFolder, files: Path) -> None:
    """Store all files of a folder as artifacts of the experiment's own run, below the folder's name.

    Files of the same names are replaced. Nothing else of the run changes.

    Args:
        folder: of the experiment; its small files are on this machine.
        files: what to store.

    Raises:
        ExperimentError: `experiment.yaml` or the log cannot be read.
        TrackingError: the store cannot be reached, has no run of this experiment, or the run's artifacts are gone.
    """
    uri, log, run_id = read_tracking_uri(folder), folder.path / EVENTS_FILE, None
    check_store(uri)
    store = TrackingStore(uri, folder.name, None)
    if store.find() is not None and log.exists():
        own = find_own(store, read_log(log).created)
        run_id = own.run_id if own else None
    if run_id is None:
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: the run of experiment {folder.name!r} is not known"
        )
    place = store.artifact_folder(run_id)
    if place is not None and not place.is_dir():
        # MLflow would make a folder in the old place, in which nobody looks.
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: its artifacts' folder {place} is gone, as when an experiment was moved"
        )
    for file, where in folder_files(files):
        store.upload(run_id, file, where)
