"""`events.jsonl`: what happened in an experiment, written once, before anything acts on it.

A decision (an evaluation, an end, a choice, a removal) is on the disk when `append` returns. A process that is killed
in the middle of a line leaves a torn last line, which is cut off; a damaged line before it is an error that names it.
`progress.jsonl` beside it holds losses between evaluations, written once a second and never folded: it may be lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.files import flush
from tune.experiments.events import Entry, Event, LineError, decode, encode
from tune.experiments.folder import PROGRESS_FILE
from tune.experiments.state import SearchState
from tune.util.errors import ExperimentError


def parse(content: bytes, path: Path, first: int = 1) -> Iterator[Entry]:
    """The events of whole lines; a last line without its end is left out.

    Args:
        content: of the log, from a line's beginning.
        path: of the file, to be named.
        first: number of the first event.

    Raises:
        ExperimentError: a line is damaged, of another version, or does not follow the one before it.
    """
    end = content.rfind(b"\n") + 1
    for number, line in enumerate(content[:end].splitlines(), start=first):
        try:
            entry = decode(line)
        except LineError as error:
            raise ExperimentError(f"{path}: line {number} {error}") from error
        if entry.number != number:
            raise ExperimentError(
                f"{path}: line {number} holds event {entry.number}: lines are missing or out of order; restore "
                "the file from a copy"
            )
        yield entry


def fold(content: bytes, path: Path) -> SearchState:
    """The state to which the content of a log folds; `path` is named where a line is damaged.

    Raises:
        ExperimentError: a line of it is damaged.
    """
    state = SearchState()
    for entry in parse(content, path):
        state.apply(entry)
    return state


class ExperimentLog:
    """The log of one experiment, open for appending by the one process that runs it, and the state it folds to."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the log, making it if need be; a torn last line is cut off.

        Args:
            path: of `events.jsonl`.
            clock: seconds since the epoch.

        Raises:
            ExperimentError: it cannot be read or written, or a line is damaged.
        """
        self.path = path
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error
        self.state = fold(content, path)
        """What the log folds to; changed by `append` alone."""
        self.problem: ExperimentError | None = None
        """Why it could not be written; what it said before stays."""
        self._clock = clock
        self._lock = threading.Lock()
        self._size = content.rfind(b"\n") + 1
        try:
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if self._size < len(content):
                os.ftruncate(self._file, self._size)
            flush(path.parent)
        except OSError as error:
            raise self._cannot(error) from error

    def append(self, *events: Event) -> None:
        """Write events down, decisions through to the disk, and fold them into the state.

        Raises:
            ExperimentError: they cannot be written. The log and the state stay as they were, and the search must end:
                nothing may be done that is not known.
        """
        with self._lock, _undisturbed():
            if self.problem is not None:
                raise self.problem
            now = round(self._clock(), 6)
            number = self.state.events
            entries = [Entry(number + place, now, event) for place, event in enumerate(events, start=1)]
            content = b"".join(map(encode, entries))
            try:
                _write_all(self._file, content)
                if any(event.decision for event in events):
                    os.fdatasync(self._file)
            except OSError as error:
                self.problem = self._cannot(error)
                with contextlib.suppress(OSError):  # a disk that is full still gives back
                    os.ftruncate(self._file, self._size)
                raise self.problem from error
            self._size += len(content)
            for entry in entries:
                self.state.apply(entry)

    def stand_still(self) -> None:
        """What follows happens at the time of the last event: nothing of the search runs, and no time counts."""
        self._clock = lambda: self.state.last_event_time

    def close(self) -> None:
        """Bring all of it to the disk, and close the file; raises `ExperimentError` where that fails."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        try:
            os.fsync(file)
        except OSError as error:
            raise self._cannot(error) from error
        finally:
            os.close(file)

    def _cannot(self, error: OSError) -> ExperimentError:
        advice = "fix that, then go on with --resume"
        return ExperimentError(f"{self.path}: cannot be written: {error.strerror}; {advice}")


class ProgressLog:
    """`progress.jsonl`: losses and learning rates between evaluations. A disk that takes none of it stops nothing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS_FILE
        self._waiting: list[str] = []

    def add(self, trial_id: str, metrics: Mapping[str, float], timestamp: float) -> None:
        """Take in what a trial reported at a time, in seconds since the epoch."""
        row = {"trial_id": trial_id, "time": round(timestamp, 3), "metrics": dict(metrics)}
        self._waiting.append(json.dumps(row) + "\n")

    def flush(self) -> None:
        """Write what came since the last time: to be called about once a second, from one thread.

        Raises:
            OSError: it cannot be written; what waited is gone.
        """
        waiting, self._waiting = self._waiting, []
        if waiting:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(waiting)


def parse_progress(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """Whole rows of `progress.jsonl`, those that cannot be read left out, and the bytes that they take."""
    end = content.rfind(b"\n") + 1
    rows = []
    for line in content[:end].splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # torn by a kill; it may be lost
            continue
        if isinstance(row, dict) and {"trial_id", "time", "metrics"} <= row.keys():
            rows.append(row)
    return rows, end


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until what is written is known: an exception in between would part file and state."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, Any]] = []
    before = {
        number: signal.signal(number, lambda *signalled: caught.append(signalled))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for caught_number, frame in caught:
            handler = before[signal.Signals(caught_number)]
            if callable(handler):
                handler(caught_number, frame)
            elif handler == signal.SIG_DFL:
                os.kill(os.getpid(), caught_number)


def _write_all(file: int, content: bytes) -> None:
    """`os.write` until all is written: a disk that is nearly full takes a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
