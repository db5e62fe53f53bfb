"""A stand-in for Ray Tune's controller: trials in slots, and a clock that costs no time."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tune.search.records import Records, TrialRecord
from tune.search.scheduler import TIME_ATTRIBUTE, TRIAL_ID

if TYPE_CHECKING:
    import ray.tune.search
    from ray.tune.schedulers import TrialScheduler


class TrialFailure(Exception):  # noqa: N818  # what befell a trial, no mistake of the program
    """A simulated training broke down, as one without memory does."""

    def __init__(self, samples_seen: float, reason: str) -> None:
        super().__init__(reason)
        self.samples_seen = samples_seen
        """Where it broke down; not more than what was asked for."""


class Curve(Protocol):
    """What a trial's evaluations come to."""

    def __call__(self, config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
        """`wer` in percent and `eval_loss`, or `TrialFailure`."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Where a simulated search ends: at whichever comes first."""

    trials: int | None = None
    """Trials in all."""
    samples: float = math.inf
    """Samples that all trials together have seen; trials that run then are cut off."""
    evaluations: int | None = None
    """Evaluations; the last one is decided on and recorded, and nothing after it happens, as after a kill."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A trial that came to its full budget, and what all trials had cost until then."""

    samples: float
    config: dict[str, Any]
    wer: float
    """Measured at the full budget, noise and all."""


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What a simulated search came to."""

    records: Records
    timeline: list[Found]
    """Trials that came to the full budget, in that order."""
    samples: float
    """Samples that all trials together have seen."""

    def best(self) -> list[Found]:
        """The timeline's trials whose WER was the lowest until then; what a user would export at the time."""
        lows: list[Found] = []
        for found in self.timeline:
            if not lows or found.wer < lows[-1].wer:
                lows.append(found)
        return lows


@dataclasses.dataclass
class _Running:
    """A trial in a slot; to Ray's schedulers it stands for Ray's own `Trial`."""

    trial_id: str
    config: dict[str, Any]
    record: TrialRecord
    since: float
    seen: float = 0.0
    evaluations: int = 0


class SimulatedController:
    """Hands results to searcher and scheduler in the order of Ray's `TuneController`."""

    def __init__(
        self,
        searcher: ray.tune.search.Searcher,
        scheduler: TrialScheduler,
        records: Records,
        curve: Curve,
        rungs: tuple[int, ...],
        seed: int,
        keeps_records: bool,
    ) -> None:
        self.searcher, self.scheduler, self.records = searcher, scheduler, records
        self._curve, self._rungs, self._seed, self._keeps_records = curve, rungs, seed, keeps_records
        self._order = itertools.count()
        self._events: list[tuple[float, int, _Running]] = []
        self._running: dict[str, _Running] = {}
        self._begun = 0
        self._ended_samples = 0.0
        self._evaluated = 0
        self.timeline: list[Found] = []
        self._now = 0.0

    def run(self, slots: int, limits: Limits) -> None:
        """Go from one evaluation to the next; a trial sees one sample in one second."""
        exhausted = False
        while True:
            while not exhausted and len(self._running) < slots and self._begun != limits.trials:
                exhausted = not self._begin(self._now)
            if not self._events:
                return
            time, _, trial = heapq.heappop(self._events)
            if self.samples(time) > limits.samples:
                return
            self._now = time
            self._next(trial, time, limits)
            if self._evaluated == limits.evaluations:
                return

    def samples(self, now: float) -> float:
        """Samples that all trials have seen until now."""
        return self._ended_samples + sum(trial.seen + now - trial.since for trial in self._running.values())

    def _begin(self, now: float) -> bool:
        """Fill a slot; whether the searcher had anything left."""
        ray_id = f"ray-{self._begun}"
        config = self.searcher.suggest(ray_id)
        if not isinstance(config, dict):  # none is left
            return False
        self._begun += 1
        number = config.get(TRIAL_ID, f"{self._begun:03d}")
        params = {name: value for name, value in config.items() if name != TRIAL_ID}
        trial = _Running(ray_id, config, self.records.start(number, params), now)
        if trial.record.evaluations:  # a resumed search goes on from the last checkpoint
            trial.seen = trial.record.evaluations[-1][0]
        self.scheduler.on_trial_add(None, trial)
        self._running[ray_id] = trial
        self._schedule(trial, now)
        return True

    def _schedule(self, trial: _Running, now: float) -> None:
        """The trial's next evaluation, or where it fails before."""
        rung = next(rung for rung in self._rungs if rung > trial.seen)
        try:
            self._measure(trial, rung)
            seen = float(rung)
        except TrialFailure as failure:
            seen = max(failure.samples_seen, trial.seen)
        heapq.heappush(self._events, (now + seen - trial.seen, next(self._order), trial))

    def _measure(self, trial: _Running, rung: int) -> Mapping[str, float]:
        number = int(trial.record.trial_id)
        return self._curve(trial.record.config, rung, self._seed * 100_000 + number)

    def _next(self, trial: _Running, now: float, limits: Limits) -> None:
        rung = next(rung for rung in self._rungs if rung > trial.seen)
        trial.seen, trial.since = trial.seen + now - trial.since, now
        try:
            rates = self._measure(trial, rung)
        except TrialFailure as failure:
            trial.record.error = str(failure)
            self._end(trial, None)
            return
        trial.seen, trial.evaluations = float(rung), trial.evaluations + 1
        result = self._result(trial, rung, rates)
        self._evaluated += 1
        if not self._keeps_records:
            trial.record.add_evaluation(result)
        stops = self.scheduler.on_trial_result(None, trial, result) == "STOP"
        if rung == self._rungs[-1] and math.isfinite(result["wer"]):
            self.timeline.append(Found(self.samples(now), trial.record.config, result["wer"]))
        if self._evaluated == limits.evaluations:
            return
        if not stops:
            self.searcher.on_trial_result(trial.trial_id, result)
        if stops or rung == self._rungs[-1]:
            self._end(trial, result)
        else:
            self._schedule(trial, now)

    def _result(self, trial: _Running, rung: int, rates: Mapping[str, float]) -> dict[str, Any]:
        return {
            "wer": float(rates["wer"]),
            "cer": float(rates["wer"]) / 3,
            "eval_loss": float(rates["eval_loss"]),
            TIME_ATTRIBUTE: rung,
            "epoch": rung / self._rungs[-1],
            "training_iteration": trial.evaluations,
            "finished": float(rung == self._rungs[-1]),
        }

    def _end(self, trial: _Running, result: dict[str, Any] | None) -> None:
        """Tell of the end: the searcher first, as Ray does; without a result the trial has failed."""
        del self._running[trial.trial_id]
        self._ended_samples += trial.seen
        if result is None:
            self.scheduler.on_trial_error(None, trial)
            self.searcher.on_trial_complete(trial.trial_id, error=True)
            trial.record.end("failed")
            return
        self.scheduler.on_trial_complete(None, trial, result)
        self.searcher.on_trial_complete(trial.trial_id, result=result)
        outcome = trial.record.outcome
        trial.record.end("early_stopped" if outcome == "running" else outcome)

    def result(self) -> Simulation:
        """What came of it."""
        return Simulation(self.records, self.timeline, self.samples(self._now))
