"""The Optuna study in a database, a copy of what the searcher knows: open it with `optuna-dashboard URL`.

The searcher works in memory and the records in `state.json` are what a resumed search begins with. So a database
that is slow or away holds up nothing, and one that is behind is written anew in the end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.errors import ExperimentError
from tune.mlflow_store import without_password
from tune.study_connection import StudyDatabaseError, shown_place
from tune.study_table import News, StudyTable, TableKilledError

if TYPE_CHECKING:
    from tune.records import Records, TrialRecord

STUDY_FILE = "optuna.db"
_SPACING = 1.0
"""Seconds between two writes: what comes meanwhile of a trial is written in one."""
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
        table: StudyTable,
        records: Records,
        *,
        goes_on: bool,
        warn: Callable[[str], None],
    ) -> None:
        """Open the database and write the trials that there are.

        Args:
            url: of the database, to be named where it fails.
            experiment: the study's name.
            table: the study in it, in this process or in another.
            records: all trials.
            goes_on: the experiment is resumed: a study of its name is its own, and written anew.
            warn: is told once when the database is away.

        Raises:
            ExperimentError: the database cannot be used, or has a study of this name already.
        """
        self._url, self._table, self._records, self._warn = url, table, records, warn
        self._lock = threading.Lock()
        self._waiting: dict[str, News] = {}
        """What the thread has yet to write, by trial."""
        self._began = -math.inf
        """When it last began to."""
        self._closing = threading.Event()
        self._behind = False
        self._bug: BaseException | None = None
        self._proposed: set[str] = set()
        """Trials that were written, or are about to be."""
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="study-database")
        try:
            if not goes_on and table.exists():
                raise _taken(url, experiment)
            table.open(records.all(), replace=goes_on)
        except StudyDatabaseError as error:
            raise _not_opened(url, error) from error

    def proposed(self, trial_id: str, params: Mapping[str, Any]) -> None:
        """A trial has got its settings."""
        self._proposed.add(trial_id)
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

    def _complete(self) -> None:
        records = self._records.all()
        known = {record.trial_id for record in records}
        if self._behind or not self._proposed <= known:  # some were proposed and never began
            self._table.open(records, replace=True)
        for record in records:
            if record.status == "running":
                self._table.end(record.trial_id, "interrupted", None)

    @contextlib.contextmanager
    def _news(self, trial_id: str) -> Iterator[News]:
        """What the thread is to write of a trial, to be added to; several events of a moment are written in one."""
        with self._lock:
            first = not self._waiting
            yield self._waiting.setdefault(trial_id, News())
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
            self._table.write(waiting)
        except StudyDatabaseError as error:  # told, and mended in `finish`
            self._behind = True
            self._warn(f"{shown_place(self._url)} cannot be written now: {error}; the search goes on")

    def _try_last(self) -> None:
        try:
            try:
                self._complete()
            except TableKilledError:
                self._behind = True
                self._complete()
        except StudyDatabaseError as error:  # nothing depends on it
            self._warn(f"{shown_place(self._url)} lacks some trials: {error}")


def check_study(url: str, experiment: str | None) -> None:
    """Find out whether the database can be used and, for a new experiment, has no study of its name.

    Raises:
        ExperimentError: it cannot, or it has.
    """
    try:
        taken = StudyTable(url, experiment or "", {}).exists()
    except StudyDatabaseError as error:
        raise _not_opened(url, error) from error
    if taken:
        raise _taken(url, str(experiment))


def _not_opened(url: str, error: StudyDatabaseError) -> ExperimentError:
    return ExperimentError(f"--optuna-storage {without_password(url)}: cannot be opened: {error}")


def _taken(url: str, experiment: str) -> ExperimentError:
    return ExperimentError(
        f"--optuna-storage {without_password(url)}: has a study {experiment!r} already; choose another --experiment"
    )
