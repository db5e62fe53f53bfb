"""MLflow as a tracker: an experiment's log as one run for the search and one for each trial and repeat.

A run is looked for by its tags before it is created, and a point that is sent again is the same point, so that
everything can be delivered twice. Where delivery stands is a tag of the search's run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.experiments.log import EVENTS_FILE, read_log
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, check_store
from tune.experiments.storage import Storage
from tune.tracking.mlflow_connection import (
    FoundRun,
    RecordRefusedError,
    RunGoneError,
    TrackingStore,
    preload_mlflow,
)
from tune.tracking.mlflow_events import (
    EXPERIMENT_KEY,
    NAMED_BY,
    PARENT,
    TRAINING_TRIAL,
    TRIAL_ID,
    Translation,
    experiment_key,
    first_files,
    folder_files,
)
from tune.tracking.mlflow_writes import RunWrites, attempt, milliseconds
from tune.tracking.tracker import Orders, Position, RefusedError
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from tune.experiments.events import Entry
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.saved import SavedExperiment

POSITION = "tune_whisper.delivered"
"""Tag of the search's run: event, bytes of progress and check sum of `Position`."""

preload_mlflow()  # so that connecting is quick


class MlflowTracker:
    """The runs of one experiment in one store."""

    name = "mlflow"

    def __init__(self, store: TrackingStore, storage: Storage) -> None:
        self.problem: str | None = None
        """What the store does not take although it takes all else: files."""
        self._store = store
        self._storage = storage
        self._saved: SavedExperiment | None = None
        self._parent: FoundRun | None = None
        self._children: dict[str, FoundRun] = {}
        self._named: dict[str, set[str]] = {tag: set() for tag in NAMED_BY}
        self._replayed: set[str] | None = None
        """Where the log is told from its beginning: the trials whose start was told since then."""
        self._sure = False
        """Whether the runs that the store has are all known: no answer was lost."""

    def open(self, saved: SavedExperiment) -> Position:
        """See `Tracker.open`."""
        check_store(self._store.uri)
        self._store.experiment_id = self._store.reach() or ""
        self._look_up(saved)
        if self._parent is None:
            return Position()
        words = self._parent.tags.get(POSITION, "0 0").split(" ")
        return Position(int(words[0]), int(words[1]), *words[2:3])

    def deliver(self, entries: Sequence[Entry], saved: SavedExperiment) -> None:
        """See `Tracker.deliver`."""
        if not entries:
            return
        self._saved = saved
        if not self._sure:
            self._look_up(saved)
        self._sure = False
        if entries[0].number == 1:
            self._replayed = set()
        told = Translation(saved, self._storage.option)
        told.add(entries)
        refused: list[str] = []
        self._send(told, saved, refused)
        self._sure = True
        _raise_refused(refused)

    def progress(self, rows: Sequence[dict[str, Any]]) -> None:
        """See `Tracker.progress`."""
        if self._saved is None:
            return
        told = Translation(self._saved, self._storage.option)
        refused: list[str] = []
        for row in rows:
            told.add_progress(row)
        for trial_id, writes in told.runs.items():
            run = self._parent if trial_id is None else self._children.get(trial_id)
            if run is not None:
                writes.send(self._store, run.run_id, refused)
        _raise_refused(refused)

    def delivered(self, position: Position) -> None:
        """See `Tracker.delivered`."""
        if self._parent is None:
            return
        tag = (POSITION, f"{position.events} {position.progress} {position.mark}")
        refused: list[str] = []
        attempt(refused, lambda run: self._store.log_batch(run, tags=[tag]), self._parent.run_id)
        _raise_refused(refused)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def facts(self) -> dict[str, Any]:
        """The ids of the runs."""
        if self._parent is None:
            return {}
        runs = {trial: run.run_id for trial, run in self._children.items() if not run.deleted}
        if TRIAL_ID in self._parent.tags:
            runs = {TRAINING_TRIAL: self._parent.run_id}
        return {"parent_run_id": self._parent.run_id, "run_ids": runs}

    def _look_up(self, saved: SavedExperiment) -> None:
        """Find the experiment's runs."""
        self._saved, self._sure = saved, True
        self._parent, self._children = None, {}
        if not self._store.experiment_id or not saved.state.created:
            return
        self._parent = find_parent(self._store, saved)
        if self._parent is None:
            return
        for run in self._store.find_runs(**{PARENT: self._parent.run_id}):
            trial = run.tags.get(TRIAL_ID)
            if trial is not None and (trial not in self._children or not run.deleted):
                self._children[trial] = run
        self._named = {
            tag: {
                key for key, run in self._children.items() if run.tags.get(tag) == "true" and not run.deleted
            }
            for tag in NAMED_BY
        }

    def _send(self, told: Translation, saved: SavedExperiment, refused: list[str]) -> None:
        """Write what was translated: trials first, then the search's run, which so ends last."""
        parent = told.runs.pop(None, RunWrites())
        self._parent = run = self._parent_run(parent, saved)
        if told.view is not None:
            attempt(refused, self._store.tag_experiment, TRIALS_VIEW_TAG, told.view)
        if told.named is not None:
            self._name(told.named, told.runs)
            for trial in self._children.keys() - {record.trial_id for record in saved.state.runs}:
                self._delete(self._children.pop(trial), refused)
            parent.files = [*first_files(saved), *parent.files]
        for key, writes in told.runs.items():
            child = self._child(str(key), writes, run, refused)
            if child is not None:
                self._children[str(key)] = self._write(child, writes, refused)
        self._parent = self._write(run, parent, refused)
        for tag, standing_out in (told.named or {}).items():
            self._named[tag] = set() if standing_out is None else {standing_out}
        if parent.started is not None:
            self._store_early(run.run_id, saved)

    def _write(self, run: FoundRun, writes: RunWrites, refused: list[str]) -> FoundRun:
        if writes.status == "RUNNING" == run.status:
            writes.status = None
        writes.send(self._store, run.run_id, refused)
        return dataclasses.replace(run, status=writes.status or run.status)

    def _parent_run(self, writes: RunWrites, saved: SavedExperiment) -> FoundRun:
        """The search's run, created where there is none."""
        if self._parent is not None:
            return self._parent
        if not self._store.experiment_id:
            self._store.connect()
        started = milliseconds(saved.state.created)
        tags = {**writes.tags, EXPERIMENT_KEY: experiment_key(saved)}
        run_id = self._store.create_run(saved.name, tags, started)
        return FoundRun(run_id, "RUNNING", started, False, tags)

    def _child(self, trial: str, writes: RunWrites, parent: FoundRun, refused: list[str]) -> FoundRun | None:
        """The run of a trial, created where there is none and the trial has begun."""
        found = self._children.get(trial)
        if writes.started is None:
            return found
        started = milliseconds(writes.started)
        if self._replayed is not None and trial not in self._replayed:
            self._replayed.add(trial)
            if found is not None and found.start_ms != started:
                self._delete(found, refused)
                found = None
        if found is not None:
            return found
        tags = {**writes.tags, PARENT: parent.run_id}
        try:
            run_id = self._store.create_run(writes.name, tags, started)
        except (RecordRefusedError, RunGoneError) as error:
            refused += [str(error)] * (1 + len(writes.items))
            return None
        return FoundRun(run_id, "RUNNING", started, False, tags)

    def _name(self, named: Mapping[str, str | None], runs: dict[str | None, RunWrites]) -> None:
        """Tag the runs of trials that stand out, and no longer those that an earlier session named."""
        for tag, trial in named.items():
            for key in self._named[tag] | ({trial} - {None}):
                writes = runs.setdefault(key, RunWrites())
                writes.tags[tag] = "true" if key == trial else "false"

    def _delete(self, run: FoundRun, refused: list[str]) -> None:
        """Leave out the run of a trial that the log does not know: its end was lost with the machine that wrote it."""
        if not run.deleted:
            attempt(refused, self._store.delete_run, run.run_id)

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
    root = None if orders.artifact_root is None else Path(orders.artifact_root)
    store = TrackingStore(orders.tracking_uri, orders.name, root)
    return MlflowTracker(store, Storage.parse(orders.storage))


