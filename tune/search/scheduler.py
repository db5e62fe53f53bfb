"""ASHA on samples seen: one grid of rungs for all trials, and which of them end before their budget, and why."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from trainer.config import TEXT_SETTINGS, TrainConfig
from trainer.scoring.objectives import objective_value
from tune.search.records import Records, Stop, Trial
from tune.space.settings import SchedulerSettings

LEAST_STEPS = 2
"""Optimiser steps with the largest effective batch of the space before the first rung; after one, cut short by a
warm-up, settings cannot be told apart."""
LOSS_CHANGED_BY = frozenset(("label_smoothing", "timestamp_share", *TEXT_SETTINGS))
"""Settings that change the loss of a model of the same WER."""
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
        f"{places} ({len(rungs)} of {asked}: there are too few samples for more, since the first comes after at least "
        f"{LEAST_STEPS} steps of the space's largest effective batch)"
    )


NEVER_STOP = SchedulerSettings(min_trials_per_rung=1_000_000, max_wer_to_baseline=0, rising_rungs=0)
"""Only a loss or WER that is no number ends a trial."""


def losses_compare(config: TrainConfig, searched: Collection[str], records: Records) -> bool:
    """Whether of two trials with the same WER the one with the lower loss is expected to be better.

    That was seen with WERs of all clips. The other objectives are no such measure of what the loss is the mean of.

    Args:
        searched: settings that the space has ranges of.
        records: trials of earlier sessions too, whose space may have had others.
    """
    differing = {*searched, *(name for record in records.all() for name in record.config)}
    return (
        config.task == "transcribe" and config.objective == "clips" and LOSS_CHANGED_BY.isdisjoint(differing)
    )


class Judge:
    """Decides at rungs, from nothing but the records, so that a resumed search decides as an unbroken one.

    Ray's own `ASHAScheduler` is not used: it lets a trial go on whose WER is not a number, and forgets its rungs when a
    search is restored (ray#30838).

    ASHA (arXiv:1810.05934) in its stopping variant: at a rung a trial goes on if, of the n trials that have come
    there, itself included, it is one of the best n / `reduction_factor`, rounded up. A rung decides nothing before
    `min_trials_per_rung` trials have reached it. The best are those with the lowest product of WER and evaluation
    loss, by which simulated searches of 8 and 16 trials end lower than by the WER alone on one of two data sets, and
    alike on the other (`benchmarks/search.md`).
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        rungs: tuple[int, ...],
        records: Records,
        baseline: float | None = None,
        baseline_loss: float | None = None,
        *,
        compare_losses: bool = True,
        kept: Callable[[Trial], bool] = lambda _: False,
    ) -> None:
        """Args:
        settings: of ASHA and of the limits on a trial's own curve.
        rungs: samples seen; the last one is the full budget, where nothing is decided.
        records: all trials.
        baseline: objective of the base model in percent.
        baseline_loss: its evaluation loss; None where it is not known.
        compare_losses: whether losses of different trials compare (see `losses_compare`); if not, only WERs are.
        kept: whether no other trial can stop this one.
        """
        self._settings = settings
        self._rungs = rungs
        self._records = records
        self._baseline, self._baseline_loss = baseline, baseline_loss
        self._compare_losses, self._kept = compare_losses, kept

    def judge(self, record: Trial, result: Mapping[str, Any]) -> Stop | None:
        """Whether an evaluation, not yet in the record, ends its trial.

        Args:
            record: the trial as it was before.
            result: `samples_seen`, the rates and, where known, `eval_loss` and `finished` of the evaluation.
        """
        seen, value = int(result["samples_seen"]), objective_value(result)
        loss = float(result.get("eval_loss", 0.0))
        if not math.isfinite(value) or not math.isfinite(loss):
            return Stop("diverged", seen, value if math.isfinite(value) else None)
        if record.stop_again is not None and record.stop_again.samples_seen == seen:
            return record.stop_again
        # At the full budget there is nothing left to save; and a trial that went past a rung before its process
        # was lost is not judged there again.
        if (
            seen >= self._rungs[-1]
            or result.get("finished")
            or (record.evaluations and record.evaluations[-1][0] >= seen)
        ):
            return None
        return (
            self._above_baseline(seen, value)
            or self._rising(record, seen, (value, loss))
            or self._asha(record, seen, value, loss)
        )

    def _above_baseline(self, seen: int, value: float) -> Stop | None:
        times = self._settings.max_wer_to_baseline
        if not times or self._baseline is None or not value > times * self._baseline:
            return None
        return Stop("above_baseline", seen, value, times * self._baseline)

    def _rising(self, record: Trial, seen: int, now: tuple[float, float]) -> Stop | None:
        """A model that learns to repeat itself: its loss falls at every rung while its WER rises.

        The base model is the first point of every curve: at the last rung nothing is decided, and where there are few
        samples only one or two come before it.
        """
        rises = self._settings.rising_rungs
        curve: list[tuple[float, float | None]] = [
            (value, record.losses[at]) for at, value in record.evaluations
        ]
        if self._baseline is not None:
            curve.insert(0, (self._baseline, self._baseline_loss))
        curve = [*curve, now][-rises - 1 :]
        if not rises or len(curve) <= rises:
            return None
        if not all(
            later > earlier and (loss is None or (later_loss or 0.0) < loss)
            for (earlier, loss), (later, later_loss) in itertools.pairwise(curve)
        ):
            return None
        return Stop("rising_wer", seen, now[0], curve[-2][0])

    def _asha(self, record: Trial, seen: int, value: float, loss: float) -> Stop | None:
        if seen not in self._rungs or self._kept(record):
            return None

        def score(value: float, loss: float) -> float:
            return value * loss if self._compare_losses else value

        others = [
            score(old, other.losses[at])
            for other in self._records.all()
            if other.trial_id != record.trial_id
            for at, old in other.evaluations
            if at == seen and (other.losses[at] or not self._compare_losses)  # 0: not known
        ]
        population = len(others) + 1
        going_on = math.ceil(population / self._settings.reduction_factor)
        if population < self._settings.min_trials_per_rung or going_on == population:
            return None
        cutoff = sorted(others)[going_on - 1]
        if score(value, loss) <= cutoff:
            return None
        if self._compare_losses:
            return Stop("asha", seen, value, cutoff / loss, population, loss)
        return Stop("asha", seen, value, cutoff, population)
