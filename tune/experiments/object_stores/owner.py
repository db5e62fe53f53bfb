"""One session at a time writes to an experiment in an object store: a marker there names it, and it reads it before
each upload.

Object stores differ in what they can refuse, so nothing here asks them to: of two that begin within the same second
both may run until one of them reads the marker again.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time

from tune.experiments.object_stores.object_store import ObjectStore, StorageError
from tune.util.errors import ExperimentError

MARKER_FILE = ".owner"
EXPIRES = 120.0
"""Seconds after its last heartbeat from which on a marker is nobody's."""
HEARTBEAT = 30.0
_MOMENT = 1.0
"""Seconds before a new marker is read back: whoever wrote it at the same time sees the last one."""
_TRIES = 3


class Owner:
    """The session that may write to one experiment; `take` makes one. A thread writes its marker again and again."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store, self._address = store, f"{store.address}/{name}"
        self._file = f"{name}/{MARKER_FILE}"
        self._content = f"{secrets.token_hex(8)}\nprocess {os.getpid()} on {socket.gethostname()}\n"
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.lost: ExperimentError | None = None
        """Why it may write no more, for good."""

    @classmethod
    def take(cls, store: ObjectStore, name: str, take_over: bool = False) -> Owner:
        """Become the owner of an experiment that has none, or one whose heartbeat is `EXPIRES` seconds old.

        Args:
            take_over: also of one whose owner is alive.

        Raises:
            ExperimentError: another has it.
            StorageError: the store does not answer or refuses.
        """
        owner = cls(store, name)
        before = owner._read()
        if before is not None and not take_over:
            owner._refuse_live(before)
        for _ in range(_TRIES):
            owner._write()
            time.sleep(_MOMENT)
            now = owner._read()
            if now == owner._content:
                threading.Thread(target=owner._keep, name="owner", daemon=True).start()
                return owner
            if now != before:  # else a heartbeat of the one before fell between
                break
        raise ExperimentError(f"{owner._address}: {_who(now)} started to run it at the same moment")

    def check(self) -> None:
        """Ask the store whether the experiment is still ours; to be called before anything is written or deleted there.

        Raises:
            ExperimentError: it is not, or was released.
            StorageError: the store does not answer.
        """
        if self.lost is None and (now := self._read()) != self._content:
            what = "the marker of its owner was removed" if now is None else f"{_who(now)} has taken it over"
            self.lost = ExperimentError(f"{self._address}: {what}; this session writes nothing more there")
        if self.lost is not None:
            raise self.lost

    def release(self) -> None:
        """Leave the experiment to others at once; nothing happens where it was lost.

        Raises:
            StorageError: the store does not answer; the marker then expires by itself.
        """
        self._ended.set()
        with self._lock:
            if self._read() == self._content:
                self._store.remove(self._file)

    def _keep(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self.check()
                    self._write()
                except ExperimentError:
                    return
                except StorageError:  # away: whatever is uploaded asks again first
                    continue

    def _refuse_live(self, other: str) -> None:
        """Raise `ExperimentError` unless the marker has expired, by the store's clock: ours may be hours off."""
        age = self._store.age(self._file)
        if age is None or age > EXPIRES:
            return
        raise ExperimentError(
            f"{self._address}: {_who(other)} runs it (last heartbeat {age:.0f} s ago; {EXPIRES:.0f} s after the last "
            "one it is free); wait until that process ends, or give --take-over if it is dead or should stop"
        )

    def _read(self) -> str | None:
        there = self._store.marks([self._file])[0] is not None
        return self._store.read(self._file).decode(errors="replace") if there else None

    def _write(self) -> None:
        self._store.write(self._file, self._content.encode())


def _who(content: str | None) -> str:
    return (content or "").partition("\n")[2].strip() or "somebody"
