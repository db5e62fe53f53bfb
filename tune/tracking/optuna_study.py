"""The Optuna study of a search, for people to look at: `optuna-dashboard experiments/NAME/optuna_journal.log`.

It is what the log folds to; the searcher learns from the log and never reads it. Each session writes it anew, as does
a sync that finds something there which cannot become what the log says.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.search.scheduler import TRIAL_ID
from tune.search.searcher import trial_state
from tune.tracking.sync import Log, Store, Target
from tune.util.errors import TrackingError, first_line

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from tune.experiments.experiment import Experiment
    from tune.search.records import Trial

STUDY_FILE = "optuna_journal.log"


class OptunaStore(Store):
    """Writes the study, through Optuna's storage interface, to a journal."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._journal = target.folder.path / STUDY_FILE
        self._storage: BaseStorage | None = None
        """None before the first event."""
        self._held: dict[str, tuple[int, FrozenTrial]] = {}
        """The trials in the study, in its order, with their ids there."""

    def sync(self, log: Log) -> None:
        if self.delivered == len(log.entries):
            return
        # Numbers are trials; an average of several, which no searcher proposed, is called otherwise.
        runs = [run for run in log.saved.state.runs if run.trial_id.isdigit()]
        wanted = {run.trial_id: _trial(run, log.saved) for run in runs}
        with _calls(self._journal):
            if self._storage is None or not self._journal.exists() or not self._can_become(wanted):
                self._storage = self._begin(log.saved.name)
            for name, trial in wanted.items():
                self._write(self._storage, name, trial)
        self.delivered = len(log.entries)

    def _can_become(self, wanted: dict[str, FrozenTrial]) -> bool:
        """Whether trials can be made of what the study holds: nothing that has ended there can be changed."""
        return all(
            before.intermediate_values.keys() <= wanted[name].intermediate_values.keys()
            and not (before.state.is_finished() and _outcome(before) != _outcome(wanted[name]))
            for name, (_, before) in self._held.items()
        )

    def _begin(self, name: str) -> BaseStorage:
        """An empty study, in place of the one that was there."""
        import optuna
        from optuna.storages import journal

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        locks = self._journal.parent.glob(f"{STUDY_FILE}.lock*")  # left by a process that was killed
        for file in [self._journal, *locks]:
            file.unlink(missing_ok=True)
        # The other kind of lock, the dashboard's, has the same name and needs symbolic links.
        lock = journal.JournalFileOpenLock(str(self._journal))
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(self._journal), lock))
        self._study = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], name)
        self._held = {}
        return storage

    def _write(self, storage: BaseStorage, name: str, trial: FrozenTrial) -> None:
        if name not in self._held:
            self._held[name] = storage.create_new_trial(self._study, trial), trial
            return
        number, before = self._held[name]
        for seen, value in trial.intermediate_values.items():
            if before.intermediate_values.get(seen) != value:
                storage.set_trial_intermediate_value(number, seen, value)
        if trial.state != before.state:
            storage.set_trial_state_values(number, trial.state, trial.values)
        self._held[name] = number, trial


def _outcome(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.values, trial.intermediate_values


def _trial(run: Trial, saved: Experiment) -> FrozenTrial:
    """The trial as the study is to hold it; one that is open when the search ends is closed there."""
    from optuna.trial import FrozenTrial, TrialState

    state, space = saved.state, saved.space
    kind = trial_state(run.outcome if state.ended else run.status)
    if state.ended and kind == TrialState.RUNNING:
        kind = TrialState.FAIL
    value = run.best_value if kind == TrialState.COMPLETE else None
    if kind == TrialState.PRUNED and run.evaluations:
        value = run.evaluations[-1][1]  # as Optuna does where it is told of one
    end = run.ended or state.last_event_time
    distributions = space.to_optuna() if space else {}
    # One that lies outside a space which was changed has no params.
    point = space.point_of(run.config, saved.shared) if space else None
    params = space.named(point) if space and point else {}
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=kind,
        value=value,
        datetime_start=datetime.datetime.fromtimestamp((run.started or end) - run.seconds),
        datetime_complete=datetime.datetime.fromtimestamp(end) if kind.is_finished() else None,
        params=params,
        distributions={name: distributions[name] for name in params},
        user_attrs={TRIAL_ID: run.trial_id},
        system_attrs={},
        intermediate_values=dict(run.evaluations),
    )


@contextlib.contextmanager
def _calls(journal: Path) -> Iterator[None]:
    """Around calls that reach the journal; nothing else belongs in it."""
    import optuna

    try:
        yield
    # KeyError: somebody has deleted the study. ValueError, AssertionError: the journal was damaged since it was opened.
    except (optuna.exceptions.OptunaError, OSError, KeyError, ValueError, AssertionError) as error:
        raise TrackingError(f"{journal}: cannot be used: {first_line(error)}") from error
