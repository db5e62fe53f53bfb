"""Searches on made-up learning curves: real searchers and schedulers, no Ray runtime, a clock that costs no time."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import ray.tune.schedulers
from curves.made_up import TrialFailure

from tune.runs.ray_tune import RaySearcher
from tune.search.records import Records, Trial
from tune.search.scheduler import TRIAL_ID, Judge
from tune.search.searcher import Searcher, Source

if TYPE_CHECKING:
    import ray.tune.search
    from ray.tune.schedulers import TrialScheduler

    from tune.space.space import SearchSpace

Curve = Callable[[Mapping[str, Any], int, int], Mapping[str, float]]
"""`wer` in percent and `eval_loss` of settings at a number of samples seen, with a seed; or `TrialFailure`."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A trial that came to its full budget, and what all trials had cost until then."""

    samples: float
    config: dict[str, Any]
    wer: float
    """The lowest that was measured, noise and all."""
    measured_at: int
    """Samples at which it was."""


@dataclasses.dataclass
class _Running:
    """A trial in a slot; to Ray's schedulers it stands for Ray's own `Trial`."""

    trial_id: str
    config: dict[str, Any]
    record: Trial
    since: float
    seen: float = 0.0
    evaluations: int = 0


class Simulation:
    """A search: hands results to searcher and scheduler in the order of Ray's `TuneController`."""

    def __init__(
        self,
        searcher: ray.tune.search.Searcher,
        scheduler: TrialScheduler,
        records: Records,
        curve: Curve,
        rungs: tuple[int, ...],
        seed: int = 0,
    ) -> None:
        """Any searcher and scheduler of Ray Tune as they come. Trials of `records` whose search was broken off go on.

        They are measured at `rungs`, in samples seen, the last of which is the full budget; `seed` is of the noise.
        """
        self.records = records
        self.finished: list[Finished] = []
        """Trials that came to the full budget, in that order."""
        self._searcher, self._scheduler = searcher, scheduler
        self._curve, self._rungs, self._seed = curve, rungs, seed
        self._order = itertools.count()
        self._events: list[tuple[float, int, _Running]] = []
        self._running: dict[str, _Running] = {}
        self._begun = 0
        self._ended_samples = 0.0
        self._evaluated = 0

    def run(
        self,
        *,
        slots: int = 1,
        trials: int | None = None,
        samples: float = math.inf,
        evaluations: int | None = None,
    ) -> None:
        """Go from one evaluation to the next until there is nothing left to do, or a limit is reached.

        Args:
            slots: trials at a time; each sees one sample in one second.
            trials: to begin; those that are in the records already do not count.
            samples: that all trials together may see; trials that run then are cut off.
            evaluations: the last one is decided on and recorded, and nothing after it happens, as after a kill.
        """
        now, exhausted = 0.0, False
        while self._evaluated != evaluations:
            while not exhausted and len(self._running) < slots and self._begun != trials:
                exhausted = not self._begin(now)
            if not self._events:
                return
            now, _, trial = heapq.heappop(self._events)
            if self._samples(now) > samples:
                return
            self._next(trial, now, cut=self._evaluated + 1 == evaluations)

    def _samples(self, now: float) -> float:
        """Samples that all trials have seen until now."""
        return self._ended_samples + sum(trial.seen + now - trial.since for trial in self._running.values())

    def _begin(self, now: float) -> bool:
        """Fill a slot; whether the searcher had anything left."""
        ray_id = f"ray-{self._begun}"
        config = self._searcher.suggest(ray_id)
        if not isinstance(config, dict):
            return False
        self._begun += 1
        number = config.get(TRIAL_ID, f"{self._begun:03d}")
        params = {name: value for name, value in config.items() if name != TRIAL_ID}
        trial = _Running(ray_id, config, self.records.start(number, params), now)
        if trial.record.evaluations:  # a resumed search goes on from the last checkpoint
            trial.seen = trial.record.evaluations[-1][0]
        self._scheduler.on_trial_add(None, trial)
        self._running[ray_id] = trial
        self._schedule(trial, now)
        return True

    def _schedule(self, trial: _Running, now: float) -> None:
        """The trial's next evaluation, or where it fails before."""
        rung = self._next_rung(trial)
        try:
            self._measure(trial, rung)
            seen = float(rung)
        except TrialFailure as failure:
            seen = max(failure.samples_seen, trial.seen)
        heapq.heappush(self._events, (now + seen - trial.seen, next(self._order), trial))

    def _next_rung(self, trial: _Running) -> int:
        return next(rung for rung in self._rungs if rung > trial.seen)

    def _measure(self, trial: _Running, rung: int) -> Mapping[str, float]:
        return self._curve(trial.record.config, rung, self._seed * 100_000 + int(trial.record.trial_id))

    def _next(self, trial: _Running, now: float, *, cut: bool) -> None:
        """Evaluate a trial; with `cut` nothing happens behind the decision."""
        rung, record = self._next_rung(trial), trial.record
        trial.seen, trial.since = trial.seen + now - trial.since, now
        try:
            rates = self._measure(trial, rung)
        except TrialFailure as failure:
            record.error = str(failure)
            self._end(trial, None)
            return
        trial.seen, trial.evaluations = float(rung), trial.evaluations + 1
        wer = float(rates["wer"])
        result: dict[str, Any] = {"wer": wer, "cer": wer / 3, "eval_loss": float(rates["eval_loss"])}
        result |= {"samples_seen": rung, "epoch": rung / self._rungs[-1]}
        result |= {"training_iteration": trial.evaluations, "finished": float(rung == self._rungs[-1])}
        self._evaluated += 1
        stops = self._scheduler.on_trial_result(None, trial, result) == "STOP"
        if record.samples_seen < rung:  # a scheduler of Ray's keeps no records
            record.add_evaluation(result)
        if rung == self._rungs[-1] and math.isfinite(wer):
            low, at = min((value, at) for at, value in record.evaluations if math.isfinite(value))
            self.finished.append(Finished(self._samples(now), record.config, low, at))
        if cut:
            return
        if not stops:
            self._searcher.on_trial_result(trial.trial_id, result)
        if stops or rung == self._rungs[-1]:
            self._end(trial, result)
        else:
            self._schedule(trial, now)

    def _end(self, trial: _Running, result: dict[str, Any] | None) -> None:
        """End a trial, for the searcher first, as Ray does; without a result it has failed."""
        del self._running[trial.trial_id]
        self._ended_samples += trial.seen
        if result is None:
            self._scheduler.on_trial_error(None, trial)
            self._searcher.on_trial_complete(trial.trial_id, error=True)
            trial.record.end("failed")
            return
        self._scheduler.on_trial_complete(None, trial, result)
        self._searcher.on_trial_complete(trial.trial_id, result=result)
        outcome = trial.record.outcome
        trial.record.end("early_stopped" if outcome == "running" else outcome)


