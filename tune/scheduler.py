"""ASHA on samples seen: one grid of rungs for all trials, whatever their batch size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.tune.schedulers import ASHAScheduler

    from tune.search_space import SchedulerSettings

TIME_ATTRIBUTE = "samples_seen"
METRIC = "wer"


def rung_grid(budget: int, reduction_factor: float, rungs: int, multiple: int = 1) -> tuple[int, ...]:
    """Samples seen at which every trial is measured: each rung about `reduction_factor` times the one before.

    Args:
        budget: samples of the longest trial; always the last rung.
        reduction_factor: ratio of neighbouring rungs; ASHA lets about one trial in so many go on.
        rungs: their number; fewer come out where the budget is too small for them.
        multiple: rungs are rounded to multiples of it, unless they are smaller. With a common multiple of all
            effective batch sizes every trial reaches every rung in whole batches.
    """
    first = max(1.0, budget / reduction_factor ** (rungs - 1))
    unit = multiple if multiple <= first else 1
    grid = {max(1, round(first * reduction_factor**power / unit)) * unit for power in range(rungs - 1)}
    return (*sorted(point for point in grid if point < budget), budget)


def make_scheduler(settings: SchedulerSettings, rungs: tuple[int, ...]) -> ASHAScheduler:
    """Ray's ASHA (arXiv:1810.05934) over `rungs`, with two of its edges taken off.

    A rung stops nobody before `settings.min_trials_per_rung` trials have reached it: the stock scheduler stops
    the second trial at a rung if it is worse than the first at all. And a WER that is not a number stops its
    trial: the stock scheduler would record it in the rung and let the trial go on.
    """
    import ray.tune.schedulers
    from ray.tune.schedulers import async_hyperband

    class PopulatedBracket(async_hyperband._Bracket):
        """Rungs without a cutoff until they hold enough trials."""

        def cutoff(self, recorded: dict[str, float]) -> Any:
            if len(recorded) + 1 < settings.min_trials_per_rung:
                return None
            return super().cutoff(recorded)

    class WerAshaScheduler(ray.tune.schedulers.ASHAScheduler):
        """See `make_scheduler`."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if not math.isfinite(result.get(METRIC, 0.0)):
                return str(self.STOP)
            return str(super().on_trial_result(tune_controller, trial, result))

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
            if math.isfinite(result.get(METRIC, 0.0)):
                super().on_trial_complete(tune_controller, trial, result)

    scheduler = WerAshaScheduler(
        time_attr=TIME_ATTRIBUTE,
        metric=METRIC,
        mode="min",
        max_t=rungs[-1],
        grace_period=rungs[0],
        reduction_factor=settings.reduction_factor,
        brackets=1,
        # A trial ends by itself when its budget is spent; being cut off there would look like an early stop.
        stop_last_trials=False,
    )
    bracket = PopulatedBracket(rungs[0], rungs[-1], settings.reduction_factor, 0, stop_last_trials=False)
    # Exactly our grid: Ray's own comes from logarithms and powers and can be off by one rung or sample.
    bracket._rungs = [(rung, {}) for rung in reversed(rungs)]
    scheduler._brackets = [bracket]
    return scheduler
