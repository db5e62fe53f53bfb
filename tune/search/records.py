"""What is known of every trial: made by folding the experiment's log, read by scheduler, searcher and screen.

Trainings have names: `005` is a trial, `005-r1` a repeat of it. `005-a1` is an average of repeats, the best one of them
a repeat of `005`: what is exported and evaluated as a training is, and was trained by none.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from trainer.scoring.objectives import objective_value
from trainer.training.report import Kept

Reason = Literal["asha", "diverged", "above_baseline", "rising_wer"]
TrialOutcome = Literal["completed", "early_stopped", "failed", "diverged", "interrupted"]
Status = Literal["running"] | TrialOutcome
OUTCOMES: dict[Status, str] = {
    "completed": "completed",
    "early_stopped": "stopped early",
    "diverged": "diverged",
    "failed": "failed",
    "interrupted": "interrupted",
    "running": "running",
}
"""The words for a trial's status, in the order in which they are shown."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """Why a trial was ended before its budget."""

    reason: Reason
    samples_seen: int
    """The rung, or wherever a loss or WER was no finite number."""
    value: float | None = None
    """The trial's objective there, in percent; None where it was no number."""
    cutoff: float | None = None
    """The objective, in percent, that it would have had to reach; None where there is no such number."""
    population: int = 0
    """Trials that had reached the rung, itself included."""
    loss: float | None = None
    """The evaluation loss that the cutoff depends on; None where it does not."""

    def describe(self) -> str:
        """The reason in words, for the screen and MLflow."""
        if self.reason == "diverged":
            return f"loss or WER was not a finite number at {self.samples_seen:,} samples"
        text = f"WER {self.value:.2f} % at {self.samples_seen:,} samples is above {self.cutoff:.2f} %, "
        if self.reason == "asha":
            for_loss = "" if self.loss is None else f" for its loss of {self.loss:.3f}"
            return f"{text}the cutoff among {self.population} trials{for_loss}"
        if self.reason == "above_baseline":
            return f"{text}a multiple of the base model's"
        return f"{text}its WER at the rung before, and rises while the loss falls"


@dataclasses.dataclass(frozen=True)
class Rates:
    """One evaluation; error rates in percent."""

    samples_seen: int
    epoch: float
    value: float
    cer: float | None
    keep: Kept | None = None
    """What of it is to be saved."""
    sources: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """By the source of the clips, where there are several."""


