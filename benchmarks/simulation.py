"""Searches on made-up learning curves: real searchers and schedulers, no Ray runtime, a clock that costs no time."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ray.tune.schedulers
from curves.made_up import TrialFailure

from tune.runs.ray_tune import RaySearcher
from tune.search.records import Records, Trial
from tune.search.scheduler import TRIAL_ID, Judge
from tune.search.searcher import EarlierTrial, Searcher, Source

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


_Event = tuple[float, int, _Running, int, Mapping[str, float] | TrialFailure]
"""When, in which order, which trial, at which rung, and what comes of it."""


@dataclasses.dataclass
class Simulation:
    """A search: hands results to searcher and scheduler in the order of Ray's `TuneController`.

    Any searcher and scheduler of Ray Tune as they come. Trials of `records` whose search was broken off go on.
    """

    searcher: ray.tune.search.Searcher
    scheduler: TrialScheduler
    records: Records
    curve: Curve
    rungs: tuple[int, ...]
    """Samples seen at which trials are measured; the last is the full budget."""
    seed: int = 0
    """Of the noise."""
    finished: list[Finished] = dataclasses.field(default_factory=list, init=False)
    """Trials that came to the full budget, in that order."""
    samples: float = dataclasses.field(default=0.0, init=False)
    """That all trials had seen at the last evaluation."""

    def __post_init__(self) -> None:
        self._order: Iterator[int] = itertools.count()
        self._events: list[_Event] = []
        self._running: dict[str, _Running] = {}
        self._begun = self._evaluated = 0
        self._ended_samples = 0.0

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
            now, _, trial, rung, found = heapq.heappop(self._events)
            if self._samples(now) > samples:
                return
            self.samples = self._samples(now)
            trial.seen, trial.since = trial.seen + now - trial.since, now
            if isinstance(found, TrialFailure):
                trial.record.error = str(found)
                self._end(trial, None)
            else:
                self._evaluate(trial, rung, found, cut=self._evaluated + 1 == evaluations)

    def _samples(self, now: float) -> float:
        """Samples that all trials have seen until now."""
        return self._ended_samples + sum(trial.seen + now - trial.since for trial in self._running.values())

    def _begin(self, now: float) -> bool:
        """Fill a slot; whether the searcher had anything left."""
        ray_id = f"ray-{self._begun}"
        config = self.searcher.suggest(ray_id)
        if not isinstance(config, dict):
            return False
        self._begun += 1
        number = config.get(TRIAL_ID, f"{self._begun:03d}")
        params = {name: value for name, value in config.items() if name != TRIAL_ID}
        trial = _Running(ray_id, config, self.records.start(number, params), now)
        if trial.record.evaluations:  # a resumed search goes on from the last checkpoint
            trial.seen = trial.record.evaluations[-1][0]
        self.scheduler.on_trial_add(None, trial)
        self._running[ray_id] = trial
        self._go_on(trial)
        return True

    def _go_on(self, trial: _Running) -> None:
        """To the trial's next evaluation, or to where it fails before."""
        rung = next(rung for rung in self.rungs if rung > trial.seen)
        found: Mapping[str, float] | TrialFailure
        try:
            trial_seed = self.seed * 100_000 + int(trial.record.trial_id)
            found, seen = self.curve(trial.record.config, rung, trial_seed), float(rung)
        except TrialFailure as failure:
            found, seen = failure, max(failure.samples_seen, trial.seen)
        when = trial.since + seen - trial.seen
        heapq.heappush(self._events, (when, next(self._order), trial, rung, found))

    def _evaluate(self, trial: _Running, rung: int, rates: Mapping[str, float], *, cut: bool) -> None:
        """Tell scheduler and searcher; with `cut` nothing happens behind the decision."""
        record, wer = trial.record, float(rates["wer"])
        trial.seen, trial.evaluations = float(rung), trial.evaluations + 1
        result: dict[str, Any] = {"wer": wer, "cer": wer / 3, "eval_loss": float(rates["eval_loss"])}
        result |= {"samples_seen": rung, "epoch": rung / self.rungs[-1]}
        result |= {"training_iteration": trial.evaluations, "finished": float(rung == self.rungs[-1])}
        self._evaluated += 1
        stops = self.scheduler.on_trial_result(None, trial, result) == "STOP"
        if record.samples_seen < rung:  # a scheduler of Ray's keeps no records
            record.add_evaluation(result)
        if rung == self.rungs[-1] and math.isfinite(wer):
            low, at = min((value, at) for at, value in record.evaluations if math.isfinite(value))
            self.finished.append(Finished(self.samples, record.config, low, at))
        if cut:
            return
        if not stops:
            self.searcher.on_trial_result(trial.trial_id, result)
        if stops or rung == self.rungs[-1]:
            self._end(trial, result)
        else:
            self._go_on(trial)

    def _end(self, trial: _Running, result: dict[str, Any] | None) -> None:
        """End a trial, for the searcher first, as Ray does; without a result it has failed."""
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


def our_search(
    space: SearchSpace,
    curve: Curve,
    rungs: tuple[int, ...],
    *,
    seed: int = 0,
    baseline: float | None = None,
    records: Records | None = None,
    source: Source | None = None,
    compare_losses: bool = True,
    earlier: Iterable[EarlierTrial] = (),
    **limits: Any,
) -> Simulation:
    """Our own search of a resolved space: `Searcher` and `Judge`, as `run_trials` puts them together.

    It begins with a baseline, WER in percent, goes on with `records`, and ends at limits of `Simulation.run`. `source`
    takes the place of the `Searcher`; for `compare_losses` see `Judge`, for `earlier` `Searcher`.
    """
    records = Records() if records is None else records
    judge = Judge(
        space.scheduler,
        rungs,
        records,
        baseline,
        compare_losses=compare_losses,
        kept=lambda record: record.config in space.try_first[:1],
    )

    class Scheduler(ray.tune.schedulers.FIFOScheduler):
        """A trial of ours asks what was decided, and ends by itself."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            record = records[trial.config[TRIAL_ID]]
            stop = judge.judge(record, result)
            record.add_evaluation(result, stop)
            return str(self.CONTINUE if stop is None else self.STOP)

    searcher = RaySearcher(source or Searcher(space, seed=seed, records=records, earlier=earlier))
    simulation = Simulation(searcher, Scheduler(), records, curve, rungs, seed)
    simulation.run(**limits)
    return simulation
