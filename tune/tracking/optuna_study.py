"""The Optuna study of a search, for people to look at: `optuna-dashboard experiments/NAME/optuna_journal.log`.

It is what the log folds to, written trial by trial; the searcher learns from the log and never reads it. Where it
holds what the log does not say, it is made anew: the journal is damaged, somebody ended a trial in the dashboard, one
that was closed with the search runs again.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tune.search.scheduler import TRIAL_ID
from tune.search.searcher import trial_state
from tune.tracking.sync import Log, Store, Target
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import ExperimentError, TrackingError, first_line
from tune.util.redact import without_password

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from tune.experiments.saved import SavedExperiment
    from tune.experiments.state import SearchState
    from tune.search.records import TrialRecord

STUDY_FILE = "optuna_journal.log"
_CREATED = "experiment_created"
"""User attribute of the study: when the experiment of its name was made."""
_BUSY_SECONDS = 60
"""How long to wait for a SQLite file that another process, such as the dashboard, has locked."""


class OptunaStore(Store):
    """Writes the study, through Optuna's storage interface."""

    def __init__(self, place: str | Path) -> None:
        """`place`: a database's URL, as SQLAlchemy takes it, or the file of Optuna's own journal."""
        super().__init__()
        self._place = place
        self._storage: BaseStorage | None = None
        """None before the first event."""
        self._held: dict[str, tuple[int, FrozenTrial]] = {}
        """The trials in the study, in its order, with their ids there."""

    def sync(self, log: Log) -> None:
        """See `Store.sync`."""
        saved, state = log.saved, log.saved.state
        if not log.entries:
            if isinstance(self._place, str):
                check_study(self._place, saved.name)
            return
        if self._storage is not None and self.delivered == len(log.entries):
            return
        with _calls(self._place):
            if self._storage is None or (isinstance(self._place, Path) and not self._place.exists()):
                self._space = saved.space
                self._distributions = self._space.to_optuna() if self._space else {}
                self._storage = _connect(self._place)
                self._find(self._storage, saved)
            self._storage.get_study_name_from_id(self._study)  # raises where somebody has deleted it
            # Numbers are trials; an average of several, which no searcher proposed, is called otherwise.
            wanted = {run.trial_id: self._trial(run, state) for run in state.runs if run.trial_id.isdigit()}
            if list(self._held) != list(wanted)[: len(self._held)] or not all(
                _continues(wanted[name], held) for name, (_, held) in self._held.items()
            ):
                self._storage.delete_study(self._study)
                self._create(self._storage, saved)
            for name, trial in wanted.items():
                self._held[name] = self._write(self._storage, trial, self._held.get(name))
        self.delivered = len(log.entries)

    def _find(self, storage: BaseStorage, saved: SavedExperiment) -> None:
        """Find the experiment's study and its trials, or make it."""
        try:
            self._study = storage.get_study_id_from_name(saved.name)
        except KeyError:
            self._create(storage, saved)
            return
        attributes = storage.get_study_user_attrs(self._study)
        trials = storage.get_all_trials(self._study, deepcopy=False)
        if attributes.get(_CREATED) != saved.settings.created:
            # An empty one is what a kill in the middle of `_create` leaves.
            if isinstance(self._place, str) and (trials or attributes):
                raise _taken(self._place, saved.name)
            storage.delete_study(self._study)
            self._create(storage, saved)
            return
        names = [trial.user_attrs.get(TRIAL_ID, f"number {trial.number}") for trial in trials]
        self._held = {name: (trial._trial_id, trial) for name, trial in zip(names, trials, strict=True)}

    def _create(self, storage: BaseStorage, saved: SavedExperiment) -> None:
        from optuna.study import StudyDirection

        self._study, self._held = storage.create_new_study([StudyDirection.MINIMIZE], saved.name), {}
        storage.set_study_user_attr(self._study, _CREATED, saved.settings.created)

    def _write(
        self, storage: BaseStorage, trial: FrozenTrial, held: tuple[int, FrozenTrial] | None
    ) -> tuple[int, FrozenTrial]:
        if held is None:
            return storage.create_new_trial(self._study, trial), trial
        number, before = held
        for seen, wer in trial.intermediate_values.items():
            if before.intermediate_values.get(seen) != wer:
                storage.set_trial_intermediate_value(number, seen, wer)
        if trial.state != before.state:
            storage.set_trial_state_values(number, trial.state, trial.values)
        return number, trial

    def _trial(self, run: TrialRecord, state: SearchState) -> FrozenTrial:
        """The trial as the study is to hold it; one that is open when the search ends is closed there."""
        from optuna.trial import FrozenTrial, TrialState

        kind = trial_state(run.outcome if state.ended else run.status)
        if state.ended and kind == TrialState.RUNNING:
            kind = TrialState.FAIL
        value = run.best_value if kind == TrialState.COMPLETE else None
        if kind == TrialState.PRUNED and run.evaluations:
            value = run.evaluations[-1][1]  # as Optuna does where it is told of one
        end = run.ended or state.heard
        params = self._space.named(run.config) if self._space else {}
        return FrozenTrial(
            number=-1,
            trial_id=-1,
            state=kind,
            value=value,
            datetime_start=datetime.datetime.fromtimestamp((run.started or end) - run.seconds),
            datetime_complete=datetime.datetime.fromtimestamp(end) if kind.is_finished() else None,
            params=params,
            distributions={name: self._distributions[name] for name in params},
            user_attrs={TRIAL_ID: run.trial_id},
            system_attrs={},
            intermediate_values=dict(run.evaluations),
        )


