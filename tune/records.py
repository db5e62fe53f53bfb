"""What is known of every trial while the search runs, and what `results.json` says of it in the end."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

from tune.decisions import Stop

Outcome = Literal["completed", "early_stopped", "failed", "diverged", "interrupted"]
Status = Literal["running"] | Outcome


@dataclasses.dataclass
class TrialRecord:
    """One trial. Error rates in percent, times in seconds."""

    trial_id: str
    config: dict[str, Any]
    """The settings that the searcher chose."""
    effective_batch: int = 0
    """Clips in one optimiser step: micro-batch x accumulation x workers."""
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
    losses: list[float] = dataclasses.field(default_factory=list)
    """Evaluation loss of each of them."""
    finished: bool = False
    """Whether the last of them was at the full budget."""
    stop: Stop | None = None
    """Why the trial was ended before that."""
    started: float = dataclasses.field(default_factory=time.monotonic)
    seconds: float = 0.0
    ended: float = 0.0
    """When it ended, in seconds since the epoch."""
    error: str | None = None
    folder: str = ""
    """Name of the folder that Ray gave it; another one each time that the search is resumed."""
    checkpoint: str | None = None
    """The best evaluation's checkpoint, relative to the experiment's folder."""
    last_checkpoint: str | None = None
    """The last evaluation's, from which the trial can go on."""
    earlier_checkpoint: str | None = None
    """The one before the last, where the last is also the best: something to go on from if it is damaged."""
    weights_dropped: bool = False
    """Whether nothing but small files is left of the checkpoint."""
    checkpoint_epoch: float = 0.0
    """Epoch of that evaluation."""
    wer_errors: dict[int, float] = dataclasses.field(default_factory=dict)
    """Standard error of the WER, in points, at the samples seen where only a part of the clips was measured."""

    def add_checkpoint(self, path: str) -> None:
        """Take in the checkpoint of the evaluation that was added last."""
        before = self.last_checkpoint
        self.last_checkpoint, self.checkpoint_epoch = path, self.epoch
        is_best = self.best_samples_seen == self.samples_seen
        if is_best:
            self.checkpoint = path
        if before != path:
            self.earlier_checkpoint = before if is_best else None

    @property
    def checkpoints(self) -> list[str]:
        """All that are kept, the first choice for going on first: the last, then the best, or the one before it."""
        kept = (self.last_checkpoint, self.checkpoint, self.earlier_checkpoint)
        return list(dict.fromkeys(path for path in kept if path))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `from_dict`."""
        values = dataclasses.asdict(self)
        values["seconds"] = self.elapsed
        del values["started"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialRecord:
        """The record that `to_dict` made plain; its clock goes on from the time that it had taken."""
        stop = values.get("stop")
        record = cls(
            **{
                **values,
                "evaluations": [(seen, wer) for seen, wer in values["evaluations"]],
                "losses": values.get("losses") or [0.0] * len(values["evaluations"]),
                "wer_errors": {int(seen): error for seen, error in values.get("wer_errors", {}).items()},
                "stop": Stop(**stop) if stop else None,
            }
        )
        if record.status == "running":
            record.started -= record.seconds
            record.seconds = 0.0
        return record

    @property
    def best_is_partial(self) -> bool:
        """Whether the best WER is that of a part of the clips, since the trial never came to measure all."""
        return self.best_samples_seen in self.wer_errors

    @property
    def best_wer_error(self) -> float:
        """Standard error of the best WER, in points; 0 where all clips were measured."""
        return self.wer_errors.get(self.best_samples_seen, 0.0)

    @property
    def elapsed(self) -> float:
        """Seconds that the trial has taken, or took."""
        return self.seconds or time.monotonic() - self.started

    @property
    def outcome(self) -> Status:
        """How the trial ended, or ends by what was decided; `running` where nothing was."""
        if self.status != "running":
            return self.status
        if self.stop is not None:
            return "diverged" if self.stop.reason == "diverged" else "early_stopped"
        return "completed" if self.finished else "running"

    def add_evaluation(self, metrics: Mapping[str, Any], stop: Stop | None = None) -> None:
        """Take in one evaluation and what was decided on it; a WER that is not a number leaves no rate."""
        self.samples_seen = int(metrics["samples_seen"])
        self.stop = stop
        wer = float(metrics["wer"])
        if not math.isfinite(wer):
            return
        self.finished = bool(metrics.get("finished"))
        self.epoch = float(metrics["epoch"])
        self.wer = wer
        loss = float(metrics.get("eval_loss", 0.0))
        # A trial whose checkpoint was lost comes by the same rungs again; at those behind it nothing is forgotten.
        found = {
            seen: (old, old_loss) for (seen, old), old_loss in zip(self.evaluations, self.losses, strict=True)
        }
        found[self.samples_seen] = (wer, loss if math.isfinite(loss) else 0.0)
        self.evaluations = [(seen, found[seen][0]) for seen in sorted(found)]
        self.losses = [found[seen][1] for seen in sorted(found)]
        partial = "eval_clips" in metrics
        if partial:
            self.wer_errors = {**self.wer_errors, self.samples_seen: float(metrics["wer_error"])}
        # Of equal evaluations the later one counts, as in Ray, which keeps its checkpoint. One on all clips goes
        # before one on a part of them.
        if self.best_wer is None or (partial, wer) <= (self.best_is_partial, self.best_wer):
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
            self.status, self.ended = outcome, time.time()
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

    def start(self, trial_id: str, config: dict[str, Any], effective_batch: int = 0) -> TrialRecord:
        """Add a trial; one that is started again after a failure keeps its evaluations."""
        with self.lock:
            if trial_id not in self._trials:
                self._trials[trial_id] = TrialRecord(trial_id, config, effective_batch)
            return self._trials[trial_id]

    def add(self, record: TrialRecord) -> None:
        """Add a trial that was restored."""
        with self.lock:
            self._trials[record.trial_id] = record

    def all(self) -> list[TrialRecord]:
        """The trials by number."""
        with self.lock:
            return [self._trials[key] for key in sorted(self._trials)]

    def best(self) -> TrialRecord | None:
        """The trial with the lowest WER at any of its evaluations, also where it failed or diverged later.

        One that was measured on a part of the clips only where none was on all.
        """
        return min(
            (record for record in self.all() if record.best_wer is not None),
            key=lambda record: (record.best_is_partial, record.best_wer or 0.0),
            default=None,
        )