@dataclasses.dataclass
class Trial:
    """One training: a trial, or the repeat of one. Error rates in percent, times in seconds."""

    trial_id: str
    config: dict[str, Any]
    """The settings that the searcher chose; of an average those of the trial whose repeats it is the mean of."""
    effective_batch: int = 0
    """Clips in one optimiser step: micro-batch x accumulation x workers."""
    status: Status = "running"
    value: float | None = None
    """The objective at the last evaluation: the WER, or of translations the chrF error."""
    best_value: float | None = None
    best_cer: float | None = None
    best_samples_seen: int = 0
    best_epoch: float = 0.0
    samples_seen: int = 0
    """At the last evaluation."""
    epoch: float = 0.0
    evaluations: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    """Samples seen and objective of every evaluation."""
    first_logged: dict[tuple[int, float | None], float] = dataclasses.field(default_factory=dict)
    """When an evaluation with these samples seen and this value was first in the log, in seconds since the epoch."""
    losses: dict[int, float] = dataclasses.field(default_factory=dict)
    """Evaluation loss of each of them, by samples seen; 0 where it is not known."""
    finished: bool = False
    """Whether the last of them was at the full budget."""
    stop: Stop | None = None
    """Why the trial was ended before that."""
    started: float = 0.0
    """When it began to run in this session, in seconds since the epoch; 0 where it does not run."""
    seconds: float = 0.0
    """How long it ran, without what `started` counts."""
    ended: float = 0.0
    """When it ended, in seconds since the epoch."""
    session: int = 0
    error: str | None = None
    folder: str = ""
    """Name of the folder that Ray gave it; another one each time that the search is resumed."""
    checkpoint: str | None = None
    """The best evaluation's checkpoint, relative to the experiment's folder."""
    unsaved: dict[int, Rates] = dataclasses.field(default_factory=dict)
    """Evaluations, by samples seen, of which something is to be saved and is not on the storage yet."""
    stop_again: Stop | None = None
    """The last decision to end it: where its process fails before that is done, the evaluation is decided on once."""
    last_checkpoint: str | None = None
    """The last evaluation's, from which the trial can go on."""
    earlier_checkpoint: str | None = None
    """The one before the last, where the best is the last or has weights alone: to go on from if that is damaged."""
    weights_dropped: bool = False
    """Whether nothing but small files is left of the checkpoint."""
    checkpoint_resumes: bool = True
    """Whether a trial can go on from the best evaluation's checkpoint: it has more than weights."""
    checkpoint_epoch: float = 0.0
    """Epoch of the last checkpoint."""
    samples_per_second: float | None = None
    """Speed of the training steps alone, of the last process that trained it."""
    train_seconds: float = 0.0
    """Time in training steps, by that speed, of all samples seen."""
    begun: float = 0.0
    """When it first began to run, in seconds since the epoch; 0 where it never did."""
    members: Sequence[str] = ()
    """Of an average: the runs whose weights it is the mean of."""
    best_sources: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    """Rates of the best evaluation by the source of the clips, where there are several."""
    progress: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Where it stands between two evaluations (`samples_seen`, `epoch`, `loss`); not in the log."""

    def add_evaluation(
        self,
        metrics: Mapping[str, Any],
        stop: Stop | None = None,
        keep: Kept | None = None,
        sources: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Take in one evaluation, what was decided on it, and what is to be saved of it.

        One without a number leaves no rate. Where something is to be saved, the evaluation can be the trial's best only
        once that is done.
        """
        self.samples_seen = int(metrics["samples_seen"])
        self.stop = stop
        self.stop_again = stop or self.stop_again
        value = objective_value(metrics)
        if not math.isfinite(value):
            return
        self.finished = bool(metrics.get("finished"))
        self.epoch = float(metrics["epoch"])
        self.value = value
        # A trial whose checkpoint was lost comes by the same rungs again; at those behind it nothing is forgotten.
        self.losses[self.samples_seen] = _number(metrics.get("eval_loss")) or 0.0
        self.evaluations = sorted({**dict(self.evaluations), self.samples_seen: value}.items())
        if metrics.get("train_seconds"):
            self.samples_per_second = float(metrics["train_samples"]) / float(metrics["train_seconds"])
            self.train_seconds = self.samples_seen / max(self.samples_per_second, 1e-9)
        cer = _number(metrics.get("cer"))
        rates = Rates(self.samples_seen, self.epoch, value, cer, keep, sources or {})
        if keep is None:
            self._take_as_best(rates)
        else:
            self.unsaved[self.samples_seen] = rates

    def _take_as_best(self, rates: Rates) -> bool:
        """Whether these are the trial's best so far. Of equal ones the later count."""
        is_best = self.would_be_best(rates.value)
        if is_best:
            self.best_value, self.best_cer, self.best_sources = rates.value, rates.cer, rates.sources
            self.best_samples_seen, self.best_epoch = rates.samples_seen, rates.epoch
        return is_best

    def would_be_best(self, value: float) -> bool:
        """Whether an evaluation with this objective would be the trial's best."""
        return self.best_value is None or value <= self.best_value

    def add_saved(self, samples_seen: int, epoch: float, path: str, keep: Kept) -> None:
        """Take in that what was to be kept of an evaluation, or between two, is on the storage."""
        rates = self.unsaved.pop(samples_seen, None)
        if rates and path == self.checkpoint:
            self.best_value = None  # the best one was damaged, and this one has taken its place
        is_best = self._take_as_best(rates) if rates else self.best_samples_seen == samples_seen
        if is_best:
            self.checkpoint, self.weights_dropped = path, keep == "errors"
            self.checkpoint_resumes = keep == "all"
        if keep == "all":
            before = self.last_checkpoint
            self.last_checkpoint, self.checkpoint_epoch = path, epoch
            if before != path:
                self.earlier_checkpoint = before if is_best or not self.checkpoint_resumes else None

    def lose_unsaved(self) -> None:
        """The process is gone; what it had not saved is to be measured again, and ends there where it did."""
        if not self.unsaved:
            return
        self.unsaved = {}
        if self.status == "running" and (self.stop is not None or self.finished):
            self.stop, self.finished = None, False

    @property
    def checkpoints(self) -> list[str]:
        """All that are kept, the first choice for going on first: the last, then the best, or the one before it."""
        kept = (self.last_checkpoint, self.checkpoint, self.earlier_checkpoint)
        return list(dict.fromkeys(path for path in kept if path))

    @property
    def resumable(self) -> list[str]:
        """Those from which it can go on."""
        last = (self.last_checkpoint, self.earlier_checkpoint)
        return [path for path in self.checkpoints if path in last or self.checkpoint_resumes]

    @property
    def has_weights(self) -> bool:
        """Whether there is something of it to export."""
        return self.checkpoint is not None and not self.weights_dropped

    @property
    def elapsed(self) -> float:
        """Seconds that the trial has taken, or took."""
        return self.seconds + (max(0.0, time.time() - self.started) if self.started else 0.0)

    @property
    def outcome(self) -> Status:
        """How the trial ended, or ends by what was decided; `running` where nothing was."""
        if self.status != "running":
            return self.status
        if self.stop is not None:
            return "diverged" if self.stop.reason == "diverged" else "early_stopped"
        return "completed" if self.finished else "running"

    def pause(self, now: float) -> None:
        if self.started:
            self.seconds += max(0.0, now - self.started)
            self.started = 0.0

    def end(self, outcome: TrialOutcome, now: float | None = None, *, resumable: bool = False) -> None:
        """Fix how it ended, at a time in seconds since the epoch.

        What only going on needed is forgotten, unless it is `resumable`.
        """
        now = time.time() if now is None else now
        if outcome == "failed":
            self.lose_unsaved()
        self.pause(now)
        self.status, self.ended = outcome, now
        if not resumable:
            self.last_checkpoint = self.earlier_checkpoint = None
        self.unsaved = {}

    def add_progress(self, metrics: Mapping[str, float]) -> None:
        """Take in loss and position between two evaluations."""
        if self.status == "running" and metrics["samples_seen"] >= self.samples_seen:
            self.progress = metrics

    @property
    def samples_now(self) -> int:
        """Samples seen by what was last heard, also between two evaluations."""
        return max(self.samples_seen, int(self.progress.get("samples_seen", 0)))

    @property
    def epoch_now(self) -> float:
        """The epoch by what was last heard."""
        return max(self.epoch, float(self.progress.get("epoch", 0.0)))


