"""`python -m tune.tracking.follower`: tells stores what is in an experiment's log, until all of it is told.

It reads its orders as one line of JSON from its standard input, whose end tells that the driver has ended, connects
the stores and answers with one line. Then it follows `events.jsonl` and `progress.jsonl`. Each store has a thread of
its own, so that one that is away holds up no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tune.experiments.events import Entry, SearchEnded, SessionStarted
from tune.experiments.folder import EVENTS_FILE, PROGRESS_FILE, ExperimentFolder
from tune.experiments.log import parse, parse_progress
from tune.experiments.saved import SavedExperiment, load_saved
from tune.experiments.settings import ExperimentSettings, read_settings
from tune.experiments.state import SearchState
from tune.tracking.tracker import (
    TRACKERS,
    BusyError,
    Orders,
    Position,
    Status,
    Tracker,
    log_file,
    make_tracker,
    store_lock,
)
from tune.util.errors import ExperimentError, UserError
from tune.util.redact import hide_password

_POLL = 0.2
"""Seconds between two looks at the files."""
_SPACING = 1.0
"""Seconds between two rounds at least: what comes meanwhile for a run goes in one call."""
_PROGRESS_SPACING = 5.0
"""The same where nothing but progress is new."""
_MOST_EVENTS, _MOST_BYTES = 200, 300_000
"""Events, and bytes of progress, that are delivered at once."""
_LONGEST_PAUSE = 30.0
"""Seconds between two attempts while a store is away."""
_LONGEST_CALL = 60.0
"""Seconds that a call which hangs is granted at the end, beyond the patience for a store that is away."""
_LOCK_WAIT = 5.0
"""Seconds that the follower of an earlier session is waited for before the search begins."""


class Tail:
    """An experiment's log as one store has heard it."""

    def __init__(self, folder: ExperimentFolder) -> None:
        self.saved = SavedExperiment(folder, ExperimentSettings(), SearchState())
        """The state is what the log folds to up to the last event taken."""
        self._events = folder.path / EVENTS_FILE
        self._progress = folder.path / PROGRESS_FILE
        self._mark = ""
        self._offset = self._row = 0

    @property
    def position(self) -> Position:
        """Up to where it was taken."""
        return Position(self.saved.state.events, self._row, self._mark)

    def has_events(self) -> bool:
        """Whether the log has more."""
        return _size(self._events) > self._offset

    def has_progress(self) -> bool:
        """Whether there is more progress."""
        return _size(self._progress) > self._row

    def take(self) -> tuple[list[Entry], list[dict[str, Any]]]:
        """The next events; and the next rows of progress, where there are no more events than these.

        Raises:
            ExperimentError: the log or `experiment.yaml` cannot be read, or is damaged.
        """
        # Looked at before the events are: no row is then of a trial whose start is not told yet.
        size = min(_size(self._progress), self._row + _MOST_BYTES)
        entries = self.take_events(_MOST_EVENTS)
        if len(entries) == _MOST_EVENTS or size <= self._row:
            return entries, []
        with self._progress.open("rb") as file:
            file.seek(self._row)
            rows, taken = parse_progress(file.read(size - self._row))
        self._row += taken
        return entries, rows

    def take_events(self, most: int) -> list[Entry]:
        """The next events, folded into the state; none after the end of a session, whose state is to be told."""
        if not self.has_events():
            return []
        with self._events.open("rb") as file:
            file.seek(self._offset)
            lines = (file.read(_MOST_BYTES) + file.readline()).splitlines(keepends=True)[:most]
        taken: list[Entry] = []
        entries = parse(b"".join(lines), self._events, self.saved.state.events + 1)
        try:
            for entry, line in zip(entries, lines, strict=False):
                if isinstance(entry.event, SessionStarted):
                    settings = read_settings(self.saved.folder)
                    self.saved = dataclasses.replace(self.saved, settings=settings)
                self.saved.state.apply(entry)
                taken.append(entry)
                self._offset += len(line)
                self._mark = line[-11:-3].decode()
                if isinstance(entry.event, SearchEnded):
                    break
        except ExperimentError:
            if not taken:  # else it is told next time
                raise
        return taken

    def skip(self, position: Position) -> bool:
        """Take what was delivered; False where the store was told of another log: all is to be delivered again."""
        while self.saved.state.events < position.events:
            if not self.take_events(position.events - self.saved.state.events):
                return False
        if position.mark and position.mark != self._mark:
            return False
        self._row = position.progress if position.progress <= _size(self._progress) else 0
        return True


