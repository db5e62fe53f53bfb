"""ASHA on samples seen: one grid of rungs for all trials, whatever their batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.tune.schedulers import FIFOScheduler

TIME_ATTRIBUTE = "samples_seen"
METRIC = "wer"
LEAST_STEPS = 2
"""Optimiser steps with the largest effective batch of the space before the first rung; after one, cut short by a
warm-up, settings cannot be told apart."""
TRIAL_ID = "trial_id"
"""Key of the trial's number in the settings that Ray hands to the trial: `001`, `002` ..."""


def rung_grid(
    budget: int, reduction_factor: float, rungs: int, multiple: int = 1, least: int = 1
) -> tuple[int, ...]:
    """Samples seen at which every trial is measured: each rung about `reduction_factor` times the one before.

    Args:
        budget: samples of the longest trial; always the last rung.
        reduction_factor: ratio of neighbouring rungs; ASHA lets about one trial in so many go on.
        rungs: their number; fewer come out where the budget is too small for them.
        multiple: rungs are rounded to multiples of it, unless they are smaller. With a common multiple of all
            effective batch sizes every trial reaches every rung in whole batches.
        least: no rung but the last is before it. Where earlier ones were, there is one there instead, if it is at
            most half of the next.
    """
    first = max(1.0, budget / reduction_factor ** (rungs - 1))
    points = [first * reduction_factor**power for power in range(rungs - 1)]
    kept = [point for point in points if point >= least]
    if len(kept) < len(points) and 2 * least <= min(kept, default=budget):
        kept.insert(0, least)
    unit = multiple if multiple <= min(kept, default=1) else 1
    grid = {max(1, round(point / unit)) * unit for point in kept}
    return (*sorted(point for point in grid if point < budget), budget)


def describe_rungs(rungs: tuple[int, ...], asked: int) -> str:
    """Where trials are measured, and why there are fewer rungs than the `asked` ones."""
    places = f"rungs at {', '.join(f'{rung:,}' for rung in rungs)}"
    if len(rungs) == asked:
        return places
    return (
        f"{places} ({len(rungs)} of {asked}: too few samples for more; none but the last is before {LEAST_STEPS} "
        "steps of the space's largest effective batch)"
    )


def make_scheduler(evaluated: Callable[[str, dict[str, Any]], bool]) -> FIFOScheduler:
    """A scheduler for Ray Tune that ends a trial where `evaluated` says so.

    Ray's own `ASHAScheduler` is not used: it stops the second trial at a rung if it is worse than the first at
    all, lets a trial go on whose WER is not a number, and forgets its rungs when a search is restored
    (ray#30838). Here the records hold everything, and `Judge` decides from them.

    Args:
        evaluated: takes Ray's trial id's configured number and an evaluation, before anything else hears of
            it; whether the trial ends there.
    """
    import ray.tune.schedulers

    class RecordedScheduler(ray.tune.schedulers.FIFOScheduler):
        """See `make_scheduler`."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return str(self.STOP if evaluated(trial.config[TRIAL_ID], result) else self.CONTINUE)

    return RecordedScheduler()
