"""The thread that writes to MLflow what waits for each run, until the store has taken it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tune.errors import TrackingError
from tune.mlflow_client import RecordRefusedError, RunGoneError, TrackingStore
from tune.mlflow_journal import Journal
from tune.mlflow_records import PER_CALL, Kind, Record, Run, in_parts

_SPACING = 1.0
"""Seconds between two rounds at least: what comes meanwhile for a run goes in one call, and a call takes 10 ms."""
_LONGEST_PAUSE = 30.0
"""Seconds between two attempts while the store is away."""
_LONGEST_CALL = 30.0
"""Seconds that `close` grants one call that hangs; the thread is a daemon, so the process can end."""


class StoreWriter:
    """Writes runs to a store at the latest `flush_seconds` after they changed, and when woken at once, or a second
    after it had last begun to.

    With a `journal`, which is open, every record is on disk before it is in memory.
    """

    def __init__(
        self, store: TrackingStore, *, flush_seconds: float, patience: float, journal: Journal | None = None
    ) -> None:
        self.problem: str | None = None
        """Why the store takes nothing just now."""
        self.changed = threading.Condition()
        """Held while runs are added or appended to."""
        self.runs: list[Run] = []
        """In the order of writing them."""
        self.lost = 0
        """Records that the store will never take."""
        self.lost_reason = ""
        self.taken = 0
        """Records that the store has taken."""
        self._store = store
        self._journal = journal
        self._flush_seconds = flush_seconds
        self._spacing = min(_SPACING, flush_seconds)
        self._began = -math.inf
        self._patience = patience
        self._newest = 0
        self._urgent = False
        self._closing = False
        self._given_up = False
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

    def queue(self, run: Run, kind: Kind, content: Any) -> None:
        """Append a record to a run, never waiting for the store. The caller holds `changed`."""
        for part in in_parts(kind, content):
            self._newest += 1
            record = Record(self._newest, kind, part)
            if self._journal is not None:
                self._journal.append(run, record)
            run.waiting.append(record)

    def take_over(self, runs: Sequence[Run]) -> None:
        """Go on with runs that an earlier process left in the journal, in the order given. Before `start`."""
        self.runs.extend(runs)
        self._newest = max((record.number for run in runs for record in run.waiting), default=self._newest)

    @property
    def unwritten(self) -> int:
        """Records that wait: each point, param, tag, file, new run and status counts."""
        with self.changed:
            return sum(run.size for run in self.runs)

    def close(self, longest: float | None = None, progress: Callable[[], None] = lambda: None) -> str | None:
        """Write what waits and stop, after `patience` seconds without an answer of the store at the latest.

        Args:
            longest: seconds in all, after which what still waits is left to the journal.
            progress: called twice a second.

        Returns:
            None, or why something is not written, in one line; `lost` and `unwritten` say how much.

        Raises:
            RuntimeError: the thread had stopped on an error that was not foreseen (the cause of this one).
        """
        began = self._last_answer = time.monotonic()
        with self.changed:
            self._closing = True
            self.wake()
        while self._thread.is_alive():
            now = time.monotonic()
            hangs = now - self._last_answer > self._patience + _LONGEST_CALL
            if hangs or (longest is not None and now - began > longest):
                self._given_up = True
                break
            self._thread.join(timeout=0.5)
            progress()
        if self._crash is not None:
            count = self.lost + self.unwritten
            fate = "are lost" if self._journal is None else f"wait in {self._journal.path} or were refused"
            raise RuntimeError(f"the MLflow writer had stopped; {count} records {fate}") from self._crash
        if not self._thread.is_alive() and self._journal is not None:
            self._journal.close()
        if self.unwritten:
            return self.problem or "The store answers too slowly."
        return self.lost_reason or None

    def _write_until_closed(self) -> None:
        """Write whatever waits, again and again, until `close` asks to stop: the thread's whole life."""
        failures = 0
        while not self._given_up:
            closing = self._wait(failures)
            try:
                self._keep_journal()
                with self.changed:
                    runs = [run for run in self.runs if run.waiting]
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
                spaced = self._began + self._spacing - time.monotonic()
                self.changed.wait_for(lambda: self._closing, max(0.0, spaced))
                self.changed.wait_for(lambda: self._urgent or self._closing, self._flush_seconds)
            elif self._closing:
                self.changed.wait(min(pause, 2.0))
            else:
                self.changed.wait_for(lambda: self._closing, pause)
            self._urgent, self._began = False, time.monotonic()
            return self._closing

    def _keep_journal(self) -> None:
        """Let the journal neither grow without bound nor stay in the memory of the machine alone."""
        if self._journal is not None:
            if self._journal.wants_rewrite:
                self._journal.rewrite(lambda: self.runs, self.changed)
            self._journal.sync()

    def _flush(self, run: Run) -> None:
        """Write what waits for one run now; what comes meanwhile is for the next round, so that none starves."""
        with self.changed:
            newest = run.waiting[-1].number if run.waiting else 0
        while not self._given_up:
            with self.changed:
                batch = run.next_batch(newest)
            if not batch:
                return
            try:
                self._deliver(run, batch)
            except RunGoneError as error:
                run.gone = True
                with self.changed:
                    self._lose(run, list(run.waiting), error)
            self._last_answer = time.monotonic()  # refused or taken, the store is there
            self._keep_journal()

    def _deliver(self, run: Run, batch: Sequence[Record]) -> None:
        """Write one batch. What the store will never take is counted as lost and holds up nothing else.

        Raises:
            TrackingError: the store is away; the batch, or the rest of it, is to be written again later.
            RunGoneError: nothing of this run can be written.
        """
        created = None
        try:
            created = self._write(run, batch)
        except RecordRefusedError as error:
            if len(batch) > 1:  # one bad record must not take the others with it
                self._deliver(run, batch[: len(batch) // 2])
                self._deliver(run, batch[len(batch) // 2 :])
                return
            with self.changed:
                self._lose(run, batch, error)
            return
        with self.changed:
            run.run_id = created or run.run_id
            self.taken += sum(record.size for record in batch)
            self._drop(run, batch)

    def _lose(self, run: Run, records: Sequence[Record], reason: TrackingError) -> None:
        self.lost += sum(record.size for record in records)
        self.lost_reason = str(reason)
        self._drop(run, records)

    def _drop(self, run: Run, records: Sequence[Record]) -> None:
        """Forget the first records of a run, here and in the journal. The caller holds `changed`."""
        for _ in records:
            run.waiting.popleft()
        if self._journal is not None:
            created = run.run_id if any(record.kind == "create" for record in records) else None
            self._journal.done([record.number for record in records], created)

    def _write(self, run: Run, batch: Sequence[Record]) -> str | None:
        """The one call for a batch; returns the id of a run that it created."""
        kind, content = batch[0].kind, batch[0].content
        if run.gone:
            raise RunGoneError(self.lost_reason)
        if kind == "create":
            return self._create(run, content)
        run_id = str(run.run_id)
        if kind == "status":
            status, end_ms = content
            if status == "RUNNING":
                self._store.reopen_run(run_id)
            else:
                self._store.end_run(run_id, status, end_ms)
        elif kind == "upload":
            folder = Path() if self._journal is None else self._journal.path.parent
            path, place = (content, None) if isinstance(content, str) else content
            self._store.upload(run_id, folder / path, place)
        else:
            kinds: dict[str, list[Any]] = {kind: [] for kind in PER_CALL}
            for record in batch:
                kinds[record.kind].extend(record.content)
            self._store.log_batch(run_id, **kinds)
        return None

    def _create(self, run: Run, content: Mapping[str, Any]) -> str:
        """Create a child run. A lost answer to an earlier attempt must not leave two of them."""
        if run.run_id is not None:
            return run.run_id
        tags = content["tags"]
        tried, run.create_tried = run.create_tried, True
        try:
            found = self._store.find_run(tags["mlflow.parentRunId"], tags["trial_id"]) if tried else None
            return found or self._store.create_run(content["name"], tags, content["start_ms"])
        except RecordRefusedError as error:
            raise RunGoneError(str(error)) from error
