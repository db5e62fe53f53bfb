"""`--dry-run`: the resolved space, the first configurations and what it would cost, without running anything."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from tune.cluster.session import this_machine
from tune.experiments.mlflow_store import check_store
from tune.runs.data import describe_guard, load_guards, look_at_clips, say_disk_needed
from tune.search.budgets import describe_duration
from tune.search.records import Records, listed
from tune.search.scheduler import TRIAL_ID, describe_rungs
from tune.search.searcher import Searcher
from tune.util.console import key_settings, say, say_notes, tell_of

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.data.clips import ClipTable
    from tune.cluster.resources import TrialResources
    from tune.experiments.plan import SearchPlan, SearchRequest
    from tune.space.settings import SchedulerSettings

_SHOWN_TRIALS = 3
_SECONDS = 2.0
"""Training that is timed."""
_HEAVIEST = {
    "method": "full",
    "lora_targets": "attention and feed-forward",
    "freeze_encoder_layers": 0,
    "freeze_encoder": False,
    "optimizer": "adamw",
}
"""Of searched settings, the value whose checkpoints take most."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Samples of a whole search."""

    least: int
    middle: int
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
    settings: SchedulerSettings,
    rungs: tuple[int, ...],
    trials: int,
    own_budgets: Sequence[float] = (math.inf,),
) -> Estimate:
    """What a search costs, by the rule of its rungs alone.

    Of trials that are drawn by chance a known share goes on at each rung. Proposals improve from trial to trial, so
    that more do: in simulated searches of 8 to 32 trials (`benchmarks/simulation.py`; three or four rungs, reduction
    factors from 2 to 4) the powers of that share below come to within a third of the medians, and most searches lie
    between the outer two.

    Args:
        settings: of the scheduler.
        rungs: samples seen; the last one is the full budget.
        trials: of the search.
        own_budgets: samples of trials that are not stopped, where those are less than the last rung; each is as likely.
    """

    def cost(power: float) -> float:
        """Samples of all trials where shares are taken to this power; to that of 0 nobody is stopped."""
        samples, left, before = 0.0, float(trials), [0.0] * len(own_budgets)
        for rung in rungs:
            seen = [min(rung, own) for own in own_budgets]
            samples += left * statistics.fmean(now - then for now, then in zip(seen, before, strict=True))
            left, before = _going_on(settings, left, power), seen
        return samples

    least, middle, most, unstopped = (round(cost(power)) for power in (1.0, 0.6, 0.4, 0.0))
    return Estimate(least, middle, most, unstopped)


def _going_on(settings: SchedulerSettings, arrivals: float, power: float) -> float:
    """How many of the trials that come to a rung go on there, one after the other."""
    shares = [
        max(1, math.floor(place / settings.reduction_factor)) / place
        if place >= settings.min_trials_per_rung
        else 1.0
        for place in range(1, math.ceil(arrivals) + 1)
    ]
    return arrivals * statistics.fmean(share**power for share in shares)


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
    from trainer.train import with_samples

    table, notes = look_at_clips(plan.base, augments=plan.augments)
    counts = {name: len(split) for name, split in table.splits.items()}
    check_store(plan.tracking_uri)
    resources = None
    # What another cluster has shows only when it is joined.
    if not plan.request.address and "RAY_ADDRESS" not in os.environ:
        resources = plan.resources.fit([this_machine()])
        plan.check_fit(resources)
    tell_of(console, plan.base.task)
    guards = load_guards(plan.base, plan.request.guard)
    for line in plan.describe():
        say(console, line)
    for guard in plan.request.guard:
        found = guards[guard.data]
        say(console, f"guard {describe_guard(guard, found.name, len(found.clips))}")
        say_notes(console, found.notes)
    say_notes(console, notes)
    say_disk_needed(plan.base, table, guards, console, augments=plan.augments)
    say(
        console,
        f"data: {', '.join(f'{count:,} {name}' for name, count in counts.items())} clips, before their audio is read",
    )
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    plan = dataclasses.replace(plan, base=with_samples(plan.base, table.stream))
    by_wer = plan.by_base_wer()
    _show_rates(by_wer, console)
    _show_trials(by_wer[0][1], console)
    rungs, trials = plan.rungs(table.epoch_samples), plan.request.trials
    say(
        console,
        f"\nbudget: {trials} trials of up to {rungs[-1]:,} samples ({rungs[-1] / table.epoch_samples:.2f} epochs), "
        f"{describe_rungs(rungs, plan.space.scheduler.rungs)}",
    )

    steps = plan.base.max_steps
    own = [math.inf] if steps is None else [steps * batch for batch in plan.batch_sizes]
    estimate = estimate_samples(plan.space.scheduler, rungs, trials, own)
    say(console, f"estimate: {estimate.describe()}")
    if table.stream:
        say(
            console,
            f"streaming: a trial that is not stopped reads and decodes {table.stream.cost(rungs[-1])}; all trials "
            f"together {table.stream.cost(estimate.middle)}, and each repeat of the final round as much as a trial",
        )
    # Clips to measure once all repeats have ended.
    clips = plan.request.averages * counts["validation"]
    clips += plan.request.guarded * sum(len(found.clips) for found in guards.values())
    _show_cost(plan, table, estimate, resources, clips, console)
    say(console, "nothing was run")


