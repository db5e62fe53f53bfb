"""Bringing an experiment's log to its stores: MLflow, an Optuna study, TensorBoard's files.

A store is asked what it has and sent what lacks, so that syncing twice is as good as once. Beside a search a thread
does so; what it could not deliver, `--resume` or `tune-whisper sync` does.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import json
import shlex
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from trainer.errors import UserError
from trainer.files import write_whole
from tune.experiments.events import Entry
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, PROGRESS_FILE, ExperimentFolder
from tune.experiments.log import parse, parse_progress
from tune.experiments.results import TRACKING_FILE
from tune.experiments.state import SearchState
from tune.util.errors import ExperimentError, TrackingError
from tune.util.files import LockedError, own_lock
from tune.util.redact import hide_password

STORES = {
    "mlflow": ("MLflow", "tune.tracking.mlflow", "MlflowStore"),
    "optuna": ("the Optuna study", "tune.tracking.optuna_study", "OptunaStore"),
    "tensorboard": ("TensorBoard", "tune.tracking.tensorboard", "TensorBoardStore"),
    "notify": ("the notified address", "tune.tracking.notify", "Notifier"),
    "wandb": ("Weights & Biases", "tune.tracking.wandb", "WandbStore"),
}
"""What people call them, and their classes, which a target makes."""
_SPACING, _PROGRESS_SPACING, _PAUSE = 1.0, 5.0, 10.0
"""Seconds between two syncs of a store: of events, where only progress is new, and after one that failed."""
_LOCK_SECONDS = 10.0
"""How long another process that syncs the same experiment is waited for."""
_LONGEST_CALL = 20.0
"""How long a call to a store takes at most: MLflow's own limit is 15 s."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Where the log of one experiment goes. Never on a disk: addresses may hold passwords."""

    folder: ExperimentFolder
    option: str = ""
    """What a command that names the experiment ends with, as ` --storage DIR`."""
    stores: Sequence[str] = ("mlflow",)
    tracking_uri: str = ""
    notify: str = ""
    """Where news of this session is posted: an address that is a secret."""


