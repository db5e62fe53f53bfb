"""`MlflowRecorder`: a search as MLflow runs, written by one thread of the driver while the search goes on."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tune.errors import TrackingError
from tune.mlflow_client import (
    PAIRS_PER_BATCH,
    RunStatus,
    TrackingStore,
    metric_points,
    param_pairs,
    tag_pairs,
)
from tune.mlflow_store import TRIALS_VIEW_TAG, package_versions, trials_view
from tune.mlflow_writer import Run, StoreWriter

TrialStatus = Literal["completed", "early_stopped", "failed", "diverged"]
SearchStatus = Literal["completed", "failed", "interrupted"]

_RUN_STATUS: dict[str, RunStatus] = {
    "completed": "FINISHED",
    "early_stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
}


class MlflowRecorder:
    """The only writer to the tracking store: one parent run for the search, one child run for each trial.

    `start` speaks to the store at once. Everything after it is queued in memory and written by a daemon
    thread, `flush_seconds` later at the latest and at once when a WER comes in. While the store is away the
    queue waits and the search goes on; `finish` gives up after `patience` seconds without an answer.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        artifact_root: Path | None,
        *,
        flush_seconds: float = 5.0,
        patience: float = 30.0,
    ) -> None:
        self._store = TrackingStore(tracking_uri, experiment, artifact_root)
        self._writer = StoreWriter(self._store, flush_seconds=flush_seconds, patience=patience)
        self._parent: Run | None = None
        self._trials: dict[str, Run] = {}

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        description: str,
        artifacts: Sequence[Path],
        compare: Sequence[str] = (),
    ) -> str:
        """Open the store, write the parent run with all that is known of the search, and start the writer.

        `compare` names the searched settings; `tune-whisper ui` shows them beside the WER of each trial.

        Returns:
            The id of the parent run.

        Raises:
            TrackingError: the store cannot be reached or written to; no run is left behind.
        """
        store = self._store
        store.connect()
        store.tag_experiment(TRIALS_VIEW_TAG, trials_view(compare))
        all_tags = {
            **_system_tags(),
            "mlflow.note.content": description,
            "status": "running",
            "role": "experiment",
            **tags,
        }
        parent = Run(store.experiment, dict(tag_pairs(all_tags)), _now_ms())
        parent.run_id = run_id = store.create_run(parent.name, parent.tags, parent.start_ms)
        try:
            pairs = param_pairs(params)
            for first in range(0, len(pairs), PAIRS_PER_BATCH):
                store.log_batch(run_id, params=pairs[first : first + PAIRS_PER_BATCH])
            store.upload_json(run_id, "versions.json", package_versions())
            for path in artifacts:
                store.upload(run_id, path)
        except TrackingError:
            store.delete_run(run_id)
            raise
        self._parent = parent
        self._writer.runs.append(parent)
        self._writer.start()
        return run_id

    def trial_started(
        self, trial_id: str, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> None:
        """Queue the child run of a trial; a trial that starts again (Ray's retry) keeps its run."""
        own = {
            "mlflow.parentRunId": self.parent_run_id,
            "trial_id": trial_id,
            "status": "running",
            "role": "trial",
        }
        run = Run(name, dict(tag_pairs({**_system_tags(), **tags, **own})), _now_ms())
        run.params.extend(param_pairs(params))
        with self._writer.changed:
            if trial_id not in self._trials:
                self._trials[trial_id] = run
                self._writer.runs.append(run)
                self._writer.wake()

    def log(
        self, trial_id: str | None, metrics: Mapping[str, float], *, step: int, timestamp: float | None = None
    ) -> None:
        """Queue metrics of a trial, or of the search where `trial_id` is None.

        `step` is the number of samples seen: batch sizes are searched, so the optimiser steps of two trials
        do not compare. `timestamp` is in seconds since the epoch, as `time.time()` gives it; None is now.

        Raises:
            ValueError: no such trial was started.
        """
        points = metric_points(metrics, step, time.time() if timestamp is None else timestamp)
        with self._writer.changed:
            run = self._run(trial_id)
            run.metrics.extend(points)
            run.last_step = max(run.last_step, step)
            if "wer" in metrics:
                self._writer.wake()

    def trial_ended(
        self,
        trial_id: str,
        status: TrialStatus,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Queue the end of a trial: FINISHED, KILLED (stopped early) or FAILED (also diverged).

        The tag `status` keeps the exact word; `metrics` get the last step that was logged.

        Raises:
            ValueError: no such trial was started.
        """
        with self._writer.changed:
            self._end(self._run(trial_id), status, metrics or {}, tags or {})
            self._writer.wake()

    def finish(
        self,
        status: SearchStatus,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        artifacts: Sequence[Path] = (),
    ) -> str | None:
        """End the parent run, and trials still open as KILLED; write what is queued and stop the writer.

        Returns:
            None, or one line that says how many records could not be written and why.

        Raises:
            RuntimeError: the writer had stopped on an error that was not foreseen (the cause of this one).
        """
        parent = self._run(None)
        with self._writer.changed:
            for run in self._trials.values():
                if not run.closed:
                    self._end(run, "interrupted", {}, {})
            if not parent.closed:
                parent.uploads.extend(artifacts)
                self._end(parent, status, metrics or {}, tags or {})
                self._writer.runs = [*self._trials.values(), parent]  # the parent ends last
        return self._writer.close()

    def run_id(self, trial_id: str) -> str | None:
        """The run of a trial; None until the writer has created it (when `finish` returns, it has)."""
        run = self._trials.get(trial_id)
        return run.run_id if run else None

    @property
    def parent_run_id(self) -> str:
        """The id of the parent run; `ValueError` before `start`."""
        return str(self._run(None).run_id)

    @property
    def run_url(self) -> str | None:
        """The page of the parent run where the store is a server, else None; `ValueError` before `start`."""
        return self._store.run_url(self.parent_run_id)

    @property
    def problem(self) -> str | None:
        """Why the store takes nothing just now, in one line for the screen; None while all is well."""
        return self._writer.problem

    @property
    def unwritten(self) -> int:
        """Records that wait in memory."""
        return self._writer.unwritten

    def _run(self, trial_id: str | None) -> Run:
        run = self._parent if trial_id is None else self._trials.get(trial_id)
        if run is None:
            raise ValueError(
                "start() comes first" if trial_id is None else f"trial {trial_id!r} was not started"
            )
        return run

    def _end(self, run: Run, status: str, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        run.metrics.extend(metric_points(metrics, run.last_step, time.time()))
        run.late_tags.extend(tag_pairs({**tags, "status": status}))
        run.end = (_RUN_STATUS[status], _now_ms())
        run.closed = True


def _system_tags() -> dict[str, str]:
    """Who ran what, for MLflow's own columns."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container often has no name
        user = str(os.getuid())
    return {"mlflow.user": user, "mlflow.source.name": "tune-whisper", "mlflow.source.type": "LOCAL"}


def _now_ms() -> int:
    return int(time.time() * 1000)
