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
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.storage import Storage
from tune.tracking.tracker import Orders, Status, log_file
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from typing_extensions import Self

_PAUSES = (0.0, 3.0, 8.0, 15.0)
"""Seconds before each time that it is started again after ends in a row; then it is given up."""
_HEALTHY_SECONDS = 60.0
"""A process that ran so long has not crashed at once."""
_LONGEST_FINISH = 300.0
"""Seconds that `finish` grants a store that answers, but slowly."""
_LAST_PATIENCE = 5.0
"""Seconds that a store is waited for where a session broke off."""
_NAMES = {"mlflow": "MLflow", "optuna": "the Optuna study", "tensorboard": "TensorBoard"}


class FollowerProcess:
    """Tells the stores of an experiment what happens in it, beside the driver.

    `start`, `begin` and `wait`; then the process reads the experiment's files, and needs nothing more. It goes on by
    itself after the driver was killed, until all is delivered.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._folder = Path(orders.folder)
        self._named = _named(orders.trackers)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while the process is started, or what is wanted of it changes."""
        self._finishing = self._stopping = False
        self._given_up: str | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process, which imports what it needs and waits for its orders: to be called early."""
        # As in this process, and never from the folder in which the user is.
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        environment.pop("MLFLOW_TRACKING_URI", None)  # it may hold a password; the orders have it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tune.tracking.follower", *self._orders.trackers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Where the session broke off, its end is told too, if that is quickly done; `sync` tells the rest."""
        if not self._finishing and count_events(self._folder):
            self.finish(_LAST_PATIENCE)
        self.stop()

    def begin(self) -> None:
        """Have the stores connected, and the log followed from then on."""
        assert self._process is not None, "it was not started"
        _send(self._process, self._orders)

    def wait(self) -> None:
        """Wait until the stores are connected.

        Raises:
            TrackingError: one of them cannot be used; nothing was left in any, and the process has ended.
        """
        assert self._process is not None, "it was not started"
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        told = json.loads(answer)["problem"] if answer else f"what tells {self._named} of the search ended"
        if told:
            self.stop()
            raise TrackingError(hide_password(told))
        self._watcher = threading.Thread(target=self._watch, args=[self._process], daemon=True)
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
        """Why a store takes nothing just now, in one line; None while all is well."""
        return self._given_up or next((s.problem for s in self._statuses().values() if s.problem), None)

    def finish(self, patience: float = 30.0) -> str | None:
        """Let the process deliver what is left, and end. Nothing may be written to the log any more.

        Args:
            patience: seconds without anything delivered after which the rest is left for another time.

        Returns:
            None, or one line that says what is not delivered, why, and how to deliver it.
        """
        if self._watcher is None or self._process is None:
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
        return self._undelivered()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Start the process again where it was killed or crashed: the thread's whole life."""
        crashes = 0
        while True:
            began = time.monotonic()
            code = process.wait()
            if self._stopping or (self._finishing and code == 0):
                return
            crashes = 1 if time.monotonic() - began > _HEALTHY_SECONDS else crashes + 1
            if crashes > len(_PAUSES):
                self._given_up = (
                    f"what tells {self._named} of the search ended {crashes} times in a row (exit code {code}); "
                    f"{log_file(self._folder)} may say why"
                )
                return
            if not self._finishing:
                time.sleep(_PAUSES[crashes - 1])
            with self._lock:
                if self._stopping:
                    return
                _close(process)
                process = self.start()
                _send(process, dataclasses.replace(self._orders, lenient=True))
                if self._finishing:
                    _close(process)

    def _statuses(self) -> dict[str, Status]:
        return {name: Status.read(self._folder, name) for name in self._orders.trackers}

    def _delivered(self) -> list[tuple[int, int]]:
        return [(status.delivered, status.progress) for status in self._statuses().values()]

    def _undelivered(self) -> str | None:
        """What is not delivered, why, and what to do, in one line."""
        orders, statuses, events = self._orders, self._statuses(), count_events(self._folder)
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


def count_events(folder: Path) -> int:
    """How many events an experiment's log holds, which is the number of its last one."""
    try:
        return (folder / EVENTS_FILE).read_bytes().count(b"\n")
    except OSError:
        return 0


def _named(trackers: Iterable[str]) -> str:
    return " and ".join(_NAMES[name] for name in trackers)


def _send(process: subprocess.Popen[bytes], orders: Orders) -> None:
    """Tell the process its orders; one that has ended is noticed when it does not answer."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(orders.to_json().encode() + b"\n")
        process.stdin.flush()


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a process, which tells it that nothing more comes."""
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # it has ended
            pipe.close()  # type: ignore[union-attr]
