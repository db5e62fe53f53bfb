"""`MlflowRecorder`: a search as MLflow runs, written by one thread of the driver while the search goes on."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tune.errors import TrackingError
from tune.mlflow_client import RunStatus, TrackingStore
from tune.mlflow_facts import NAMED_BY, SearchFacts
from tune.mlflow_journal import Journal
from tune.mlflow_records import (
    Run,
    creation,
    in_parts,
    metric_points,
    now_ms,
    param_pairs,
    system_tags,
    tag_pairs,
    upload_contents,
)
from tune.mlflow_resume import take_up
from tune.mlflow_store import TRIALS_VIEW_TAG, package_versions
from tune.mlflow_story import NOTE
from tune.mlflow_view import BEST, WINNER, trials_view
from tune.mlflow_writer import StoreWriter

TrialStatus = Literal["completed", "early_stopped", "failed", "diverged", "interrupted"]
SearchStatus = Literal["completed", "failed", "interrupted"]

_RUN_STATUS: dict[str, RunStatus] = {
    "completed": "FINISHED",
    "early_stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
    "diverged": "FAILED",
}
_LONGEST_FINISH = 300.0
"""Seconds that `finish` grants a store that answers, but slowly, where a journal keeps what it does not get."""


class MlflowRecorder:
    """The only writer to the tracking store: one parent run for the search, one child run for each trial.

    `start` speaks to the store at once. Everything after it is queued and written by a daemon thread,
    `flush_seconds` later at the latest and within a second when a WER comes in. While the store is away the queue waits
    and the search goes on; `finish` gives up after `patience` seconds without an answer. With a `journal`, a file
    in the experiment's folder, what waits is on disk too: `resume`, or `tune-whisper sync`, delivers what a killed
    or impatient driver left there.
    """

    def __init__(
        self,
        tracking_uri: str,
        experiment: str,
        artifact_root: Path | None,
        *,
        journal: Path | None = None,
        storage: str | None = None,
        store: TrackingStore | None = None,
        flush_seconds: float = 5.0,
        patience: float = 30.0,
    ) -> None:
        """`storage` is what `--storage` must be given to find the experiment again; None for the default.

        `store` is of these three, in another process (`tune.apart`); None is one in this.
        """
        self._experiment = experiment
        self._store = store or TrackingStore(tracking_uri, experiment, artifact_root)
        self._journal = None if journal is None else Journal(journal)
        self._storage = storage
        self._writer = StoreWriter(
            self._store, flush_seconds=flush_seconds, patience=patience, journal=self._journal
        )
        self._parent: Run | None = None
        self._trials: dict[str, Run] = {}
        self._ended_before: dict[str, str | None] = {}
        self._facts = SearchFacts()

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

        Args:
            params: of the parent run; a trial's run says only what differs. `gpus_per_trial` among them gives the
                trials their GPU-hours.
            tags: of the parent run.
            description: of the parent run, as Markdown.
            artifacts: files to store with it.
            compare: the searched settings; `tune-whisper ui` shows them beside the WER of each trial.

        Returns:
            The id of the parent run.

        Raises:
            TrackingError: the store cannot be reached or written to; no run is left behind.
        """
        store = self._store
        store.connect()
        self._facts = SearchFacts.of(params, compare)
        store.tag_experiment(TRIALS_VIEW_TAG, trials_view(compare, gpus=self._facts.gpus > 0))
        all_tags = {
            **system_tags(),
            NOTE: description,
            "status": "running",
            "role": "experiment",
            **tags,
        }
        run_id = store.create_run(self._experiment, dict(tag_pairs(all_tags)), now_ms())
        try:
            for pairs in in_parts("params", param_pairs(params)):
                store.log_batch(run_id, params=pairs)
            store.upload_json(run_id, "versions.json", package_versions())
            for path in artifacts:
                store.upload(run_id, path)
            if self._journal is not None and any(run.waiting for run in self._journal.open()):
                raise TrackingError(f"{self._journal.path}: holds records of another search; remove it first")
        except TrackingError:
            store.delete_run(run_id)
            raise
        self._parent = Run(None, run_id)
        self._writer.runs.append(self._parent)
        self._writer.start()
        return run_id

    def resume(
        self,
        parent_run_id: str,
        trials: Mapping[str, tuple[str, str | None]],
        ended: Mapping[str, str | None] | None = None,
    ) -> None:
        """Instead of `start`: go on with the runs of an interrupted search.

        What the journal holds is written first, in its order.

        Args:
            parent_run_id: the search's run.
            trials: the trials that go on, each with its run's name and, where known, id; a run that was created
                without its id being kept is found by its tags.
            ended: run ids of the trials that had ended.

        Raises:
            TrackingError: the store cannot be reached, or the journal cannot be read.
        """
        self._ended_before = dict(ended or {})
        self._store.connect()
        self._store.reopen_run(parent_run_id)
        self._facts = SearchFacts.read(self._store.read_run(parent_run_id))
        self._parent, self._trials = take_up(
            self._store, self._writer, self._journal, parent_run_id, trials, self._ended_before
        )
        self._writer.start()

    def still_open(self, run_ids: Mapping[str, str | None]) -> set[str]:
        """Those of these trials, before `resume`, whose runs the store does not know to have ended.

        A driver that was killed, or whose machine was lost with what it had not uploaded, had no time to tell.

        Raises:
            TrackingError: the store cannot be reached.
        """
        self._store.connect()
        return {key for key, run_id in run_ids.items() if run_id is None or self._store.is_open(run_id)}

    def catch_up(self, trial_id: str, evaluations: Sequence[tuple[int, float]]) -> None:
        """After `resume`, log those WERs of a trial that an interrupted driver had kept and not told the store.

        Args:
            trial_id: one of those given to `resume`.
            evaluations: samples seen and WER of each.

        Raises:
            TrackingError: the store cannot be reached.
        """
        run = self._run(trial_id)
        with self._writer.changed:
            waiting = [record.content for record in run.waiting if record.kind == "metrics"]
        known = {int(point[3]) for content in waiting for point in content if point[0] == "wer"}
        run_id = run.run_id or self._store.find_run(self.parent_run_id, trial_id)
        if run_id is not None:
            known |= self._store.metric_steps(run_id, "wer")
        for step, wer in evaluations:
            if step not in known:
                self.log(trial_id, {"wer": wer}, step=step)

    def trial_started(
        self, trial_id: str, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> None:
        """Queue the child run of a trial; a trial that starts again (Ray's retry) keeps its run.

        Of `params` the run gets the searched ones, and those that are not the parent run's.
        """
        with self._writer.changed:
            if trial_id not in self._trials:
                run = self._trials[trial_id] = Run(trial_id)
                self._writer.queue(run, "create", creation(self.parent_run_id, trial_id, name, tags))
                self._writer.queue(run, "params", self._facts.own_params(params))
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
            if trial_id is None:
                self._facts.heard(metrics)
            self._writer.queue(run, "metrics", points)
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

        The tag `status` keeps the exact word; `metrics` get the last step that was logged. From `best_wer` and
        `seconds` among them follow `wer_gain` and, where trials take GPUs, `gpu_hours`.

        Raises:
            ValueError: no such trial was started.
        """
        with self._writer.changed:
            self._end(self._run(trial_id), status, self._facts.figures(metrics or {}), tags or {})
            self._writer.wake()

    def finish(
        self,
        status: SearchStatus,
        *,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
        artifacts: Sequence[Path] = (),
        description: str | None = None,
        best: str | None = None,
        winner: str | None = None,
    ) -> str | None:
        """End the parent run, and trials still open as KILLED; write what is queued and stop the writer.

        Args:
            status: of the search.
            metrics: of the parent run.
            tags: of the parent run.
            artifacts: files to store with it; those of a folder go below the folder's name.
            description: replaces the one that `start` was given.
            best: the trial or repeat whose weights are kept; its run gets the tag `best`.
            winner: the trial whose settings won; its run gets the tag `winner`.

        Returns:
            None, or one line that says how many records were not written, why, and how to deliver those that wait.

        Raises:
            RuntimeError: the writer had stopped on an error that was not foreseen (the cause of this one).
        """
        parent = self._run(None)
        with self._writer.changed:
            for run in self._trials.values():
                if not run.closed:
                    self._end(run, "interrupted", {}, {})
            if not parent.closed:
                told = {**(tags or {}), **({} if description is None else {NOTE: description})}
                self._end(parent, status, metrics or {}, told | self._name({BEST: best, WINNER: winner}))
                for path in artifacts:
                    for content in upload_contents(
                        path, self._journal.path.parent if self._journal else None
                    ):
                        self._writer.queue(parent, "upload", content)
                self._writer.runs = [*self._trials.values(), parent]  # the parent ends last
        reason = self._writer.close(None if self._journal is None else _LONGEST_FINISH)
        return self._told(reason)

    def run_id(self, trial_id: str) -> str | None:
        """The run of a trial; None until the writer has created it (when `finish` returns, it has)."""
        run = self._trials.get(trial_id)
        return (run.run_id if run else None) or self._ended_before.get(trial_id)

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
        """Why the store, or the journal, takes nothing just now, in one line; None while all is well."""
        return self._writer.problem or (self._journal.problem if self._journal else None)

    @property
    def unwritten(self) -> int:
        """Records that wait."""
        return self._writer.unwritten

    def _run(self, trial_id: str | None) -> Run:
        run = self._parent if trial_id is None else self._trials.get(trial_id)
        if run is None:
            raise ValueError(
                "start() comes first" if trial_id is None else f"trial {trial_id!r} was not started"
            )
        return run

    def _told(self, reason: str | None) -> str | None:
        """What is not written, why, and what to do, in one line."""
        lost, waiting = self._writer.lost, self._writer.unwritten
        if not lost and not waiting:
            return None
        if self._journal is None or not waiting or self._journal.problem:
            also = f" {self._journal.problem}" if waiting and self._journal else ""
            return f"{lost + waiting} MLflow records could not be written. {reason}{also}"
        words = ["tune-whisper", "sync", self._experiment]
        words += [] if self._storage is None else ["--storage", self._storage]
        refused = f"{lost} MLflow records were refused ({self._writer.lost_reason}), " if lost else ""
        return (
            f"{refused}{waiting} MLflow records wait in {self._journal.path}; "
            f"`{shlex.join(words)}` delivers them. {reason}"
        )

    def _name(self, trials: Mapping[str, str | None]) -> dict[str, str]:
        """Tag the runs of trials that stand out, and no longer those that an earlier session named.

        Returns:
            The parent run's tags that name them.
        """
        for tag, trial_id in trials.items():
            before = self._facts.named.get(tag)
            for key, value in ((before, "false"), (trial_id, "true")):
                run = None if key is None else self._known_run(key)
                if run is not None and not (key == trial_id and value == "false"):
                    self._writer.queue(run, "tags", [(tag, value)])
        return {NAMED_BY[tag]: trial_id for tag, trial_id in trials.items() if trial_id is not None}

    def _known_run(self, trial_id: str) -> Run | None:
        """The run of a trial, also where it ended before the search was resumed."""
        if trial_id not in self._trials and self._ended_before.get(trial_id):
            self._trials[trial_id] = Run(trial_id, self._ended_before[trial_id], closed=True)
        return self._trials.get(trial_id)

    def _end(self, run: Run, status: str, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        self._writer.queue(run, "metrics", metric_points(metrics, run.last_step, time.time()))
        self._writer.queue(run, "tags", tag_pairs({**tags, "status": status}))
        self._writer.queue(run, "status", [_RUN_STATUS[status], now_ms()])
        run.closed = True
