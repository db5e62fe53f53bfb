"""`python -m tune.tracking.follower`: tells stores what is in an experiment's log, until all of it is told.

It reads its orders as one line of JSON from its standard input, whose end tells that the driver has ended, connects
each store and answers with one line for each. Then it follows `events.jsonl` and `progress.jsonl`. Each store has a
thread of its own, so that one that is away holds up no other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tune.errors import ExperimentError, UserError
from tune.experiment_folder import ExperimentFolder
from tune.experiments.events import Entry, SearchEnded, SessionStarted
from tune.experiments.log import EVENTS_FILE, PROGRESS_FILE, parse, parse_progress, read_log
from tune.experiments.saved import SavedExperiment, read_settings
from tune.experiments.state import SearchState
from tune.tracking.tracker import (
    TRACKERS,
    BusyError,
    Orders,
    Position,
    RefusedError,
    Status,
    Tracker,
    log_file,
    make_tracker,
    store_lock,
)
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
        self.saved = SavedExperiment(folder, {}, SearchState())
        """The state is what the log folds to up to the last event taken."""
        self.mark = ""
        """Check sum of that event."""
        self.progress = 0
        """Bytes of progress taken."""
        self._folder = folder.path
        self._events = folder.path / EVENTS_FILE
        self._progress = folder.path / PROGRESS_FILE
        self._offset = 0

    @property
    def position(self) -> Position:
        """Up to where it was taken."""
        return Position(self.saved.state.events, self.progress, self.mark)

    @property
    def _next(self) -> int:
        return self.saved.state.events + 1

    def has_events(self) -> bool:
        """Whether the log has more."""
        return _size(self._events) > self._offset

    def has_progress(self) -> bool:
        """Whether there is more progress."""
        return _size(self._progress) > self.progress

    def take(self, most: int | None = None) -> list[Entry]:
        """The next events, folded into the state; none after the end of a session, whose state is to be told.

        Args:
            most: how many at most.

        Raises:
            ExperimentError: the log or `experiment.yaml` cannot be read, or is damaged.
        """
        if not self.has_events():
            return []
        with self._events.open("rb") as file:
            file.seek(self._offset)
            lines = (file.read(_MOST_BYTES) + file.readline()).splitlines(keepends=True)[
                : most or _MOST_EVENTS
            ]
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # half of a line: the rest is being written, or was lost
        taken: list[Entry] = []
        try:
            for entry, line in zip(parse(b"".join(lines), self._events, self._next), lines, strict=False):
                if isinstance(entry.event, SessionStarted):
                    self.saved = dataclasses.replace(self.saved, settings=read_settings(self._folder))
                self.saved.state.apply(entry)
                taken.append(entry)
                self._offset += len(line)
                self.mark = line[-11:-3].decode()
                if isinstance(entry.event, SearchEnded):
                    break
        except ExperimentError:
            if not taken:  # else it is told next time
                raise
        return taken

    def take_progress(self, up_to: int) -> list[dict[str, Any]]:
        """The next rows of progress, at most up to that byte."""
        with self._progress.open("rb") as file:
            file.seek(self.progress)
            rows, size = parse_progress(file.read(min(_MOST_BYTES, up_to - self.progress)))
        self.progress += size
        return rows

    def progress_size(self) -> int:
        """Bytes of progress that there are."""
        return _size(self._progress)

    def skip(self, position: Position) -> bool:
        """Take what was delivered; False where the store was told of another log: all is to be delivered again."""
        while self.saved.state.events < position.events:
            if not self.take(position.events - self.saved.state.events):
                return False
        if position.mark and position.mark != self.mark:
            return False
        self.progress = position.progress if position.progress <= self.progress_size() else 0
        return True


class StoreFollower:
    """Delivers one experiment's log to one store."""

    def __init__(self, tracker: Tracker, orders: Orders, ended: threading.Event) -> None:
        """`ended` is set once nothing more is written to the log."""
        self.name = tracker.name
        self.folder = Path(orders.folder)
        self.status = Status.read(self.folder, self.name)
        self.status.problem = None
        self.refused_now = 0
        """Records that the store refused in this process."""
        self.answered = time.monotonic()
        """When the store last took something, by the monotonic clock."""
        self.complete = False
        """Whether everything is delivered, and nothing follows."""
        self._tracker = tracker
        self._orders = orders
        self._ended = ended
        self._tail: Tail | None = None
        self._entries: list[Entry] = []
        self._rows: list[dict[str, Any]] = []
        self._lock = contextlib.ExitStack()
        self._began = -_PROGRESS_SPACING

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
        try:
            folder = ExperimentFolder(self._orders.name, self.folder)
            position = self._tracker.open(_as_it_is(folder))
            tail = Tail(folder)
            if not tail.skip(position):
                tail, position = Tail(folder), Position()
        except BaseException:
            self._lock.close()
            raise
        self._tail = tail
        self.status.delivered, self.status.progress = position.events, tail.progress
        self.answered = time.monotonic()
        return tail

    def follow(self) -> None:
        """Deliver until the log has ended, or its store was away for longer than the orders allow."""
        failures = 0
        while True:
            ended = self._ended.is_set()  # before the files are read: what was written until then is
            try:
                tail = self.connect()
                self._began = time.monotonic()
                found = self._deliver_all(tail)
            except UserError as error:  # the store is away: everything stays in the log
                failures = 1 if isinstance(error, BusyError) else failures + 1
                self.status.problem = str(error)
                if isinstance(error, ExperimentError):  # the log may have been brought back from a copy
                    self._reopen()
            except Exception as error:  # noqa: BLE001 - a bug must not end the delivery of what comes after it
                _note(self.folder)
                failures += 1
                self.status.problem = hide_password(f"{self.name}: {type(error).__name__}: {error}")
                self._reopen()
            else:
                failures, self.status.problem = 0, None
                if ended and not found:
                    self.complete = True
            self._tell()
            away = time.monotonic() - self.answered
            if self.complete or (failures and ended and away > self._orders.patience):
                break
            self._wait(failures)
        self.close()

    def close(self) -> None:
        """Let go of the store; more than once is once."""
        try:
            self._tracker.close()
        finally:
            self._lock.close()

    def _reopen(self) -> None:
        """Begin again with what the store itself says."""
        self._tail, self._entries, self._rows = None, [], []
        self._lock.close()

    def _deliver_all(self, tail: Tail) -> bool:
        """Deliver all that is in the files; whether there was anything."""
        found = False
        # Looked at before the events are: no row is then of a trial whose start is not told yet.
        progress = tail.progress_size()
        while self._entries or tail.has_events():
            self._entries = self._entries or tail.take()
            if not self._entries:
                break
            self._count(lambda: self._tracker.deliver(self._entries, tail.saved))
            self._entries, found = [], True
            self._remember(tail)
        while self._rows or tail.progress < progress:
            before = tail.progress
            self._rows = self._rows or tail.take_progress(progress)
            if not self._rows and tail.progress == before:
                break
            if self._rows:
                self._count(lambda: self._tracker.progress(self._rows))
            self._rows, found = [], True
            if tail.progress >= progress or not tail.has_progress():
                self._remember(tail)
        return found

    def _count(self, call: Any) -> None:
        """Make a call; what the store refuses for good is counted and holds up nothing else."""
        try:
            call()
        except RefusedError as error:
            self.status.refused += error.count
            self.refused_now += error.count
            self.status.reason = str(error)
        self.answered = time.monotonic()

    def _remember(self, tail: Tail) -> None:
        position = tail.position
        with contextlib.suppress(RefusedError):  # the next process begins further back
            self._tracker.delivered(position)
        self.status.delivered, self.status.progress = position.events, position.progress
        self._tell()

    def _tell(self) -> None:
        self.status.facts = dict(getattr(self._tracker, "facts", {}))
        if self.status.problem is None:
            self.status.problem = getattr(self._tracker, "problem", None)
        self.status.write(self.folder, self.name)

    def _wait(self, failures: int) -> None:
        """Sleep until there is something to do, longer after each failure."""
        if failures:
            pause = min(2.0**failures / 2, _LONGEST_PAUSE)
            if self._ended.is_set():
                time.sleep(min(pause, 2.0))
            else:
                self._ended.wait(pause)
            return
        tail = self._tail
        while tail is not None and not self._ended.wait(_POLL):
            since = time.monotonic() - self._began
            if since >= _SPACING and tail.has_events():
                return
            if since >= _PROGRESS_SPACING and tail.has_progress():
                return