class Log:
    """An experiment's log as far as it was read."""

    def __init__(self, folder: ExperimentFolder) -> None:
        self.saved = Experiment(folder, SearchState())
        """With what `entries` fold to."""
        self.entries: list[Entry] = []
        self._size = 0

    def read(self) -> None:
        """Read what is new of the events.

        Raises:
            ExperimentError: the log cannot be read, or is damaged.
        """
        folder = self.saved.folder
        path = folder.path / EVENTS_FILE
        content = _from(path, self._size)
        for entry in parse(content, path, len(self.entries) + 1):
            self.saved.state.apply(entry)
            self.entries.append(entry)
        self._size += content.rfind(b"\n") + 1

    def progress(self, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Rows of `progress.jsonl` from a byte on (`trial_id`, `time`, `metrics`), and the byte behind the last."""
        rows, taken = parse_progress(_from(self.saved.folder.path / PROGRESS_FILE, offset))
        return rows, offset + taken


def _from(path: Path, offset: int) -> bytes:
    """What a file holds from a byte on; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error


class Store(abc.ABC):
    """One store of one experiment. An object whose `sync` failed is thrown away, and a new one asks the store anew."""

    def __init__(self) -> None:
        self.delivered = 0
        """Number of the last event that the store has."""
        self.progress = 0
        """Bytes of `progress.jsonl` that it has."""
        self.run_ids: dict[str, str] = {}
        """The store's own names of runs by trial, repeat and average, where it has such."""
        self._reached: dict[str, float] = {}
        """Samples seen at the last progress of each of these."""

    @abc.abstractmethod
    def sync(self, log: Log) -> None:
        """Send what the store lacks; a log without events leaves nothing behind.

        Raises:
            TrackingError: it cannot be reached or refuses, in one line that shows no password.
            ExperimentError: it holds something else of this experiment's name.
        """

    def _progress(self, log: Log) -> tuple[list[dict[str, Any]], int]:
        """Rows behind those that the store has, without what a trial comes by again, and the byte behind them."""
        known, _ = log.progress(0) if self.progress and not self._reached else ([], 0)
        rows, end = log.progress(self.progress)
        delivered, new = max(0, len(known) - len(rows)), []
        for number, row in enumerate(known[:delivered] + rows):
            trial, seen = row["trial_id"], row["metrics"]["samples_seen"]
            if seen > self._reached.get(trial, -1):
                self._reached[trial] = seen
                if number >= delivered:
                    new.append(row)
        return new, end


def store_names(stores: Sequence[str]) -> str:
    """What people call them: `MLflow and the Optuna study`."""
    return " and ".join(STORES[name][0] for name in stores)


class Sync:
    """Syncs an experiment's stores in a thread, from `start` to `finish`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._log = Log(target.folder)
        self._stores: dict[str, Store] = {}
        """Those whose last sync did not fail."""
        self._problems: dict[str, str] = {}
        """Of the others, why."""
        self._due: dict[str, float] = {}
        """When a store is synced again that has all events, or that failed; by the monotonic clock."""
        self._delivered = dict.fromkeys(target.stores, 0)
        self._opened, self._ended, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Where the session broke off, its end is synced too, if that is quickly done."""
        if self._thread.is_alive() and not self._ended.is_set():
            self.finish(5.0)

    @property
    def problem(self) -> str | None:
        """Why a store takes nothing just now, in one line; None while all is well."""
        return next(iter(self._problems.values()), None)

    def start(self) -> None:
        """Connect the stores and sync from then on what is in the experiment's folder."""
        self._thread.start()

    def wait(self) -> None:
        """Wait until the stores are connected.

        Raises:
            TrackingError: one of them cannot be used; nothing was left in any.
        """
        self._opened.wait()
        if self.problem is not None:
            self.stop()
            raise TrackingError(self.problem)

    def stop(self) -> None:
        """End the thread, after the call to a store in which it is: it may be writing to the experiment's folder."""
        self._stopped.set()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LONGEST_CALL)

    def finish(self, timeout: float = 60.0) -> str | None:
        """Sync what is left, for so many seconds. Nothing may be written to the log any more.

        Returns:
            None, or one line that says what is not delivered, why, and how to deliver it.
        """
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._stopped.set()
        return self._undelivered()

    def once(self) -> None:
        """Sync all stores now, in this thread.

        Raises:
            TrackingError: stores are away, one line each; others have everything.
        """
        with self._lock():
            self._log.read()
            for name in self._target.stores:
                self._sync(name)
        if self._problems:
            raise TrackingError("\n".join(self._problems.values()))

    def _run(self) -> None:
        try:
            with self._lock():
                self._sync_all()
        except UserError as error:  # the log is damaged, or another process syncs it
            self._problems["sync"] = str(error)
        finally:
            self._opened.set()

    def _sync_all(self) -> None:
        while not self._stopped.is_set():
            ended = self._ended.is_set()
            self._log.read()
            for name in self._target.stores:
                new = self._delivered[name] < len(self._log.entries) and name not in self._problems
                if new or ended or time.monotonic() >= self._due.get(name, 0.0):
                    self._sync(name)
                if self._stopped.is_set():
                    return
            self._opened.set()
            if ended and not self._problems:
                return
            (self._stopped if ended else self._ended).wait(_SPACING)

    def _sync(self, name: str) -> None:
        target = self._target
        path = target.folder.path / TRACKING_FILE
        try:
            _, module, kind = STORES[name]
            make = getattr(importlib.import_module(module), kind)
            store: Store = self._stores.pop(name) if name in self._stores else make(target)
            store.sync(self._log)
            if store.run_ids:
                write_whole(path, json.dumps({"run_ids": store.run_ids}) + "\n")
        except UserError as error:
            self._problems[name] = str(error)
        except Exception as error:  # noqa: BLE001 - told, noted and tried again: a fault of one store is none of others
            self._problems[name] = hide_password(f"{type(error).__name__}: {error}")
            # A full disk may be what failed.
            with (
                contextlib.suppress(OSError),
                path.with_name("errors.log").open("a", encoding="utf-8") as file,
            ):
                file.write(hide_password("".join(traceback.format_exception(error))))
        else:
            self._stores[name] = store
            self._problems.pop(name, None)
            self._delivered[name] = store.delivered
        self._due[name] = time.monotonic() + (_PAUSE if name in self._problems else _PROGRESS_SPACING)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other processes from syncing the same experiment.

        Raises:
            TrackingError: another process does, or the folder cannot be written.
        """
        path = self._target.folder.path / TRACKING_FILE
        try:
            path.parent.mkdir(exist_ok=True)
            lock = own_lock(path.with_name("sync.lock"), _LOCK_SECONDS)
        except OSError as error:
            raise TrackingError(f"{path.parent}: cannot be written: {error.strerror}") from error
        except LockedError as owner:
            raise TrackingError(
                f"experiment {self._target.folder.name!r}: process {owner} syncs it now; "
                "try again once that search or command has ended"
            ) from owner
        with lock:
            yield

    def _undelivered(self) -> str | None:
        target = self._target
        events = _from(target.folder.path / EVENTS_FILE, 0).count(b"\n")
        waiting = {name: events - number for name, number in self._delivered.items() if events > number}
        waiting.pop("notify", None)  # what is old is no news: no later sync posts it
        if not waiting:
            return None
        command = f"tune-whisper sync {shlex.quote(target.folder.name)}{target.option}"
        message = (
            f"{max(waiting.values())} events wait for {store_names([*waiting])}; `{command}` delivers them"
        )
        return f"{message}. {self.problem}" if self.problem else message