def our_search(
    space: SearchSpace,
    curve: Curve,
    rungs: tuple[int, ...],
    *,
    seed: int = 0,
    baseline: float | None = None,
    records: Records | None = None,
    **limits: Any,
) -> Simulation:
    """Our own search of a resolved space: `Searcher` and `Judge`, as `run_trials` puts them together.

    It begins with a baseline, WER in percent, goes on with `records`, and ends at limits of `Simulation.run`.
    """
    records = Records() if records is None else records
    searcher = Searcher(space, seed=seed, records=records)
    simulation = search_with(searcher, space, curve, rungs, records, seed, baseline)
    simulation.run(**limits)
    return simulation


def search_with(
    source: Source,
    space: SearchSpace,
    curve: Curve,
    rungs: tuple[int, ...],
    records: Records,
    seed: int,
    baseline: float | None,
) -> Simulation:
    """A search of ours whose settings come from any source; see `our_search`."""
    judge = Judge(space.scheduler, rungs, records, baseline)

    class Scheduler(ray.tune.schedulers.FIFOScheduler):
        """A trial of ours asks what was decided, and ends by itself."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            record = records[trial.config[TRIAL_ID]]
            stop = judge.judge(record, result)
            record.add_evaluation(result, stop)
            return str(self.CONTINUE if stop is None else self.STOP)

    return Simulation(RaySearcher(source), Scheduler(), records, curve, rungs, seed)
