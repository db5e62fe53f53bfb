"""A search on made-up learning curves: real searcher, real scheduler, no Ray runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray.tune.schedulers
from simulated_controller import Curve, Limits, SimulatedController, Simulation

from tune.runs.ray_tune import RaySearcher
from tune.search.records import Records
from tune.search.scheduler import TRIAL_ID, Judge
from tune.search.searcher import Searcher

if TYPE_CHECKING:
    import ray.tune.search
    from ray.tune.schedulers import TrialScheduler

    from tune.space.space import SearchSpace


def simulate_search(
    space: SearchSpace,
    curve: Curve,
    rungs: tuple[int, ...],
    limits: Limits,
    *,
    seed: int = 0,
    slots: int = 1,
    baseline: float | None = None,
    records: Records | None = None,
) -> Simulation:
    """Our own search: `Searcher` and `Judge`, as `run_trials` puts them together.

    Args:
        space: what to search, its bounds resolved.
        curve: what evaluations come to.
        rungs: samples seen at which trials are measured; the last one is the full budget.
        limits: when to end; trials that are in `records` already do not count.
        seed: of proposals and noise.
        slots: trials at a time.
        baseline: WER of the untouched model in percent.
        records: of a search that was broken off, which then goes on.
    """
    records = records or Records()
    judge = Judge(space.scheduler, rungs, records, baseline)

    class Scheduler(ray.tune.schedulers.FIFOScheduler):
        """A trial of ours asks what was decided, and ends by itself."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            record = records[trial.config[TRIAL_ID]]
            stop = judge.judge(record, result)
            record.add_evaluation(result, stop)
            return str(self.CONTINUE if stop is None else self.STOP)

    searcher = Searcher(space, seed=seed, records=records)
    controller = SimulatedController(RaySearcher(searcher), Scheduler(), records, curve, rungs, seed, True)
    controller.run(slots, limits)
    return controller.result()


def simulate_ray(
    searcher: ray.tune.search.Searcher,
    scheduler: TrialScheduler,
    curve: Curve,
    rungs: tuple[int, ...],
    limits: Limits,
    *,
    seed: int = 0,
    slots: int = 1,
) -> Simulation:
    """Any searcher and scheduler of Ray Tune as they come, on the same curves, slots and clock.

    Args:
        searcher: with its space and metric.
        scheduler: `FIFOScheduler` stops nobody.
        curve: what evaluations come to.
        rungs: samples seen at which trials are measured.
        limits: when to end.
        seed: of the noise.
        slots: trials at a time.
    """
    controller = SimulatedController(searcher, scheduler, Records(), curve, rungs, seed, False)
    controller.run(slots, limits)
    return controller.result()
