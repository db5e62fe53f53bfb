"""The follower as the driver sees it: a process that is started early, watched, and waited for at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from tune.experiments.events import LineError, decode
from tune.experiments.log import EVENTS_FILE
from tune.experiments.storage import Storage
from tune.tracking.tracker import DEFAULT_TRACKERS, Orders, Status, log_file
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

_CRASHES = 5
"""Ends in a row after which the process is not started again."""
_PAUSES = (0.0, 3.0, 8.0, 15.0)
"""Seconds before each time that it is started again."""
_HEALTHY_SECONDS = 60.0
"""A process that ran so long has not crashed at once."""
_SHOWN_SECONDS = 1.0
"""How old what `problem` says may be."""
_LONGEST_FINISH = 300.0
"""Seconds that `finish` grants a store that answers, but slowly."""
_NAMES = {"mlflow": "MLflow", "optuna": "the Optuna study", "tensorboard": "TensorBoard"}


class FollowerProcess:
    """Tells the stores of an experiment what happens in it, beside the driver.

    `start` and `begin`; then the process reads the experiment's files, and needs nothing more. It goes on by itself
    after the driver was killed, until all is delivered.
    """

    def __init__(self, trackers: Sequence[str] = DEFAULT_TRACKERS) -> None:
        self._trackers = list(trackers)
        self._orders: Orders | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while the process is started, or what is wanted of it changes."""
        self._finishing = self._stopping = False
        self._given_up: str | None = None
        self._shown: tuple[float, str | None] = (-_SHOWN_SECONDS, None)

    def start(self) -> None:
        """Start the process, which imports what it needs and waits for its orders: to be called early."""
        self._process = self._popen()

    def begin(self, orders: Orders) -> None:
        """Connect the stores, and follow the log from then on.

        Raises:
            TrackingError: one of them cannot be used; nothing was left in any, and the process has ended.
        """
        self._orders = orders
        process = self._process = self._process or self._popen()
        _send(process, orders)
        for name in orders.trackers:
            problem = _answer(process, name)
            if problem is not None:
                self.stop()
                raise TrackingError(problem)
        self._watcher = threading.Thread(target=self._watch, args=[process, orders], daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """End the process at once, if it runs still: the search ends before its first event, or all is delivered."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                _close(self._process)

    @property
    def problem(self) -> str | None:
        """Why a store takes nothing just now, in one line; None while all is well. Cheap: read once a second."""
        now = time.monotonic()
        if now - self._shown[0] >= _SHOWN_SECONDS:
            found = self._given_up or next((s.problem for s in self._statuses().values() if s.problem), None)
            self._shown = now, found
        return self._shown[1]

    def finish(self, patience: float = 30.0) -> str | None:
        """Let the process deliver what is left, and end. Nothing may be written to the log any more.

        Args:
            patience: seconds without anything delivered after which the rest is left for another time.

        Returns:
            None, or one line that says what is not delivered, why, and how to deliver it.
        """
        if self._watcher is None or self._orders is None or self._process is None:
            self.stop()
            return None
        with self._lock:
            self._finishing = True
            _close(self._process)
        began = moved = time.monotonic()
        before = self._delivered()
        while self._watcher.is_alive():
            now = time.monotonic()
            if now - moved > patience or now - began > _LONGEST_FINISH:
                self.stop()
            self._watcher.join(0.1)
            if self._delivered() != before:
                before, moved = self._delivered(), now
        return self._undelivered(self._orders)

    def _watch(self, process: subprocess.Popen[bytes], orders: Orders) -> None:
        """Start the process again where it was killed or crashed: the thread's whole life."""
        crashes = 0
        while True:
            began = time.monotonic()
            code = process.wait()
            if self._stopping or (self._finishing and code == 0):
                return
            crashes = 1 if time.monotonic() - began > _HEALTHY_SECONDS else crashes + 1
            if crashes >= _CRASHES:
                self._given_up = (
                    f"what tells {_named(orders.trackers)} of the search ended {crashes} times in a row "
                    f"(exit code {code}); {log_file(Path(orders.folder))} may say why"
                )
                return
            if not self._finishing:
                time.sleep(_PAUSES[crashes - 1])
            with self._lock:
                if self._stopping:
                    return
                _close(process)
                process = self._process = self._popen()
                _send(process, dataclasses.replace(orders, lenient=True))
                if self._finishing:
                    _close(process)

    def _popen(self) -> subprocess.Popen[bytes]:
        # As in this process, and never from the folder in which the user is.
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        environment.pop("MLFLOW_TRACKING_URI", None)  # it may hold a password; the orders have it
        return subprocess.Popen(
            [sys.executable, "-m", "tune.tracking.follower", *self._trackers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def _statuses(self) -> dict[str, Status]:
        if self._orders is None:
            return {}
        return {name: Status.read(Path(self._orders.folder), name) for name in self._orders.trackers}

    def _delivered(self) -> list[tuple[int, int]]:
        return [(status.delivered, status.progress) for status in self._statuses().values()]

    def _undelivered(self, orders: Orders) -> str | None:
        """What is not delivered, why, and what to do, in one line."""
        events = last_number(Path(orders.folder) / EVENTS_FILE)
        statuses = self._statuses()
        waiting = {name: status for name, status in statuses.items() if status.delivered < events}
        parts = [
            f"{status.refused} records were refused by {_NAMES[name]} ({status.reason})"
            for name, status in statuses.items()
            if status.refused
        ]
        if waiting:
            most = max(events - status.delivered for status in waiting.values())
            command = f"tune-whisper sync {shlex.quote(orders.name)}{Storage.parse(orders.storage).option}"
            parts.append(f"{most} events wait for {_named(waiting)}; `{command}` delivers them")
        reasons = [status.problem or self._given_up for status in waiting.values()]
        return ". ".join(["; ".join(parts), *filter(None, reasons[:1])]) or None


def last_number(path: Path) -> int:
    """Number of a log's last whole event; 0 where there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1_000_000))
            lines = file.read().split(b"\n")[:-1]
        return decode(lines[-1]).number if lines else 0
    except (OSError, LineError):
        return 0


def _named(trackers: Iterable[str]) -> str:
    return " and ".join(_NAMES.get(name, name) for name in trackers)


def _send(process: subprocess.Popen[bytes], orders: Orders) -> None:
    """Tell the process its orders; one that has ended is noticed when it does not answer."""
    pipe = _pipe(process.stdin)
    with contextlib.suppress(BrokenPipeError):
        pipe.write(orders.to_json().encode() + b"\n")
        pipe.flush()


def _answer(process: subprocess.Popen[bytes], tracker: str) -> str | None:
    """What stands in the way of a store; None where it is connected."""
    line = _pipe(process.stdout).readline()
    if not line:
        return f"what tells {_NAMES.get(tracker, tracker)} of the search ended (exit code {process.wait()})"
    found = json.loads(line)["problem"]
    return None if found is None else hide_password(str(found))


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a process, which tells it that nothing more comes."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # it has ended
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the process was started without pipes")
    return pipe
