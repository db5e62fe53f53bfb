"""The Optuna study in a database, a copy of what the searcher knows: open it with `optuna-dashboard URL`.

The searcher works in memory and the records in `state.json` are what a resumed search begins with. So a database
that is slow or away holds up nothing, and one that is behind is written anew in the end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.cloud_errors import cloud_errors
from tune.errors import ExperimentError
from tune.mlflow_store import without_password

if TYPE_CHECKING:
    import optuna

    from tune.records import Records, TrialRecord

STUDY_FILE = "optuna.db"
_BUSY_SECONDS = 60
"""How long to wait for a SQLite file that another process, such as the dashboard, has locked."""
_LAST_SECONDS = 120.0
"""How long the end of a search waits for the database."""


def default_study_url(folder: Path) -> str:
    """The study's database in the experiment's folder."""
    return f"sqlite:///{folder / STUDY_FILE}"


class StudyDatabase:
    """The searcher's `Mirror`: one thread writes what it hears, in order."""

    def __init__(
        self,
        url: str,
        experiment: str,
        distributions: Mapping[str, Any],
        records: Records,
        *,
        goes_on: bool,
        warn: Callable[[str], None],
    ) -> None:
        """Open the database and write the trials that there are.

        Args:
            url: as SQLAlchemy takes it.
            experiment: the study's name.
            distributions: the searched parameters.
            records: all trials.
            goes_on: the experiment is resumed: a study of its name is its own, and written anew.
            warn: is told once when the database is away.

        Raises:
            ExperimentError: the database cannot be used, or has a study of this name already.
        """
        self._url, self._experiment = url, experiment
        self._distributions, self._records, self._warn = distributions, records, warn
        self._behind = False
        self._bug: BaseException | None = None
        self._numbers: dict[str, int] = {}
        """Optuna's numbers of the trials in the database."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="study-database")
        check_study(url, None if goes_on else experiment)
        self._open(replace=goes_on)

    def proposed(self, trial_id: str, params: Mapping[str, Any]) -> None:
        """A trial has got its settings."""
        self._write(self._add, trial_id, dict(params))

    def evaluated(self, trial_id: str, samples_seen: int, wer: float) -> None:
        """A trial was measured."""
        self._write(self._report, trial_id, samples_seen, wer)

    def ended(self, record: TrialRecord) -> None:
        """A trial has ended."""
        self._write(self._tell, record.trial_id, record.status, record.best_wer)

    def finish(self) -> None:
        """Write what is left, and leave no trial running; all of it anew where some was lost on the way.

        Raises:
            RuntimeError: something went wrong that was not the database's doing (the cause of this one).
        """
        last = self._thread.submit(self._try_last)
        self._thread.shutdown(wait=False)
        concurrent.futures.wait([last], timeout=_LAST_SECONDS)
        bug = self._bug or (last.exception() if last.done() else None)  # the first is the one to look at
        if bug is not None:
            raise RuntimeError(f"writing {_where(self._url)} went wrong: {bug!r}") from bug

    def _open(self, *, replace: bool) -> None:
        import optuna

        storage = _connect(self._url)
        with _database_calls():
            if replace and self._experiment in optuna.get_all_study_names(storage):
                optuna.delete_study(study_name=self._experiment, storage=storage)
            self._study: optuna.Study = optuna.create_study(
                storage=storage, study_name=self._experiment, direction="minimize"
            )
        self._storage = storage
        self._numbers.clear()
        for record in self._records.all():
            self._add_record(record)

    def _complete(self) -> None:
        records = self._records.all()
        known = {record.trial_id for record in records}
        if self._behind or not self._numbers.keys() <= known:  # some were proposed and never began
            self._open(replace=True)
        for record in records:
            if record.status == "running":
                self._tell(record.trial_id, "interrupted", None)

    def _write(self, write: Callable[..., None], *arguments: Any) -> None:
        self._thread.submit(self._try, write, *arguments).add_done_callback(self._note_bug)

    def _note_bug(self, done: concurrent.futures.Future[None]) -> None:
        """Keep for `finish` what no one was there to see in the thread; the study is written anew there."""
        bug = done.exception()
        if bug is not None:
            self._behind, self._bug = True, bug

    def _try(self, write: Callable[..., None], *arguments: Any) -> None:
        if self._behind:
            return
        try:
            write(*arguments)
        except _DatabaseError as error:  # told, and mended in `finish`
            self._behind = True
            self._warn(f"{_where(self._url)} cannot be written now: {error}; the search goes on")

    def _try_last(self) -> None:
        try:
            self._complete()
        except _DatabaseError as error:  # nothing depends on it
            self._warn(f"{_where(self._url)} lacks some trials: {error}")

    def _add(self, trial_id: str, params: Mapping[str, Any]) -> None:
        import optuna

        self._numbers[trial_id] = len(self._numbers)
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=dict(params),
            distributions=dict(self._distributions),
            user_attrs={"trial_id": trial_id},
        )
        with _database_calls():
            self._study.add_trial(trial)

    def _add_record(self, record: TrialRecord) -> None:
        from tune.searcher import frozen_trial

        self._numbers[record.trial_id] = len(self._numbers)
        value = record.best_wer if record.status == "completed" else None
        if record.status == "early_stopped" and record.evaluations:
            value = record.evaluations[-1][1]  # as Optuna does where it is told of one
        trial = frozen_trial(record.config, record.evaluations, value, self._distributions, record)
        with _database_calls():
            self._study.add_trial(trial)

    def _report(self, trial_id: str, samples_seen: int, wer: float) -> None:
        import optuna

        number = self._numbers[trial_id]
        with _database_calls():
            stored = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
            optuna.trial.Trial(self._study, stored).report(wer, samples_seen)

    def _tell(self, trial_id: str, status: str, best_wer: float | None) -> None:
        from tune.searcher import trial_state

        number, state = self._numbers[trial_id], trial_state(status)
        value = best_wer if status == "completed" else None
        with _database_calls(ValueError):  # somebody else has ended it, or deleted it: in the dashboard maybe
            self._study.tell(number, value, state=state)


def check_study(url: str, experiment: str | None) -> None:
    """Find out whether the database can be used and, for a new experiment, has no study of its name.

    Raises:
        ExperimentError: it cannot, or it has.
    """
    import optuna

    try:
        storage = _connect(url)
        with _database_calls():
            names = optuna.get_all_study_names(storage)
    except _DatabaseError as error:
        raise ExperimentError(
            f"--optuna-storage {without_password(url)}: cannot be opened: {error}"
        ) from error
    if experiment in names:
        raise ExperimentError(
            f"--optuna-storage {without_password(url)}: has a study {experiment!r} already; choose another "
            "--experiment"
        )


class _DatabaseError(Exception):
    """The database is away, refuses, or no longer holds what was written to it; its text is one line."""


@contextlib.contextmanager
def _database_calls(*others: type[Exception]) -> Iterator[None]:
    """Around calls of Optuna that reach the database; nothing else belongs in it.

    Raises:
        _DatabaseError: instead of what says that it cannot be used, and of `others`.
    """
    import optuna

    try:
        yield
    except cloud_errors(optuna.exceptions.OptunaError, KeyError, *others) as error:
        # KeyError: so Optuna says that it does not find the study or a trial, which somebody has deleted.
        raise _DatabaseError(_first_line(error)) from error


def _connect(url: str) -> optuna.storages.RDBStorage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    connect = {"timeout": _BUSY_SECONDS} if url.startswith("sqlite") else {}
    # A driver that is not installed, a port that is no number, tables of another version of Optuna.
    with _database_calls(ImportError, ValueError, RuntimeError):
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": connect})


def _where(url: str) -> str:
    return f"the Optuna study in {without_password(url)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