def _show_cost(
    plan: SearchPlan,
    table: ClipTable,
    estimate: Estimate,
    resources: TrialResources | None,
    clips: int,
    console: Console,
) -> None:
    """Time from a few real steps, where that can be measured here, and disk space."""
    from trainer.data.prepared import is_prepared
    from trainer.training.checkpoints import estimated_checkpoint_bytes

    measured, took = _measured_after(plan.request), ""
    if resources is None:
        say(console, "time: not estimated for another cluster")
    elif plan.base.workers > 1 or plan.base.deepspeed:
        say(console, "time: not estimated for several workers or DeepSpeed")
    elif not is_prepared(plan.base, table=table, waveforms=plan.base.augments):
        say(console, "time: not estimated, the features are not computed yet")
    else:
        with console.status("training a few steps to estimate the time ..."):
            seconds = seconds_per_sample(plan.base, resources.cpus_per_worker)
        if seconds is None:
            say(console, f"time: not estimated, {plan.base.train_batch_size} clips have no memory here")
        else:
            cost = describe_cost(estimate.middle, seconds, resources)
            say(
                console,
                f"time: {cost}, evaluations not counted ({1000 * seconds:.1f} ms a sample measured here)",
            )
            if measured:
                took = f", about {_roughly(clips * seconds_per_clip(plan.base, resources.cpus_per_worker))}"
    if measured:
        say(console, f"then measured: {measured}; {clips:,} clips in all{took}")
    whole, request = estimated_checkpoint_bytes(_heaviest(plan)), plan.request
    average = estimated_checkpoint_bytes(plan.base.replace(method="full"), "weights")
    slots = resources.concurrent if resources else 1
    runs = request.trials + request.n_finalists * request.repeats
    most = 2 * slots * whole + runs * whole // 3 + request.averages * average
    averages = f", a mean of {average / 1e9:.2g} GB" if request.averages else ""
    say(
        console,
        f"disk: up to {most / 1e9:.2g} GB of checkpoints ({whole / 1e9:.2g} GB each; the best and the last of running "
        f"trials, the best weights of ended ones{averages} until the search ends)",
    )


def _heaviest(plan: SearchPlan) -> TrainConfig:
    """The settings of the space with which a checkpoint takes most."""
    changes = {name: value for name, value in _HEAVIEST.items() if value in plan.values_of(name)}
    return plan.base.replace(**changes, lora_rank=max(plan.values_of("lora_rank")))


def _measured_after(request: SearchRequest) -> str:
    """What is measured after the final round, one after the other; empty where nothing is."""
    told = []
    if request.averages:
        told.append("the mean of the winner's repeats")
    if request.guard:
        told.append(f"up to {request.guarded} models on each guard")
    return listed(told)


def seconds_per_sample(config: TrainConfig, cpus: float) -> float | None:
    """Seconds of training per sample on this machine, from a few steps; None where memory ran out.

    Args:
        config: settings of one worker, whose features are computed.
        cpus: threads of a trial.
    """
    import torch

    from trainer.data.prepared import prepare
    from trainer.probe import probe_step

    torch.set_num_threads(max(1, int(cpus)))
    rate = probe_step(config, prepare(config, waveforms=config.augments), seconds=_SECONDS)
    return 1 / rate if rate else None


def seconds_per_clip(config: TrainConfig, cpus: float) -> float:
    """Seconds in which a validation clip is measured on this machine, from a few of them; arguments as above."""
    import torch

    from trainer.data.prepared import prepare
    from trainer.train import evaluate

    torch.set_num_threads(max(1, int(cpus)))
    data = prepare(config)
    whole = data.splits["validation"]
    some = whole.only(range(0, len(whole), max(1, len(whole) // (64 if torch.cuda.is_available() else 8))))
    found = evaluate(config, data=dataclasses.replace(data, splits={**data.splits, "validation": some}))
    return found.seconds / found.clips


def _show_rates(by_wer: Sequence[tuple[float, SearchPlan]], console: Console) -> None:
    """What is searched for base models of different WERs, where that differs."""
    if len(by_wer) == 1:
        return
    say(
        console,
        "\nautomatic learning rates, by the WER of the untouched model, which the search measures first:",
    )
    for below, plan in by_wer:
        which = f"below {below:g} %" if math.isfinite(below) else "above that"
        searched = f", searched {plan.searched_rates}" if plan.searched_rates else ""
        say(console, f"  {which}: usual {plan.base.learning_rate:g}{searched}")
    say(console, f"what follows is for a WER below {by_wer[0][0]:g} %")


def _show_trials(plan: SearchPlan, console: Console) -> None:
    say(console, "\nthe first trials:")
    searcher = Searcher(plan.space, experiment=plan.name, seed=plan.request.seed, records=Records())
    for number in range(min(_SHOWN_TRIALS, plan.request.trials)):
        config = searcher.suggest(f"dry-{number}")
        if config is None:  # the space holds no more points
            return
        trial_id = config.pop(TRIAL_ID)
        resolved = plan.base.replace(**config)
        say(
            console,
            f"  {trial_id} {key_settings(config)} (effective batch {resolved.effective_batch_size})",
        )


def _roughly(seconds: float) -> str:
    """`3h20m`, `12m`, `40s`: no finer than it can be known."""
    unit = 600 if seconds > 3600 else 60 if seconds > 600 else 10
    return describe_duration(max(unit, round(seconds / unit) * unit))


def _rounded(samples: int) -> int:
    """Two figures of it, or three above a leading one; more would be pretence."""
    digits = max(0, len(str(samples)) - 2)
    return int(round(samples, -digits))
