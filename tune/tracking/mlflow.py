"""MLflow as a tracker: an experiment's log as one run for the search and one for each trial and repeat.

A run is looked for by its tags before it is created, and a point that is sent again is the same point, so that
everything can be delivered twice. Where delivery stands is a tag of the search's run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.scoring.translation import TRANSLATE, true_name, words
from tune.experiments.events import GuardMeasured, ResultsWritten, SearchEnded, SessionStarted, TrialStarted
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import read_log
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, check_store, default_artifact_root, is_server
from tune.experiments.settings import read_tracking_uri
from tune.experiments.storage import Storage
from tune.experiments.training_plan import TRIAL
from tune.tracking.mlflow_connection import (
    FoundRun,
    RecordRefusedError,
    RunGoneError,
    TrackingStore,
    milliseconds,
    preload_mlflow,
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
from tune.tracking.tracker import Orders, Position, Tracker
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from tune.experiments.events import Entry
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.saved import SavedExperiment
    from tune.search.records import TrialRecord

POSITION = "tune_whisper.delivered"
"""Tag of the search's run: event, bytes of progress and check sum of `Position`."""
_Item = tuple[str, Any]
"""One of `_KINDS`, and a record of it."""
_KINDS = ("params", "metrics", "tags")

preload_mlflow()  # so that connecting is quick


