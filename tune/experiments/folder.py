"""The files of one experiment: in a folder, or in a working copy of what an object store keeps."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.files import locked, write_whole
from tune.experiments.mlflow_store import DATABASE, relocate_artifacts
from tune.experiments.object_stores.object_store import ObjectStore, StorageError, inside
from tune.util.environment import user_cache
from tune.util.errors import ExperimentError

EXPERIMENT_FILE, SPACE_FILE = "experiment.yaml", "space.yaml"
DROPPED_FILE = "dropped_clips.jsonl"
RESULTS_FILE = "results.json"
SPLITS_FILE = "splits.parquet"
EVENTS_FILE, PROGRESS_FILE = "events.jsonl", "progress.jsonl"
TRIALS_FOLDER = "trials"
"""Written by Ray itself, straight to the storage."""
_STATE_FILE = ".uploaded.json"
_TRANSFER_LOCK = ".lock"
"""Held by the one process of this machine that brings files up or down."""
_LOCAL_ONLY = (".db-wal", ".db-shm", ".db-journal")
"""Ends of names: SQLite's own files belong to the database only while it is open."""
_NOT_EXPORTED = ("optimizer.pt", "scheduler.pt", "weight_average.safetensors")
"""The larger part of a checkpoint, of which an export takes nothing."""


def feature_cache(storage: Path | None) -> Path:
    """Where features go by default: with the experiments, or in the user's cache where they are in a bucket."""
    return user_cache() / "features" if storage is None else storage / ".feature-cache"


