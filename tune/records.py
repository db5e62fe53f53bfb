"""What is known of every trial while the search runs, and what `results.json` says of it in the end."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

Outcome = Literal["completed", "early_stopped", "failed", "diverged"]
Status = Literal["running"] | Outcome


@dataclasses.dataclass
class TrialRecord:
    """One trial. Error rates in percent, times in seconds."""

    trial_id: str
    config: dict[str, Any]
    """The settings that the searcher chose."""
    status: Status = "running"
    wer: float | None = None
    """WER of the last evaluation."""
    best_wer: float | None = None
    best_cer: float | None = None
    best_samples_seen: int = 0
    samples_seen: int = 0
    epoch: float = 0.0
    loss: float | None = None
    evaluations: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    """Samples seen and WER of every evaluation."""
    started: float = dataclasses.field(default_factory=time.monotonic)
    seconds: float = 0.0
    error: str | None = None

    def add_evaluation(self, metrics: Mapping[str, Any]) -> None:
        """Take in one evaluation; a WER that is not a number marks the trial as diverged."""
        self.samples_seen = int(metrics["samples_seen"])
        wer = float(metrics["wer"])
        if not math.isfinite(wer):
            self.status = "diverged"
            return
        self.epoch = float(metrics["epoch"])
        self.wer = wer
        self.evaluations.append((self.samples_seen, wer))
        # Of equal evaluations the later one counts, as in Ray, which keeps its checkpoint.
        if self.best_wer is None or wer <= self.best_wer:
            self.best_wer, self.best_cer, self.best_samples_seen = (
                wer,
                float(metrics["cer"]),
                self.samples_seen,
            )

    def add_progress(self, metrics: Mapping[str, float]) -> None:
        """Take in loss and position between two evaluations."""
        if self.status == "running" and metrics["samples_seen"] >= self.samples_seen:
            self.samples_seen = int(metrics["samples_seen"])
            self.epoch = metrics["epoch"]
            self.loss = metrics.get("loss")

    def end(self, outcome: Outcome) -> Outcome:
        """Fix the outcome and return it; a trial found to have diverged stays so."""
        if self.status == "running":
            self.status = outcome
            self.seconds = time.monotonic() - self.started
        elif not self.seconds:
            self.seconds = time.monotonic() - self.started
        return self.status


class Records:
    """All trials in the order of their start; safe to use from several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._trials: dict[str, TrialRecord] = {}

    def __getitem__(self, trial_id: str) -> TrialRecord:
        return self._trials[trial_id]

    def __contains__(self, trial_id: str) -> bool:
        return trial_id in self._trials

    def start(self, trial_id: str, config: dict[str, Any]) -> TrialRecord:
        """Add a trial; one that is started again after a failure keeps its evaluations."""
        with self.lock:
            if trial_id not in self._trials:
                self._trials[trial_id] = TrialRecord(trial_id, config)
            return self._trials[trial_id]

    def all(self) -> list[TrialRecord]:
        """The trials by number."""
        with self.lock:
            return [self._trials[key] for key in sorted(self._trials)]

    def best(self) -> TrialRecord | None:
        """The trial with the lowest WER at any of its evaluations, also where it failed or diverged later."""
        return min(
            (record for record in self.all() if record.best_wer is not None),
            key=lambda record: record.best_wer if record.best_wer is not None else math.inf,
            default=None,
        )