def check_study(url: str, experiment: str | None) -> None:
    """Find out whether the database can be used and, for a new experiment, has no study of its name.

    Raises:
        ExperimentError: it cannot, or it has.
    """
    try:
        with _calls(url):
            studies = _connect(url).get_all_studies()
    except TrackingError as error:
        raise ExperimentError(str(error)) from error
    if experiment in {study.study_name for study in studies}:
        raise _taken(url, str(experiment))


def _connect(place: str | Path) -> BaseStorage:
    """Open a database, its tables made where there are none; or a journal, empty where it cannot be read to its end.

    Nobody else writes to the journal now: a lock beside it is one of a process that was killed.
    """
    import optuna
    from optuna.storages import journal

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if isinstance(place, str):
        options = {"timeout": _BUSY_SECONDS} if place.startswith("sqlite") else {}
        return optuna.storages.RDBStorage(place, engine_kwargs={"connect_args": options})
    for lock in place.parent.glob(f"{place.name}.lock*"):
        lock.unlink()

    def read() -> BaseStorage:
        # The other kind of lock, the dashboard's, has the same name and needs symbolic links.
        backend = journal.JournalFileBackend(str(place), journal.JournalFileOpenLock(str(place)))
        return optuna.storages.JournalStorage(backend)

    try:
        # Optuna takes no offence at a damaged last line until it has written another one behind it.
        lines = place.read_bytes().splitlines(keepends=True) if place.exists() else []
        if lines and not (lines[-1].endswith(b"\n") and json.loads(lines[-1])):
            raise ValueError("its last line is torn")
        return read()
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError):  # all that its reader raises
        place.unlink()
        return read()


@contextlib.contextmanager
def _calls(place: str | Path) -> Iterator[None]:
    """Around calls that reach the store; nothing else belongs in it."""
    import optuna

    shown = str(place) if isinstance(place, Path) else f"--optuna-storage {without_password(place)}"
    # KeyError: the study or a trial is not found, which somebody has deleted. ImportError: a driver that is not
    # installed. RuntimeError: tables of another version of Optuna. ValueError, AssertionError: a port that is no
    # number, a journal that was damaged since it was opened.
    known = (optuna.exceptions.OptunaError, KeyError, ImportError, RuntimeError, ValueError, AssertionError)
    try:
        yield
    except cloud_errors(*known) as error:
        reason = first_line(error).replace(str(place), shown)
        raise TrackingError(f"{shown}: cannot be used: {reason}") from error


def _continues(trial: FrozenTrial, held: FrozenTrial) -> bool:
    """Whether a trial can be made of what the study holds; nothing that has ended there can be changed."""
    new, old = trial.intermediate_values, held.intermediate_values
    if held.state.is_finished():
        return bool(
            (trial.state, trial.value, trial.params, new) == (held.state, held.value, held.params, old)
        )
    return bool(trial.params == held.params and old.keys() <= new.keys())


def _taken(url: str, experiment: str) -> ExperimentError:
    shown = without_password(url)
    return ExperimentError(
        f"--optuna-storage {shown}: has a study {experiment!r} already; choose another --experiment"
    )


def make_store(target: Target) -> OptunaStore:
    """The experiment's study."""
    return OptunaStore(target.optuna_url or target.folder.path / STUDY_FILE)