def _as_it_is(folder: ExperimentFolder) -> SavedExperiment:
    """The experiment with all of its log, which may not be there yet."""
    if not _size(folder.path / EVENTS_FILE):
        return SavedExperiment(folder, {}, SearchState())
    return SavedExperiment(folder, read_settings(folder.path), read_log(folder.path / EVENTS_FILE))


def _note(folder: Path) -> None:
    """Write down the error that is being handled, with where it happened."""
    with contextlib.suppress(OSError), log_file(folder).open("a", encoding="utf-8") as file:
        file.write(hide_password(traceback.format_exc()))


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
            __import__(TRACKERS[name])
    line = sys.stdin.buffer.readline()
    if not line.strip():
        return 0  # the driver ended before there was anything to do
    orders, ended = Orders.from_json(line), threading.Event()
    followers = []
    for name in orders.trackers:
        problem = None
        try:
            followers.append(StoreFollower(make_tracker(name, orders), orders, ended))
            _connect(followers[-1], orders)
        except UserError as error:
            problem = str(error)
        except ImportError as error:
            problem = f"--track {name}: cannot be used: {error}"
        print(json.dumps({"tracker": name, "problem": problem}), flush=True)
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


def _connect(follower: StoreFollower, orders: Orders) -> None:
    """Connect a store at the start; raises as `StoreFollower.connect` does."""
    try:
        follower.connect(_LOCK_WAIT)
    except BusyError:  # the follower of an earlier session; it ends once it has delivered all
        return
    except UserError:
        if not orders.lenient:
            raise


def _wait_for_end(parent: int) -> None:
    """Return when the driver has ended."""
    while os.getppid() == parent:  # another process may have inherited the other end of the pipe
        ready, _, _ = select.select([sys.stdin], [], [], 1.0)
        if ready and not os.read(sys.stdin.fileno(), 4096):
            return


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a thread that waits for a store's answer must not hold up the end