class StoreFollower:
    """Delivers one experiment's log to one store."""

    def __init__(self, tracker: Tracker, orders: Orders, ended: threading.Event) -> None:
        """`ended` is set once nothing more is written to the log."""
        self.name = tracker.name
        self.folder = Path(orders.folder)
        self.status = Status.read(self.folder, self.name)
        self.answered = time.monotonic()
        """When the store last took something, by the monotonic clock; one that can be opened may take nothing."""
        self.complete = False
        """Whether everything is delivered, and nothing follows."""
        self._tracker = tracker
        self._orders = orders
        self._ended = ended
        self._tail: Tail | None = None
        """None where the store is not connected: before `connect`, and after a failure."""
        self._lock = contextlib.ExitStack()

    def connect(self, wait: float = 0.0) -> Tail:
        """Take the store's lock, and find out where delivery stands.

        Args:
            wait: seconds to wait for another process that delivers.

        Returns:
            The log from there on.

        Raises:
            BusyError: another process delivers.
            TrackingError: the store is away or refuses.
            ExperimentError: the log is damaged.
        """
        if self._tail is not None:
            return self._tail
        self._lock.enter_context(store_lock(self.folder, self.name, wait))
        self._tracker.refused.clear()  # it is told again
        try:
            folder = ExperimentFolder(self._orders.name, self.folder)
            position = self._tracker.open(_as_it_is(folder))
            tail = Tail(folder)
            if not tail.skip(position):
                tail = Tail(folder)
        except BaseException:
            self.close()
            raise
        self._tail = tail
        self._know(tail.position)
        return tail

    def follow(self, told: Callable[[], None] = lambda: None) -> None:
        """Deliver until the log has ended, or its store was away for longer than the orders allow.

        Args:
            told: called whenever something was delivered.
        """
        failures, self.answered = 0, time.monotonic()
        while True:
            began = time.monotonic()
            ended = self._ended.is_set()  # before the files are read: all of it is there
            try:
                self._deliver_all(self.connect(), told)
                self.complete, failures, self.status.problem = ended, 0, self._tracker.problem
            except UserError as error:  # the store is away: everything stays in the log
                failures = 1 if isinstance(error, BusyError) else failures + 1
                self.status.problem = str(error)
            except Exception as error:  # noqa: BLE001 - a bug must not end the delivery of what comes after it
                failures += 1
                with contextlib.suppress(OSError), log_file(self.folder).open("a") as file:
                    file.write(hide_password(traceback.format_exc()))
                self.status.problem = hide_password(f"{self.name}: {type(error).__name__}: {error}")
            self.status.write(self.folder, self.name)
            away = time.monotonic() - self.answered
            if failures or self.complete:
                self.close()
            if self.complete or (failures and ended and away > self._orders.patience):
                return
            self._wait(failures, began)

    def close(self) -> None:
        """Let others deliver; more than once is once."""
        self._tail = None
        self._lock.close()

    def _deliver_all(self, tail: Tail, told: Callable[[], None]) -> None:
        """Deliver all that is in the files."""
        while True:
            before = tail.position
            entries, rows = tail.take()
            if tail.position == before:
                return
            if entries:
                self._tracker.deliver(entries, tail.saved)
            if rows:
                self._tracker.progress(rows)
            self._tracker.delivered(tail.position)
            self._know(tail.position)
            self.answered = time.monotonic()
            for reason in self._tracker.refused:  # it holds up nothing else
                self.status.refused, self.status.reason = self.status.refused + 1, reason
            self._tracker.refused.clear()
            self.status.write(self.folder, self.name)
            told()

    def _know(self, position: Position) -> None:
        """Take in what the store has; it is written down in a round only, as the store may be another one."""
        self.status.delivered, self.status.progress = position.events, position.progress
        self.status.facts = self._tracker.facts

    def _wait(self, failures: int, began: float) -> None:
        """Sleep until there is something to do after the round that began then; longer after each failure."""
        if failures:
            pause = min(2.0**failures / 2, _LONGEST_PAUSE)
            if self._ended.is_set():
                time.sleep(min(pause, 2.0))
            else:
                self._ended.wait(pause)
            return
        tail = self.connect()
        while not self._ended.wait(_POLL):
            since = time.monotonic() - began
            if (since >= _SPACING and tail.has_events()) or (
                since >= _PROGRESS_SPACING and tail.has_progress()
            ):
                return


def _as_it_is(folder: ExperimentFolder) -> SavedExperiment:
    """The experiment with all of its log, which may not be there yet."""
    if not _size(folder.path / EVENTS_FILE):
        return SavedExperiment(folder, ExperimentSettings(), SearchState())
    return load_saved(folder)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error


def main(words: Sequence[str]) -> int:
    """The process's life.

    Args:
        words: names of the trackers, whose libraries are imported while the orders are still to come.

    Returns:
        0, or 2 where a store could not be connected at the start.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # both are for the search, which still has things to write
        signal.signal(number, signal.SIG_IGN)
    parent = os.getppid()
    for name in words:
        with contextlib.suppress(ImportError):  # which is told when it is used
            importlib.import_module(TRACKERS[name])
    line = sys.stdin.buffer.readline()
    if not line.strip():
        return 0  # the driver ended before there was anything to do
    orders, ended = Orders.from_json(line), threading.Event()
    followers, problem = [], None
    for name in orders.trackers:
        try:
            followers.append(StoreFollower(make_tracker(name, orders), orders, ended))
            followers[-1].connect(_LOCK_WAIT)
        except BusyError:  # the follower of an earlier session; it ends once it has delivered all
            pass
        except UserError as error:
            problem = problem or (None if orders.lenient else str(error))
    with contextlib.suppress(BrokenPipeError):  # the driver has ended, and what it wrote is to be delivered
        print(json.dumps({"problem": problem}), flush=True)
    if problem:
        return 2
    threads = [threading.Thread(target=each.follow, name=each.name, daemon=True) for each in followers]
    for thread in threads:
        thread.start()
    _wait_for_end(parent)
    for follower in followers:
        follower.answered = time.monotonic()  # patience counts from here
    ended.set()
    limit = orders.patience + _LONGEST_CALL
    for thread, follower in zip(threads, followers, strict=True):
        while thread.is_alive() and time.monotonic() - follower.answered < limit:
            thread.join(0.2)
    return 0


def _wait_for_end(parent: int) -> None:
    """Return when the driver has ended."""
    while os.getppid() == parent:  # another process may have inherited the other end of the pipe
        ready, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ready and not os.read(sys.stdin.fileno(), 4096):
            return


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # a thread that waits for a store's answer must not hold up the end