class ExperimentFolder:
    """Where an experiment's small files are; trials' checkpoints lie below `trials/` of its storage."""

    def __init__(self, name: str, path: Path, store: ObjectStore | None = None) -> None:
        self.name = name
        self.path = path
        """Where files are read and written on this machine, absolute: the folder itself or a working copy."""
        self.store = store

    @property
    def remote(self) -> bool:
        """Whether `path` is only a working copy."""
        return self.store is not None

    @property
    def address(self) -> str:
        """Where people find it: the folder's path, or its address in the object store."""
        return str(self.path) if self.store is None else f"{self.store.address}/{self.name}"

    @property
    def mlflow_home(self) -> Path:
        """Folder of its MLflow store and artifacts, where no --tracking-uri names another store."""
        return self.path if self.remote else self.path.parent

    def exists(self) -> bool:
        """Whether there is anything of it already, also in a working copy that could not be uploaded."""
        return self.path.exists() or (
            self.store is not None and bool(self.store.files(self.name, TRIALS_FOLDER))
        )

    def read(self, name: str) -> bytes | None:
        """The content of a small file that is on this machine; None where there is no such file.

        Raises:
            ExperimentError: it cannot be read.
        """
        path = self.path / name
        try:
            return path.read_bytes() if path.is_file() else None
        except OSError as error:
            raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error

    def ray_storage(self) -> dict[str, Any]:
        """What Ray's `RunConfig` needs: `storage_path` and, for an object store, `storage_filesystem`.

        The file system carries the endpoint to all nodes, and no credentials: each node has its own.
        """
        if self.store is None:
            return {"storage_path": str(self.path)}
        filesystem, root = self.store.filesystem()
        return {"storage_path": f"{root}/{self.name}", "storage_filesystem": filesystem}

    @contextlib.contextmanager
    def checkpoint(self, path: str) -> Iterator[Path]:
        """A checkpoint as a local folder; `path` is relative to the experiment, as `trials/001/checkpoint_000002`.

        Raises:
            ExperimentError: it is gone.
            StorageError: it cannot be downloaded.
        """
        with contextlib.ExitStack() as stack:
            found = self.path / path
            if self.store is not None:
                found = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoint-")))
                self.store.download(f"{self.name}/{path}", found, skip=_NOT_EXPORTED)
            if not (found / "config.json").is_file():
                raise ExperimentError(f"the checkpoint {path} is gone from {self.address}")
            yield found

    def upload(self, below: str = "", check: Callable[[], None] = lambda: None) -> None:
        """Bring the small files that changed to the store, each whole or not at all; nothing to do for a folder.

        Args:
            below: folder of the experiment whose files alone are brought; all files but the log where it is empty.
            check: called before each file, raises what keeps it from going.

        Raises:
            StorageError: the store cannot be written now; what is missing goes with a later call.
        """
        if self.store is not None and self.path.is_dir():
            self._bring(self._small_files(self.path / below), check)

    def upload_log(self, check: Callable[[], None]) -> None:
        """Bring the log to the store if it has grown, whole lines only; for the session that writes it.

        Raises what `check` does, and `StorageError` as `upload` does.
        """
        self._bring([self.path / EVENTS_FILE], check)

    def _bring(self, files: Iterable[Path], check: Callable[[], None]) -> None:
        """Upload those of the files that changed; another thread waits for one of them at most, not for all."""
        assert self.store is not None
        state = self._state()
        for file in files:
            name = file.relative_to(self.path).as_posix()
            try:
                mark = _local_mark(file)
                if state.get(name, {}).get("local") == mark:
                    continue
                with locked(self.path / _TRANSFER_LOCK):
                    content = _content(file)
                    check()
                    self.store.write(f"{self.name}/{name}", content)
                    remote = self.store.marks([f"{self.name}/{name}"])[0]
                    self._save_state(self._state() | {name: {"local": mark, "remote": list(remote or ())}})
            except FileNotFoundError:  # a temporary file that was renamed since
                continue

    def download(self) -> None:
        """Bring what the store has newer than the working copy, all but the checkpoints.

        A file that nobody else wrote since this machine uploaded it is left as it is here, so a search that runs here
        is not disturbed. So is a log that goes on from where the store's ends: it could not be uploaded.

        Raises:
            StorageError: the store cannot be read.
        """
        if self.store is None:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / _TRANSFER_LOCK):
            # Listed under the lock: what a search that runs here brings meanwhile would seem newer there.
            remote, state = self.store.files(self.name, TRIALS_FOLDER), self._state()
            # The database last: its artifacts are looked for where they are here.
            for name, mark in sorted(remote.items(), key=lambda item: item[0] == DATABASE):
                target = inside(self.path, name)
                if target.name.startswith(".") or (
                    target.exists() and state.get(name, {}).get("remote") == list(mark)
                ):
                    continue
                content = self.store.read(f"{self.name}/{name}")
                if name == EVENTS_FILE and target.exists() and target.read_bytes().startswith(content):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(f".{target.name}.partial")
                partial.write_bytes(content)
                if name == DATABASE:
                    relocate_artifacts(partial)
                    for leftover in ("-wal", "-shm", "-journal"):  # a killed search's, of the older database
                        Path(f"{target}{leftover}").unlink(missing_ok=True)
                partial.replace(target)
                state[name] = {"local": _local_mark(target), "remote": list(mark)}
                self._save_state(state)

    def _small_files(self, below: Path) -> list[Path]:
        """Files that belong to the store, but the log; never Ray's own, hidden ones, or the features."""
        return [
            file
            for file in sorted(below.rglob("*"))
            if file.is_file()
            and not file.name.endswith(_LOCAL_ONLY)
            and not any(part.startswith(".") for part in file.relative_to(self.path).parts)
            and file.relative_to(self.path).parts[0] not in (TRIALS_FOLDER, EVENTS_FILE)
        ]

    def _state(self) -> dict[str, Any]:
        """What is known of each file at its last transfer: its mark here and its mark in the store."""
        try:
            state: dict[str, Any] = json.loads((self.path / _STATE_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return state

    def _save_state(self, state: dict[str, Any]) -> None:
        write_whole(self.path / _STATE_FILE, json.dumps(state))


def _local_mark(file: Path) -> list[int]:
    """Tells one version of a local file from the next; SQLite's newest pages may be in its write-ahead log."""
    log = file.with_name(f"{file.name}-wal")
    stats = [path.stat() for path in (file, log) if path == file or path.exists()]
    return [number for stat in stats for number in (stat.st_size, stat.st_mtime_ns)]


def _content(file: Path) -> bytes:
    if file.suffix == ".db":
        return _snapshot(file)
    content = file.read_bytes()
    return content[: content.rfind(b"\n") + 1] if file.name == EVENTS_FILE else content


def _snapshot(database: Path) -> bytes:
    """A SQLite file as it is between two transactions, while others write to it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / DATABASE
        try:
            with (
                contextlib.closing(
                    sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=10)
                ) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise StorageError(f"{database}: cannot be copied to the storage: {error}") from error
        return copy.read_bytes()
