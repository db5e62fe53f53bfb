"""The Optuna study in a database, a copy of what the searcher knows: open it with `optuna-dashboard URL`.

The searcher works in memory and the records in `state.json` are what a resumed search begins with. So a database
that is slow or away holds up nothing, and one that is behind is written anew in the end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.errors import ExperimentError
from tune.mlflow_store import without_password
from tune.records import TrialRecord
from tune.study_connection import StudyDatabaseError, connect, database_calls, shown_place

if TYPE_CHECKING:
    import optuna

    from tune.records import Records, Status

STUDY_FILE = "optuna.db"
_SPACING = 1.0
"""Seconds between two writes: what comes meanwhile of a trial is written in one."""
_LAST_SECONDS = 120.0
"""How long the end of a search waits for the database."""


def default_study_url(folder: Path) -> str:
    """The study's database in the experiment's folder."""
    return f"sqlite:///{folder / STUDY_FILE}"


@dataclasses.dataclass
class _News:
    """What has become known of a trial since it was last written."""

    params: dict[str, Any] | None = None
    """None where it was written before."""
    evaluations: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    status: Status = "running"
    best_wer: float | None = None


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
        self._lock = threading.Lock()
        self._waiting: dict[str, _News] = {}
        """What the thread has yet to write, by trial."""
        self._began = -math.inf
        """When it last began to."""
        self._closing = threading.Event()
        self._behind = False
        self._bug: BaseException | None = None
        self._numbers: dict[str, int] = {}
        """Optuna's numbers of the trials in the database."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="study-database")
        check_study(url, None if goes_on else experiment)
        self._open(replace=goes_on)

    def proposed(self, trial_id: str, params: Mapping[str, Any]) -> None:
        """A trial has got its settings."""
        with self._news(trial_id) as news:
            news.params = dict(params)

    def evaluated(self, trial_id: str, samples_seen: int, wer: float) -> None:
        """A trial was measured."""
        with self._news(trial_id) as news:
            news.evaluations.append((samples_seen, wer))

    def ended(self, record: TrialRecord) -> None:
        """A trial has ended."""
        with self._news(record.trial_id) as news:
            news.status, news.best_wer = record.status, record.best_wer

    def finish(self) -> None:
        """Write what is left, and leave no trial running; all of it anew where some was lost on the way.

        Raises:
            RuntimeError: something went wrong that was not the database's doing (the cause of this one).
        """
        self._closing.set()
        last = self._thread.submit(self._try_last)
        self._thread.shutdown(wait=False)
        concurrent.futures.wait([last], timeout=_LAST_SECONDS)
        bug = self._bug or (last.exception() if last.done() else None)  # the first is the one to look at
        if bug is not None:
            raise RuntimeError(f"writing {shown_place(self._url)} went wrong: {bug!r}") from bug

    def _open(self, *, replace: bool) -> None:
        import optuna

        storage = connect(self._url)
        with database_calls():
            if replace and self._experiment in optuna.get_all_study_names(storage):
                optuna.delete_study(study_name=self._experiment, storage=storage)
            self._study: optuna.Study = optuna.create_study(
                storage=storage, study_name=self._experiment, direction="minimize"
            )
        self._storage = storage
        self._numbers.clear()
        for record in self._records.all():
            self._add(record)

    def _complete(self) -> None:
        records = self._records.all()
        known = {record.trial_id for record in records}
        if self._behind or not self._numbers.keys() <= known:  # some were proposed and never began
            self._open(replace=True)
        for record in records:
            if record.status == "running":
                self._tell(record.trial_id, "interrupted", None)

    @contextlib.contextmanager
    def _news(self, trial_id: str) -> Iterator[_News]:
        """What the thread is to write of a trial, to be added to; several events of a moment are written in one."""
        with self._lock:
            first = not self._waiting
            yield self._waiting.setdefault(trial_id, _News())
        if first:
            self._thread.submit(self._try_news).add_done_callback(self._note_bug)

    def _note_bug(self, done: concurrent.futures.Future[None]) -> None:
        """Keep for `finish` what no one was there to see in the thread; the study is written anew there."""
        bug = done.exception()
        if bug is not None:
            self._behind, self._bug = True, bug

    def _try_news(self) -> None:
        self._closing.wait(max(0.0, self._began + _SPACING - time.monotonic()))
        self._began = time.monotonic()
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if self._behind:
            return
        try:
            for trial_id, news in waiting.items():
                self._write(trial_id, news)
        except StudyDatabaseError as error:  # told, and mended in `finish`
            self._behind = True
            self._warn(f"{shown_place(self._url)} cannot be written now: {error}; the search goes on")

    def _write(self, trial_id: str, news: _News) -> None:
        if news.params is not None:
            self._add(
                TrialRecord(
                    trial_id,
                    news.params,
                    status=news.status,
                    best_wer=news.best_wer,
                    evaluations=news.evaluations,
                )
            )
            return
        for samples_seen, wer in news.evaluations:
            self._report(trial_id, samples_seen, wer)
        if news.status != "running":
            self._tell(trial_id, news.status, news.best_wer)

    def _try_last(self) -> None:
        try:
            self._complete()
        except StudyDatabaseError as error:  # nothing depends on it
            self._warn(f"{shown_place(self._url)} lacks some trials: {error}")

    def _add(self, record: TrialRecord) -> None:
        from tune.searcher import frozen_trial

        self._numbers[record.trial_id] = len(self._numbers)
        value = record.best_wer if record.status == "completed" else None
        if record.status == "early_stopped" and record.evaluations:
            value = record.evaluations[-1][1]  # as Optuna does where it is told of one
        trial = frozen_trial(record.config, record.evaluations, value, self._distributions, record)
        with database_calls():
            self._study.add_trial(trial)

    def _report(self, trial_id: str, samples_seen: int, wer: float) -> None:
        import optuna

        number = self._numbers[trial_id]
        with database_calls():
            stored = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
            optuna.trial.Trial(self._study, stored).report(wer, samples_seen)

    def _tell(self, trial_id: str, status: str, best_wer: float | None) -> None:
        from tune.searcher import trial_state

        number, state = self._numbers[trial_id], trial_state(status)
        value = best_wer if status == "completed" else None
        with database_calls(ValueError):  # somebody else has ended it, or deleted it: in the dashboard maybe
            self._study.tell(number, value, state=state)


def check_study(url: str, experiment: str | None) -> None:
    """Find out whether the database can be used and, for a new experiment, has no study of its name.

    Raises:
        ExperimentError: it cannot, or it has.
    """
    import optuna

    try:
        storage = connect(url)
        with database_calls():
            names = optuna.get_all_study_names(storage)
    except StudyDatabaseError as error:
        raise ExperimentError(
            f"--optuna-storage {without_password(url)}: cannot be opened: {error}"
        ) from error
    if experiment in names:
        raise ExperimentError(
            f"--optuna-storage {without_password(url)}: has a study {experiment!r} already; choose another "
            "--experiment"
        )