def _raise_refused(reasons: Sequence[str]) -> None:
    if reasons:
        raise RefusedError(len(reasons), reasons[-1])


def find_parent(store: TrackingStore, saved: SavedExperiment) -> FoundRun | None:
    """The run of a search, or of a single training; also one that was deleted."""
    found = store.find_runs(**{EXPERIMENT_KEY: experiment_key(saved)})
    return min(found, key=lambda run: run.deleted, default=None)


def attach_folder(folder: ExperimentFolder, files: Path) -> int:
    """Store all files of a folder as artifacts of the experiment's own run, below the folder's name.

    Files of the same names are replaced. Nothing else of the run changes.

    Args:
        folder: of the experiment; its small files are on this machine.
        files: what to store.

    Returns:
        How many files were stored.

    Raises:
        ExperimentError: `experiment.yaml` or the log cannot be read.
        TrackingError: the store cannot be reached, has no run of this experiment, or the run's artifacts are gone.
    """
    from tune.experiments.settings import read_tracking_uri

    uri = read_tracking_uri(folder)
    check_store(uri)
    store = TrackingStore(uri, folder.name, None)
    store.connect(create=False)
    run_id = _own_run(store, folder)
    place = store.artifact_folder(run_id)
    if place is not None and not place.is_dir():
        # MLflow would make a folder in the old place, in which nobody looks.
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: its artifacts' folder {place} is gone, as when an experiment was moved"
        )
    found = list(folder_files(files))
    for file, where in found:
        store.upload(run_id, file, where)
    return len(found)


def _own_run(store: TrackingStore, folder: ExperimentFolder) -> str:
    """The id of an experiment's own run; raises `TrackingError` where it is not known."""
    from tune.experiments.saved import SavedExperiment
    from tune.experiments.settings import ExperimentSettings

    log, older = folder.path / EVENTS_FILE, folder.path / "state.json"
    if log.exists():
        run = find_parent(store, SavedExperiment(folder, ExperimentSettings(), read_log(log)))
        if run is not None:
            return run.run_id
    elif older.exists():  # of tune-whisper 0.1
        return str(json.loads(older.read_text(encoding="utf-8"))["parent_run_id"])
    raise TrackingError(
        f"MLflow store {hide_password(store.uri)}: the run of experiment {folder.name!r} is not known"
    )