class MlflowTracker(Tracker):
    """The runs of one experiment in one store."""

    name = "mlflow"

    def __init__(self, store: TrackingStore, storage: Storage) -> None:
        super().__init__()
        self._store = store
        self._storage = storage
        self._own: FoundRun | None = None
        """The experiment's own run."""
        self._trials: dict[str, FoundRun] = {}
        """Those of its trials and repeats."""
        self._unknown: set[str] = set()
        """Trials whose end was lost with the machine that wrote it: the log does not know them."""
        self._is_training = False
        self._task = "transcribe"
        """What gives the rate that decides its name."""
        self._view = ""

    def open(self, saved: SavedExperiment) -> Position:
        """See `Tracker.open`."""
        check_store(self._store.uri)
        self._is_training = saved.is_training
        own, trials = None, {}
        if self._store.find() is not None and saved.state.created:
            own = find_own(self._store, saved.state.created)
            for run in self._store.find_runs(**{PARENT: own.run_id}) if own is not None else ():
                trial = run.tags.get(TRIAL_ID)
                if trial is not None and (trial not in trials or not run.deleted):
                    trials[trial] = run
        self._own, self._trials = own, trials
        self._unknown = trials.keys() - {record.trial_id for record in saved.state.runs}
        if own is None:
            return Position()
        words = own.tags.get(POSITION, "0 0").split(" ")
        return Position(int(words[0]), int(words[1]), *words[2:3])

    def deliver(self, entries: Sequence[Entry], saved: SavedExperiment) -> None:
        """Write what these events changed: trials first, then the experiment's own run, which so ends last."""
        state, own = saved.state, self._own_run(saved)
        self._is_training, self._task = saved.is_training, saved.state.task
        kinds = {type(entry.event) for entry in entries}
        session_changes = bool(kinds & {SessionStarted, SearchEnded})
        if session_changes or (saved.is_training and TrialStarted in kinds):
            self._show(saved)
        points = event_points(entries, saved)
        told = {getattr(entry.event, "trial_id", None) for entry in entries}
        told |= {entry.event.run for entry in entries if isinstance(entry.event, GuardMeasured)}
        for record in [] if saved.is_training else state.runs:
            if record.begun and (session_changes or record.trial_id in told):
                run = self._trial_run(record, saved, own)
                if run is not None:
                    content = trial_run(record, saved, new=STATUS not in run.tags)
                    self._name(run, content, saved)
                    self._write(run, content, points.get(record.trial_id, []))
        new = STATUS not in own.tags
        if session_changes:
            self._write(own, own_run(saved, self._storage.option, new=new), points.get(None, []))
        else:
            self._log(own.run_id, [("metrics", point) for point in points.get(None, [])])
        if SearchEnded in kinds:
            for trial in self._unknown - {record.trial_id for record in state.runs}:
                self._delete(self._trials.pop(trial))
            self._unknown = set()
        if ResultsWritten in kinds:
            for path, place in final_files(saved):
                self._attempt(self._store.upload, own.run_id, path, place)
        elif new:
            self._store_early(own.run_id, saved)

    def progress(self, rows: Sequence[dict[str, Any]]) -> None:
        """See `Tracker.progress`."""
        found: dict[str, list[_Item]] = {}
        for row in rows:
            found.setdefault(row["trial_id"], []).extend(("metrics", point) for point in progress_points(row))
        for trial, items in found.items():
            run = self._own if self._is_training else self._trials.get(trial)
            if run is not None:
                self._log(run.run_id, items)

    def delivered(self, position: Position) -> None:
        """See `Tracker.delivered`."""
        if self._own is not None:
            tag = (POSITION, f"{position.events} {position.progress} {position.mark}")
            with contextlib.suppress(RunGoneError):  # the next process begins further back
                self._store.log_batch(self._own.run_id, tags=[tag])

    @property
    def facts(self) -> dict[str, Any]:
        """The ids of the runs."""
        if self._own is None:
            return {}
        runs = {trial: run.run_id for trial, run in self._trials.items() if not run.deleted}
        if TRIAL_ID in self._own.tags:
            runs = {TRIAL: self._own.run_id}
        return {"parent_run_id": self._own.run_id, "run_ids": runs}

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

    def _name(self, run: FoundRun, content: RunContent, saved: SavedExperiment) -> None:
        """At the end of a session tag the runs that stand out, and no longer those of an earlier one."""
        if saved.state.ended is None:
            return
        best = saved.state.best()
        for tag, trial in ((BEST, best.trial_id if best else None), (WINNER, saved.state.winner)):
            if trial == run.tags[TRIAL_ID]:
                content.tags[tag] = "true"
            elif tag in run.tags:
                content.tags[tag] = "false"

    def _write(self, run: FoundRun, content: RunContent, points: Sequence[Metric]) -> None:
        """Bring a run to what it is to hold, and add points; nothing where it holds that."""
        told = {key: words(text, self._task) for key, text in content.tags.items()}
        tags = {key: text for key, text in told.items() if run.tags.get(key) != text}
        same = (run.status, run.end_ms) == (content.status, content.end_ms) and not tags
        if same and not points:
            return
        if content.status == "RUNNING" != run.status:
            self._attempt(self._store.set_status, run.run_id, "RUNNING")
        metrics = [*points, *content.metrics]
        # First, by themselves: the tags say that the run has them, and MLflow splits what is more than a hundred.
        if content.params:
            self._log(run.run_id, [("params", pair) for pair in content.params.items()])
        items: list[_Item] = [("metrics", point) for point in dict.fromkeys(metrics)]
        self._log(run.run_id, [*items, *(("tags", pair) for pair in tags.items())])
        if content.end_ms is not None:
            self._attempt(self._store.set_status, run.run_id, content.status, content.end_ms)
        run.tags |= tags
        run.status, run.end_ms = content.status, content.end_ms

    def _log(self, run_id: str, items: Sequence[_Item]) -> None:
        """Write records; where the store refuses them, halves of them, so that a bad one takes no other with it."""
        kinds = {kind: [content for each, content in items if each == kind] for kind in _KINDS}
        kinds["metrics"] = [(true_name(key, self._task), *rest) for key, *rest in kinds["metrics"]]
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
        view = trials_view(settings, gpus=session is not None and session.gpus_per_trial > 0)
        if self._task == TRANSLATE:
            view = re.sub(r"\b(best_)?wer(_gain)?\b", lambda found: true_name(found[0], self._task), view)
        if view != self._view:
            self._attempt(self._store.tag_experiment, TRIALS_VIEW_TAG, view)
            self._view = view

    def _store_early(self, run_id: str, saved: SavedExperiment) -> None:
        """Store what is known from the beginning on; a place of artifacts that is away holds up nothing else."""
        self.problem = None
        try:
            for path, place in first_files(saved):
                self._store.upload(run_id, path, place)
        except TrackingError as error:  # they are stored once more at the end, which does not go on without
            self.problem = str(error)


def make_tracker(orders: Orders) -> MlflowTracker:
    """The tracker of the orders' MLflow store."""
    uri = orders.tracking_uri
    root = None if is_server(uri) else default_artifact_root(Path(orders.folder))
    return MlflowTracker(TrackingStore(uri, orders.name, root), Storage.parse(orders.storage))


def find_own(store: TrackingStore, created: float) -> FoundRun | None:
    """The run of the search, or of the single training, that began then; also one that was deleted."""
    found = store.find_runs(**{EXPERIMENT_KEY: experiment_key(created)})
    return min(found, key=lambda run: run.deleted, default=None)


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
