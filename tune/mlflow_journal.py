"""`mlflow_queue.jsonl`: what waits for the MLflow store, on disk, so that a killed driver loses none of it.

One JSON object a line. A record has its number `n`, the trial (`run`, null for the search's own run), the run's
`id` where the store has given one, `kind` and `content`. `{"done": [numbers]}` says what the store has taken, with
the new run's `id` where that created one. Once nothing waits the file is emptied. It holds what MLflow is told
and no address or credentials.

A record is written before it is queued. One that the store took in the instant before a kill is sent again:
MLflow's databases, and so its servers, keep a point of the same run, key, time, step and value once (measured with
MLflow 3.17), and a run is looked for by its tags before it is created a second time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tune.errors import TrackingError
from tune.mlflow_records import Record, Run

JOURNAL_FILE = "mlflow_queue.jsonl"
_SYNC_SECONDS = 1.0
_WASTE_BYTES = 1_000_000
"""A file above this size that is mostly done is written anew."""


class Journal:
    """The file of one experiment. The caller sees to it that only one thread at a time is in here.

    A disk that takes nothing, being full for instance, stops no search: `problem` says that what waits is only
    in memory, and `rewrite` brings all of it to the disk once that can be written again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self._file = -1
        self._live: set[int] = set()
        """Numbers of the records in the file that are not done."""
        self._lines = 0
        self._size = 0
        self._unsynced = False
        self._synced = 0.0

    def open(self) -> list[Run]:
        """Open the file, making it if need be, readable by its owner only.

        Returns:
            The runs of which something waits or of which the id is known, in the order of their first record.

        Raises:
            TrackingError: the file cannot be read or written.
        """
        runs = self._load()
        self.rewrite(lambda: runs, nullcontext())
        if self.problem:
            raise TrackingError(self.problem)
        return runs

    def append(self, run: Run, record: Record) -> None:
        """Note a record, before it is queued."""
        if self._write(_line(run, record)):
            self._live.add(record.number)
            self._lines += 1

    def done(self, numbers: Iterable[int], run_id: str | None = None) -> None:
        """Note what the store has taken, or never will; `run_id` is that of a run that it created."""
        taken = [number for number in numbers if number in self._live]
        self._live.difference_update(taken)
        if self._live:
            entry: dict[str, Any] = {"done": taken}
            self._write(_dump(entry if run_id is None else {**entry, "id": run_id}))
        elif self._size and self.problem is None:
            try:
                os.ftruncate(self._file, 0)
            except OSError as error:
                self.problem = self._cannot("written", error)
            self._size = self._lines = 0

    @property
    def wants_rewrite(self) -> bool:
        """Whether the file is mostly done, or lacks something."""
        wasteful = self._size > _WASTE_BYTES and 2 * len(self._live) < self._lines
        return wasteful or self.problem is not None

    def rewrite(self, runs: Callable[[], Sequence[Run]], lock: AbstractContextManager[Any]) -> None:
        """Replace the file by one of what waits now. `lock` keeps others out, and is held for instants only."""
        temporary = self.path.with_name(f".{self.path.name}.partial")
        try:
            new = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o600)
            try:
                with lock:
                    entries = [(run, record) for run in runs() for record in run.waiting]
                _write_all(new, b"".join(_line(*entry) for entry in entries))
                os.fsync(new)
                with lock:
                    newest = max((record.number for _, record in entries), default=0)
                    late = [(run, r) for run in runs() for r in run.waiting if r.number > newest]
                    _write_all(new, b"".join(_line(*entry) for entry in late))
                    temporary.replace(self.path)
                    self._take_file(new, [record.number for _, record in (*entries, *late)])
            except OSError:
                os.close(new)
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            self.problem = self._cannot("written", error)

    def sync(self) -> None:
        """Bring what was written to the disk itself, once a second at most: a power cut would lose it."""
        if self._unsynced and time.monotonic() - self._synced >= _SYNC_SECONDS:
            self._unsynced, self._synced = False, time.monotonic()
            try:
                os.fsync(self._file)
            except OSError as error:
                self.problem = self._cannot("written", error)

    def close(self) -> None:
        """Leave the file as it is."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take_file(self, new: int, numbers: list[int]) -> None:
        self.close()
        self._file, self._live, self._lines = new, set(numbers), len(numbers)
        self._size, self._unsynced, self.problem = os.fstat(new).st_size, True, None

    def _write(self, line: bytes) -> bool:
        """Append a line. After a failure, which may leave half of one, none until the file was written anew."""
        if self.problem:
            return False
        try:
            _write_all(self._file, line)
        except OSError as error:
            self.problem = self._cannot("written", error)
            return False
        self._size += len(line)
        self._unsynced = True
        return True

    def _load(self) -> list[Run]:
        """What the file holds that is not done."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrackingError(self._cannot("read", error)) from error
        lines.pop()  # empty, or half a line, whose writing was cut short: what it was to hold was not queued
        runs: dict[str | None, Run] = {}
        owners: dict[int, tuple[Run, Record]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                self._replay(json.loads(line), runs, owners)
            except (ValueError, KeyError, TypeError) as error:
                raise TrackingError(
                    f"{self.path}: line {number} cannot be read; remove that line, and what it held is not in MLflow"
                ) from error
        for run, record in owners.values():
            run.waiting.append(record)
        return list(runs.values())

    @staticmethod
    def _replay(
        entry: dict[str, Any], runs: dict[str | None, Run], owners: dict[int, tuple[Run, Record]]
    ) -> None:
        """Take in one line."""
        if "done" in entry:
            for number in entry["done"]:
                run, _ = owners.pop(number)
                run.run_id = entry.get("id") or run.run_id
            return
        run = runs.setdefault(entry["run"], Run(entry["run"], create_tried=True))
        run.run_id = entry["id"] or run.run_id
        owners[entry["n"]] = (run, Record(entry["n"], entry["kind"], entry["content"]))

    def _cannot(self, action: str, error: OSError) -> str:
        reason = error.strerror or str(error)
        only = "; what waits for MLflow is only in memory" if action == "written" else ""
        return f"{self.path}: cannot be {action}: {reason}{only}"


def _line(run: Run, record: Record) -> bytes:
    entry = {"n": record.number, "run": run.key, "id": run.run_id}
    return _dump({**entry, "kind": record.kind, "content": record.content})


def _dump(entry: dict[str, Any]) -> bytes:
    """A line; NaN and infinities, which JSON proper has not, are read back as they are."""
    return json.dumps(entry).encode() + b"\n"


def _write_all(file: int, content: bytes) -> None:
    """`os.write` until all is written: a disk that is nearly full takes a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
