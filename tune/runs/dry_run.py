"""`--dry-run`: the resolved space, the first configurations and what it would cost, without running anything."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tune.cluster.session import this_machine
from tune.experiments.mlflow_store import check_store
from tune.runs.data import count_clips
from tune.search.budgets import describe_duration
from tune.search.curves import FamilyName, draw_curves
from tune.search.records import Records
from tune.search.scheduler import TRIAL_ID, describe_rungs
from tune.search.searcher import make_searcher
from tune.search.simulated_controller import Limits
from tune.search.simulation import simulate_search
from tune.space.space import FloatParameter
from tune.util.console import key_settings, say, say_notes
from tune.workers.trainable import seconds_per_sample

if TYPE_CHECKING:
    from tune.cluster.resources import TrialResources
    from tune.experiments.plan import SearchPlan
    from tune.space.space import SearchSpace

_SAMPLES = 3
_FAMILIES: tuple[FamilyName, ...] = ("smooth", "crossing", "noisy", "diverging")
_SEEDS = 1
_MOST_TRIALS = 32
"""Trials of a simulation: more of them cost each about the same again."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Samples of a whole search, over several simulated ones."""

    least: int
    middle: int
    """Median."""
    most: int
    unstopped: int
    """Where no trial is stopped early."""

    def describe(self) -> str:
        """For the screen; rounded, since the real curves are not known."""
        least, middle, most = (_rounded(samples) for samples in (self.least, self.middle, self.most))
        times = self.unstopped / max(1, self.middle)
        fewer = f", {times:.1f} x fewer than without stopping" if times >= 1.05 else ""
        between = f" (between {least:,} and {most:,})" if least < most else ""
        return f"about {middle:,} samples in all{between}{fewer}"


def estimate_samples(
    space: SearchSpace,
    rungs: tuple[int, ...],
    trials: int,
    *,
    slots: int = 1,
    seed: int = 0,
    most_samples: Callable[[dict[str, Any]], float] = lambda config: math.inf,
) -> Estimate:
    """What a search costs: the real searcher and scheduler, on several made-up families of learning curves.

    Args:
        space: what to search, its bounds resolved.
        rungs: samples seen; the last one is the full budget.
        trials: of the search.
        slots: trials at a time.
        seed: of the search.
        most_samples: of a configuration, where its own budget is less than the last rung.
    """
    simulated, found = min(trials, _MOST_TRIALS), []
    unstopped: list[float] = []
    for family in _FAMILIES:
        for curves_seed in range(_SEEDS):
            curves = draw_curves(family, curves_seed, rungs[-1], _usual_rate(space))
            records = simulate_search(
                space,
                curves,
                rungs,
                Limits(trials=simulated),
                seed=seed,
                slots=slots,
                baseline=curves.baseline,
            ).records.all()
            own = [most_samples(record.config) for record in records]
            # A space of a few choices may hold fewer points than there are trials.
            share = trials / simulated
            found.append(
                share * sum(min(record.samples_seen, most) for record, most in zip(records, own, strict=True))
            )
            unstopped.append(share * sum(min(rungs[-1], most) for most in own))
    middle = statistics.median(found)
    return Estimate(round(min(found)), round(middle), round(max(found)), round(statistics.median(unstopped)))


def describe_cost(samples: float, seconds_per_sample: float, resources: TrialResources) -> str:
    """Time and GPU-hours of a search in words.

    Args:
        samples: that all trials together see.
        seconds_per_sample: of one trial, as measured on a few steps.
        resources: of each trial, and how many run at once.
    """
    busy = samples * seconds_per_sample
    at_once = (
        f"{resources.concurrent} trials at a time" if resources.concurrent > 1 else "one trial at a time"
    )
    wall = f"about {_roughly(busy / max(1, resources.concurrent))} with {at_once}"
    return f"{wall}, {busy * resources.gpus / 3600:.2g} GPU-hours" if resources.gpus else wall


