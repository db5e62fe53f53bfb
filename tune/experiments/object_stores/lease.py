"""One writer of an experiment at a time, between machines too: a lease, which is an object in the object store.

Who has it renews it again and again. Who finds one that was not renewed for its time takes it, by the store's clock,
since those of two machines may differ by hours. Each change is a conditional PUT, so that of two that try at a time
one is refused; `tune.experiments.object_stores.conditional` says where, and what is done elsewhere.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from tune.experiments.folder import LEASE_FILE
from tune.experiments.object_stores.conditional import (
    NotConditionalError,
    QuickerError,
    StoredObject,
    Version,
    open_object,
)
from tune.experiments.object_stores.object_store import ObjectStore, StorageError
from tune.util.errors import ExperimentError
from tune.util.plain import restored

TTL = 120.0
"""Seconds that a lease is good for without being renewed."""
_GRAIN = 2.0
"""Seconds that a lease counts for longer to others than to its owner: S3 tells whole seconds."""
_TRIES = 4


@dataclasses.dataclass(frozen=True)
class _Terms:
    """What the object says; the defaults are for one that cannot be read, which expires like any other."""

    owner: str = ""
    host: str = "an unknown machine"
    pid: int = 0
    since: str = ""
    """By the owner's clock, for people only."""
    ttl: float = TTL
    term: int = 0
    heartbeat: int = 0
    released: bool = False


def _terms(seen: Version) -> _Terms:
    try:
        terms: _Terms = restored(_Terms, json.loads(seen.content))
        return terms
    except (ValueError, TypeError, AttributeError):
        return _Terms()


class Lease:
    """The right to write to one experiment; `take` makes one. A thread renews it until it is lost or released."""

    def __init__(self, store: ObjectStore, name: str, terms: _Terms) -> None:
        self._store, self._name, self._terms = store, name, terms
        self._address = f"{store.address}/{name}"
        with store.translated():
            self._object = open_object(store, f"{name}/{LEASE_FILE}")
        self._tag: Any = None
        self._renewed = 0.0
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self.lost: ExperimentError | None = None
        """Why it is not ours any more, for good."""

    @classmethod
    def take(
        cls, store: ObjectStore, name: str, owner: str, take_over: bool = False, *, ttl: float = TTL
    ) -> Lease:
        """Take the lease of an experiment that nobody has, that was released, or whose owner let it expire.

        Args:
            store: where experiments are kept.
            name: the experiment.
            owner: random name of this session.
            take_over: take it also from an owner who renews it.
            ttl: seconds that it is good for without being renewed; it is renewed four times as often.

        Raises:
            ExperimentError: another has it, or was quicker.
            StorageError: the store does not answer or refuses.
        """
        since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        lease = cls(store, name, _Terms(owner, socket.gethostname(), os.getpid(), since, ttl))
        try:
            lease._take(take_over)
        except NotConditionalError:  # another make of S3, an old one
            lease._object = StoredObject(store, f"{name}/{LEASE_FILE}")
            lease._take(take_over)
        threading.Thread(target=lease._keep, name="lease", daemon=True).start()
        return lease

    @property
    def term(self) -> int:
        """How often it was taken so far: on a store that minds conditions no two sessions share a number."""
        return self._terms.term

    @property
    def conditional(self) -> bool:
        """Whether the store itself refuses the second of two writers; else it is best effort."""
        return self._object.conditional

    def held(self) -> bool:
        """Whether it is ours as far as is known without asking the store: renewed within its time, not lost."""
        return not (self.lost or self._ended.is_set()) and _now() - self._renewed < self._terms.ttl

    def check(self) -> None:
        """Ask the store whether it is ours now, and for long enough; to be called before anything is deleted.

        Raises:
            ExperimentError: it is not.
            StorageError: the store does not answer.
        """
        with self._lock:
            if self._ended.is_set():
                raise ExperimentError(f"{self._address}: its lease was released; nothing more is deleted")
            self._own()
            if _now() - self._renewed > self._terms.ttl / 2:
                self._renew()

    def release(self) -> None:
        """Leave the experiment to others at once; nothing happens where it was lost.

        Raises:
            StorageError: the store does not answer; the lease then expires by itself.
        """
        self._ended.set()
        with self._lock:
            self._terms = dataclasses.replace(self._terms, released=True)
            try:
                self._renew()
            except ExperimentError:
                return  # another's by now, or removed with the experiment: nothing to leave

    def _take(self, take_over: bool) -> None:
        first = None
        for _ in range(_TRIES):
            began, seen = _now(), self._read()
            term = 1
            if seen and (before := _terms(seen)).owner == self._terms.owner:
                term = before.term  # our own, whose answer did not come through
            elif seen:
                first = before.owner if first is None else first
                # Who took it since then is not the one whom the user wants to replace.
                if not before.released and not (take_over and before.owner == first):
                    self._refuse_live(before, seen.age)
                term = before.term + 1
            self._terms = dataclasses.replace(self._terms, term=term)
            try:
                self._tag = self._write(seen.tag if seen else None)
                with self._store.translated():
                    self._object.confirm(self._content(), self._tag)
            except QuickerError:
                continue
            self._renewed = began
            return
        raise ExperimentError(f"{self._address}: others take its lease at the same moment; try again")

    def _refuse_live(self, other: _Terms, age: Callable[[], float | None]) -> None:
        """Raise `ExperimentError` where another's lease has not expired."""
        with self._store.translated():
            seconds = age()
        when = "its storage tells no times, so it does not expire by itself"
        if seconds is not None:
            left = other.ttl + _GRAIN - seconds
            if left < 0:
                return
            when = f"last heartbeat {seconds:.0f} s ago, expires in {left:.0f} s without another"
        raise ExperimentError(
            f"{self._address}: process {other.pid} on {other.host} has its lease ({when}); wait until that process "
            "ends, or give --take-over where it is dead or shall stop"
        )

    def _keep(self) -> None:
        """The thread's life."""
        wait = self._terms.ttl / 4
        while not self._ended.wait(wait):
            wait = self._terms.ttl / 4
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    self._renew()
                except ExperimentError:
                    return  # `lost` says why
                except StorageError:  # away: `held` says so in time
                    wait /= 4

    def _renew(self) -> None:
        """Write the next heartbeat; needs the lock. Raises `ExperimentError` where it is lost, `StorageError`."""
        if self.lost:
            raise self.lost
        self._terms = dataclasses.replace(self._terms, heartbeat=self._terms.heartbeat + 1)
        for _ in range(_TRIES):
            began = _now()
            try:
                self._tag = self._write(self._tag)
            except QuickerError:
                self._own()  # it may have been our own write before, whose answer did not come through
                continue
            self._renewed = began
            return
        raise StorageError(f"--storage {self._store.address}: the lease of {self._name} changes all the time")

    def _own(self) -> None:
        """Read it again: where it is not ours it is lost for good, and `ExperimentError` is raised."""
        seen = None if self.lost else self._read()
        other = _terms(seen) if seen else None
        if seen and other and other.owner == self._terms.owner:
            self._tag = seen.tag
            return
        who = f"process {other.pid} on {other.host} has taken over" if other else "its lease was removed"
        self.lost = self.lost or ExperimentError(
            f"{self._address}: {who}; this session must write nothing more"
        )
        raise self.lost

    def _read(self) -> Version | None:
        with self._store.translated():
            return self._object.read()

    def _write(self, tag: Any) -> Any:
        with self._store.translated():
            return self._object.write(self._content(), tag)

    def _content(self) -> bytes:
        return json.dumps(dataclasses.asdict(self._terms)).encode()


def _now() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
