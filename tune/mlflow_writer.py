"""The thread that writes to MLflow: what waits for each run, in memory, until the store has taken it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tune.errors import TrackingError
from tune.mlflow_client import (
    METRICS_PER_BATCH,
    PAIRS_PER_BATCH,
    Metric,
    RecordRefusedError,
    RunStatus,
    TrackingStore,
)

_LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the store is away."""
_LONGEST_CALL = 30.0
"""Seconds that `close` grants one call that hangs; the thread is a daemon, so the process can end."""
_T = TypeVar("_T")


@dataclass(eq=False)
class Run:
    """One run and what the store has not taken of it. The writer thread removes, others only append."""

    name: str
    tags: dict[str, str]
    """Tags that the run is created with."""
    start_ms: int
    run_id: str | None = None
    """None until the store has created the run."""
    params: list[tuple[str, str]] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    late_tags: list[tuple[str, str]] = field(default_factory=list)
    """Tags that became known after the run was created."""
    uploads: list[Path] = field(default_factory=list)
    end: tuple[RunStatus, int] | None = None
    """Final status and time in ms, until it is written."""
    closed: bool = False
    """Whether the end is known."""
    last_step: int = 0
    create_tried: bool = False

    @property
    def waiting(self) -> int:
        """Records that the store does not have: the run itself, params, metrics, tags, files, the end."""
        records = len(self.params) + len(self.metrics) + len(self.late_tags) + len(self.uploads)
        return records + (self.run_id is None) + (self.end is not None)

    def drop_records(self) -> int:
        """Forget what waits for a run that cannot be created, and say how much that was."""
        before = self.waiting
        self.params, self.metrics, self.late_tags, self.uploads, self.end = [], [], [], [], None
        return before - self.waiting


class StoreWriter:
    """Writes runs to a store at the latest `flush_seconds` after they changed, at once when woken."""

    def __init__(self, store: TrackingStore, *, flush_seconds: float, patience: float) -> None:
        self.problem: str | None = None
        """Why the store takes nothing just now."""
        self.changed = threading.Condition()
        """Held while runs are added or appended to."""
        self.runs: list[Run] = []
        """In the order of writing them."""
        self._store = store
        self._flush_seconds = flush_seconds
        self._patience = patience
        self._urgent = False
        self._closing = False
        self._lost = 0
        self._lost_reason = ""
        self._crash: Exception | None = None
        self._last_answer = time.monotonic()
        self._thread = threading.Thread(target=self._write_until_closed, name="mlflow-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Write now. The caller holds `changed`."""
        self._urgent = True
        self.changed.notify_all()

    @property
    def unwritten(self) -> int:
        """Records that wait in memory."""
        with self.changed:
            return sum(run.waiting for run in self.runs)

    def close(self) -> str | None:
        """Write what waits and stop, after `patience` seconds without an answer of the store at the latest.

        Returns:
            None, or one line that says how many records are not written and why.

        Raises:
            RuntimeError: the thread had stopped on an error that was not foreseen (the cause of this one).
        """
        self._last_answer = time.monotonic()
        with self.changed:
            self._closing = True
            self.wake()
        while (
            self._thread.is_alive() and time.monotonic() - self._last_answer < self._patience + _LONGEST_CALL
        ):
            self._thread.join(timeout=0.5)
        lost = self._lost + self.unwritten
        if self._crash is not None:
            raise RuntimeError(f"the MLflow writer had stopped; {lost} records are lost") from self._crash
        if not lost:
            return None
        return f"{lost} MLflow records could not be written. {self.problem or self._lost_reason}"

    def _write_until_closed(self) -> None:
        """Write whatever waits, again and again, until `close` asks to stop: the thread's whole life."""
        failures = 0
        while True:
            closing = self._wait(failures)
            try:
                with self.changed:
                    runs = list(self.runs)
                for run in runs:
                    self._flush(run)
                failures, self.problem = 0, None
            except TrackingError as error:  # the store is away: everything stays queued, `problem` says so
                failures, self.problem = failures + 1, str(error)
            except Exception as error:  # noqa: BLE001 - a bug somewhere: `problem` shows it, `close` raises it
                self.problem, self._crash = f"the MLflow writer stopped: {error!r}", error
                return
            if closing and (not failures or time.monotonic() - self._last_answer > self._patience):
                return

    def _wait(self, failures: int) -> bool:
        """Sleep until there is something to do, longer after each failure. True once `close` was called."""
        pause = min(2.0**failures / 2, _LONGEST_PAUSE)
        with self.changed:
            if not failures:
                self.changed.wait_for(lambda: self._urgent or self._closing, self._flush_seconds)
            elif self._closing:
                self.changed.wait(min(pause, 2.0))
            else:
                self.changed.wait_for(lambda: self._closing, pause)
            self._urgent = False
            return self._closing

    def _flush(self, run: Run) -> None:
        """Write one run: create it, then its records, its end, its files."""
        end = run.end  # read first: the records that belong before it are queued by now
        if run.run_id is None:
            run.run_id = self._try(partial(self._create, run), 0)
        run_id = run.run_id
        if run_id is None:
            with self.changed:
                self._lost += run.drop_records()
            return
        while run.metrics or run.params or run.late_tags:
            with self.changed:
                metrics, params = run.metrics[:METRICS_PER_BATCH], run.params[:PAIRS_PER_BATCH]
                tags = run.late_tags[:PAIRS_PER_BATCH]
            count = len(metrics) + len(params) + len(tags)
            self._try(partial(self._store.log_batch, run_id, metrics, params, tags), count)
            with self.changed:
                del run.metrics[: len(metrics)], run.params[: len(params)], run.late_tags[: len(tags)]
        if end is not None:
            self._try(partial(self._store.end_run, run_id, *end), 1)
            run.end = None
        while run.uploads:
            self._try(partial(self._store.upload, run_id, run.uploads[0]), 1)
            del run.uploads[0]

    def _create(self, run: Run) -> str:
        """Create a child run. A lost answer to an earlier attempt must not leave two of them."""
        tags = run.tags
        tried, run.create_tried = run.create_tried, True
        found = self._store.find_run(tags["mlflow.parentRunId"], tags["trial_id"]) if tried else None
        return found or self._store.create_run(run.name, tags, run.start_ms)

    def _try(self, write: Callable[[], _T], records: int) -> _T | None:
        """Do one write. What the store will never take is counted as lost, so that it holds up nothing else.

        Raises:
            TrackingError: the store is away; the write is to be tried again later.
        """
        result = None
        try:
            result = write()
        except RecordRefusedError as error:
            self._lost += records
            self._lost_reason = str(error)
        self._last_answer = time.monotonic()  # refused or taken, the store is there
        return result