def show_plan(plan: SearchPlan, console: Console) -> None:
    """Print what the search would do; reads the data's tables but no audio, and writes nothing.

    Raises:
        UserError: the data, the store or the resources asked for cannot be used.
    """
    counts, notes = count_clips(plan.base)
    check_store(plan.tracking_uri)
    slots, resources = plan.request.max_concurrent or 1, None
    # What another cluster has shows only when it is joined.
    if not plan.request.address and "RAY_ADDRESS" not in os.environ:
        resources = plan.resources.fit([this_machine()])
        plan.check_fit(resources)
        slots = resources.concurrent
    for line in plan.describe():
        say(console, line)
    if plan.request.gpus_per_trial == "auto":
        gpus = "1 GPU" if resources is None or resources.gpus else "0 GPUs, since there is none"
        say(
            console,
            f"--gpus-per-trial auto: is measured when the search begins; until then a trial has {gpus}",
        )
    say_notes(console, notes)
    say(
        console,
        f"data: {', '.join(f'{count:,} {name}' for name, count in counts.items())} clips, before their audio is read",
    )
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    _show_trials(plan, console)
    rungs, trials = plan.rungs(counts["train"]), plan.request.trials
    say(
        console,
        f"\nbudget: {trials} trials of up to {rungs[-1]:,} samples ({rungs[-1] / counts['train']:.2f} epochs), "
        f"{describe_rungs(rungs, plan.space.scheduler.rungs)}",
    )

    def most_samples(config: dict[str, Any]) -> float:
        steps = plan.base.max_steps
        return math.inf if steps is None else steps * plan.base.replace(**config).effective_batch_size

    estimate = estimate_samples(
        plan.space, rungs, trials, slots=slots, seed=plan.request.seed, most_samples=most_samples
    )
    say(console, f"estimate: {estimate.describe()}")
    _show_cost(plan, estimate, resources, console)
    say(console, "nothing was run")


def _show_cost(
    plan: SearchPlan, estimate: Estimate, resources: TrialResources | None, console: Console
) -> None:
    """Time from a few real steps, where that can be measured here, and disk space."""
    from trainer.training.checkpoints import estimated_checkpoint_bytes

    if resources is None:
        say(console, "time: not estimated for another cluster")
    elif plan.base.workers > 1 or plan.base.deepspeed:
        say(console, "time: not estimated for several workers or DeepSpeed")
    else:
        with console.status("training a few steps to estimate the time ..."):
            seconds = seconds_per_sample(plan.base, resources.cpus_per_worker)
        if seconds is None:
            say(console, "time: not estimated, the features are not computed yet")
        else:
            cost = describe_cost(estimate.middle, seconds, resources)
            say(
                console,
                f"time: {cost}, evaluations not counted ({1000 * seconds:.1f} ms a sample measured here)",
            )
    whole, trials = estimated_checkpoint_bytes(plan.base), plan.request.trials
    slots = resources.concurrent if resources else 1
    most = 2 * slots * whole + trials * whole // 3
    say(
        console,
        f"disk: up to {most / 1e9:.2g} GB of checkpoints ({whole / 1e9:.2g} GB each; the best and the last of running "
        "trials, the best weights of ended ones until the search ends)",
    )


def _show_trials(plan: SearchPlan, console: Console) -> None:
    say(console, "\nthe first trials:")
    searcher = make_searcher(plan.space, experiment=plan.name, seed=plan.request.seed, records=Records())
    for number in range(min(_SAMPLES, plan.request.trials)):
        config = searcher.suggest(f"dry-{number}")
        if not isinstance(config, dict):  # the space holds no more points
            return
        trial_id = config.pop(TRIAL_ID)
        resolved = plan.base.replace(**config)
        say(
            console,
            f"  {trial_id} {key_settings(config)} (effective batch {resolved.effective_batch_size})",
        )


def _usual_rate(space: SearchSpace) -> float:
    """The middle of the searched learning rates, around which the made-up curves have their optimum."""
    searched = space.parameters.get("learning_rate")
    if isinstance(searched, FloatParameter) and searched.low and searched.high:
        return math.sqrt(searched.low * searched.high)
    return 1e-5


def _roughly(seconds: float) -> str:
    """`3h20m`, `12m`, `40s`: no finer than it can be known."""
    unit = 600 if seconds > 3600 else 60 if seconds > 600 else 10
    return describe_duration(max(unit, round(seconds / unit) * unit))


def _rounded(samples: int) -> int:
    """Two figures of it, or three above a leading one; more would be pretence."""
    digits = max(0, len(str(samples)) - 2)
    return int(round(samples, -digits))