class Records(dict[str, Trial]):
    """All trials, or all repeats, by name; safe to read from several threads while one folds events into it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self._sorted: list[Trial] | None = None

    def add(self, record: Trial) -> None:
        with self.lock:
            self[record.trial_id] = record
            self._sorted = None

    def start(self, trial_id: str, config: dict[str, Any]) -> Trial:
        """Add a trial that runs now, or find the one of this number."""
        with self.lock:
            if trial_id not in self:
                self.add(Trial(trial_id, config, started=time.time()))
            return self[trial_id]

    def all(self) -> Sequence[Trial]:
        """The trials by number."""
        with self.lock:
            if self._sorted is None:
                self._sorted = [self[key] for key in sorted(self, key=trial_order)]
            return self._sorted

    def running(self) -> list[Trial]:
        return [record for record in self.all() if record.status == "running"]

    def best(self) -> Trial | None:
        """The trial with the lowest objective at any of its evaluations, also where it failed or diverged later."""
        return min((record for record in self.all() if record.best_value is not None), key=rank, default=None)


def rank(record: Trial) -> float:
    """Sorts runs that were evaluated from the best on."""
    return math.inf if record.best_value is None else record.best_value


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None


Role = Literal["trial", "repeat", "average"]
_NAME = re.compile(r"(.*?)(?:-([ra])(\d+))?", re.DOTALL)
"""A trial's name, and what follows it in those of its repeats and averages."""
_ROLES: dict[str | None, Role] = {None: "trial", "r": "repeat", "a": "average"}


def _parts(run: str) -> tuple[str, str | None, str]:
    found = _NAME.fullmatch(run)
    assert found is not None  # it fits any text
    return found[1], found[2], found[3] or ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """`001, 002 and 003`; long lists are cut."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def trial_of(run: str) -> str:
    """The trial that a repeat is of, or the first of an average's members; a trial itself as it is."""
    return _parts(run)[0]


def role_of(run: str) -> Role:
    """What MLflow calls a run of this name."""
    return _ROLES[_parts(run)[1]]


@functools.cache
def trial_order(run: str) -> tuple[int, str, int, str]:
    """Sorts runs by number: `1000` comes after `999`, repeats follow their trial, and averages its repeats."""
    trial, kind, number = _parts(run)
    after = {None: "", "r": "0", "a": "1"}[kind]
    return int(trial) if trial.isdecimal() else 0, after, int(number or 0), run
