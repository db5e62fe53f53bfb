"""`--dry-run`: the resolved space, the first configurations and what it would cost, without running anything."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import shutil
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from trainer.data.clips import ClipTable
from trainer.data.prepared import PreparedData, is_prepared, prepare
from trainer.errors import ConfigError, DiskFullError
from trainer.files import nearest_folder
from trainer.model.pretrained import is_here
from trainer.scoring.translation import TRANSLATE
from tune.cluster.resources import TrialResources
from tune.cluster.session import (
    alive_nodes,
    check_shared,
    checked_address,
    gpu_precision,
    joined_address,
    ray_session,
    this_machine,
)
from tune.runs.data import describe_guard, load_guards, look_at_clips, quick_notes, what_clips_show
from tune.runs.plan import Plan
from tune.search.budgets import describe_duration
from tune.search.records import Records
from tune.search.scheduler import TRIAL_ID, describe_rungs
from tune.search.searcher import Searcher
from tune.space.settings import SchedulerSettings
from tune.util.console import doing, key_settings, say, say_notes, set_task

_SHOWN_TRIALS = 3
_SECONDS = 2.0
"""Training that is timed."""


def estimate_samples(
    settings: SchedulerSettings,
    rungs: tuple[int, ...],
    trials: int,
    own_budgets: Sequence[float] = (math.inf,),
    power: float = 0.8,
) -> int:
    """What a search costs in samples, by the rule of its rungs alone.

    Of trials that are drawn by chance a known share goes on at each rung. Proposals improve from trial to trial, so
    that more do: in simulated searches of 8 to 32 trials (`our_search` in `benchmarks/simulation.py`; three rungs and
    reduction factors of 2, 2.5 and 3, four and a factor of 2) that share to the power of 0.8 comes to within a third of
    the medians, unless trials fail.

    Args:
        rungs: samples seen; the last one is the full budget.
        own_budgets: samples of trials that are not stopped, where those are less than the last rung; each is as likely.
        power: of the shares; with 1 proposals are drawn by chance, with 0 nobody is stopped.
    """
    samples, left, before = 0.0, float(trials), [0.0] * len(own_budgets)
    for rung in rungs:
        seen = [min(rung, own) for own in own_budgets]
        samples += left * statistics.fmean(now - then for now, then in zip(seen, before, strict=True))
        left, before = _going_on(settings, left, power), seen
    return round(samples)


def _going_on(settings: SchedulerSettings, arrivals: float, power: float) -> float:
    """How many of the trials that come to a rung go on there, one after the other."""
    shares = [
        math.ceil(place / settings.reduction_factor) / place if place >= settings.min_trials_per_rung else 1.0
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


def show_plan(plan: Plan, console: Console, *, trials_given: bool, measure: bool) -> None:
    """Print what the search would do; of the audio it reads a sample, and it leaves nothing.

    Args:
        trials_given: whether the number of trials was asked for, not the default.
        measure: time steps where trials run, with Ray started or joined; else only where that is this machine.

    Raises:
        UserError: the data, the store or the resources asked for cannot be used, or the checkpoints would have no room.
    """
    from trainer.train import with_samples

    plan, points_note = _within_space(plan, trials_given=trials_given)
    plan.check_stores()
    table, notes = look_at_clips(plan.base, augments=plan.augments)
    resources = None
    guards = load_guards(plan.base, plan.options.guard)
    with contextlib.ExitStack() as stack:
        if measure:
            stack.enter_context(ray_session(console, plan.address))
            if plan.storage.folder is not None:
                check_shared(plan.storage.folder, plan.storage.text)
            resources = plan.options.resources.fit(alive_nodes())
        # What another cluster has shows only when it is joined.
        elif checked_address(plan.address) == "local":
            resources = plan.options.resources.fit([this_machine()])
        if resources:
            plan.check_fit(resources)
        set_task(console, plan.base.task)
        for line in plan.describe():
            say(console, line)
        for guard in plan.options.guard:
            found = guards[guard.data]
            say(console, f"guard {describe_guard(guard, found.name, len(found.clips))}")
            say_notes(console, found.notes)
        taken = [note for each in plan.warm_starts for note in each.notes]
        say_notes(console, [*taken, *points_note, *notes])
        data = _read_some(plan, table, console, stack, sample_only=measure)
        _show_clips(plan, table, data, console)
        logging.getLogger("ray.tune").setLevel(logging.ERROR)
        plan = dataclasses.replace(plan, base=with_samples(plan.base, table.stream))
        by_wer = plan.by_base_wer()
        _show_rates(by_wer, console)
        _show_trials(by_wer[0][1], console)
        samples = _show_budget(plan, table, console)
        say(console, f"time: {_time(plan, data, samples, resources, console, measure=measure)}")
        say(console, f"disk: {_disk_space(plan, resources)}")
        say(console, "nothing was run")


def _within_space(plan: Plan, *, trials_given: bool) -> tuple[Plan, list[str]]:
    """No more trials than the space has points, after which a search ends; with a note where there are fewer.

    Raises:
        ConfigError: more were asked for.
    """
    trials = plan.options.trials
    points = len(list(itertools.islice(plan.space.all_points(), trials)))
    if not 0 < points < trials:
        return plan, []
    if trials_given:
        raise ConfigError(
            f"--trials {trials}: {plan.space.path} has only {points} different settings; take --trials {points}, "
            "or add values to it"
        )
    options = dataclasses.replace(plan.options, trials=points)
    note = f"{plan.space.path.name} has only {points} different settings, so that there are {points} trials"
    return dataclasses.replace(plan, options=options), [note]


def _read_some(
    plan: Plan, table: ClipTable, console: Console, stack: contextlib.ExitStack, *, sample_only: bool
) -> PreparedData:
    """All clips where their features were computed before, else a sample, judged as all are in a search; that is there
    until the end of `stack`.
    """
    from trainer.inspection.sample import prepared_sample

    how: dict[str, Any] = {"table": table, "waveforms": plan.augments}
    with console.status("looking for the audio files, and reading some ..."):
        if not sample_only and is_prepared(plan.base, **how):
            return prepare(plan.base, **how)
        return stack.enter_context(prepared_sample(plan.base, **how))


def _show_clips(plan: Plan, table: ClipTable, data: PreparedData, console: Console) -> None:
    say(console, f"data: {', '.join(f'{len(clips):,} {name}' for name, clips in table.splits.items())} clips")
    drops = [note for note in data.notes if note not in data.source_notes]
    notes = [*drops, *quick_notes(plan.base, data)]
    if data.total < table.total:
        say(console, f"all files are there, and a sample of {data.total:,} clips was read")
        # How sure rates will be, and what to look at, is a matter of all clips.
        found = [
            note.removeprefix("WARNING: ") for note in notes if note in drops or note.startswith("WARNING: ")
        ]
        notes = [f"WARNING: in the sample: {note}" for note in found]
    say_notes(console, notes)
    if plan.base.task != TRANSLATE:
        say(console, what_clips_show(plan.base, (clip.text for clip in table.splits["validation"])))


def _show_rates(by_wer: Sequence[tuple[float, Plan]], console: Console) -> None:
    """Published learning rates, and what is searched for base models of different WERs, where that differs."""
    from trainer.model.rates import published_rates

    first_wer, first = by_wer[0]
    if published := published_rates(first.base):
        low, high = published[0], published[-1]
        rates = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        size = f"of this size (method {first.base.method})"
        say(console, f"published trainings {size}: {len(published)}, at {rates} (docs/training.md)")
    if len(by_wer) == 1:
        return
    say(console, "\nautomatic learning rates, by the WER of the base model, which the search measures first:")
    for below, plan in by_wer:
        which = f"below {below:g} %" if math.isfinite(below) else "above that"
        searched = f", searched {plan.searched_rates}" if plan.searched_rates else ""
        say(console, f"  {which}: usual {plan.base.learning_rate:g}{searched}")
    say(console, f"all that follows is for a WER below {first_wer:g} %")


def _show_budget(plan: Plan, table: ClipTable, console: Console) -> float:
    """What is trained, in samples; how many all trials and repeats are taken to see."""
    rungs, trials = plan.rungs(table.epoch_samples), plan.options.trials
    say(
        console,
        f"\nbudget: {trials} trials of up to {rungs[-1]:,} samples ({rungs[-1] / table.epoch_samples:.2f} epochs), "
        f"{describe_rungs(rungs, plan.space.scheduler.rungs)}",
    )
    steps = plan.base.max_steps
    own = [math.inf] if steps is None else [steps * batch for batch in plan.batch_sizes]
    samples, unstopped = (
        estimate_samples(plan.space.scheduler, rungs, trials, own, power) for power in (0.8, 0)
    )
    fewer = unstopped / max(1, samples)
    more = f", {fewer:.1f} x fewer than without early stopping" if fewer >= 1.05 else ""
    repeats = plan.options.n_finalists * plan.options.repeats
    again = repeats * statistics.fmean(min(rungs[-1], each) for each in own)
    also = f", and {float(f'{again:.2g}'):,.0f} in the {repeats} repeats of finalists" if repeats else ""
    say(console, f"estimate: about {float(f'{samples:.2g}'):,.0f} samples in all trials{more}{also}")
    if table.stream:
        say(
            console,
            f"streaming: a trial that is not stopped reads and decodes {table.stream.cost(rungs[-1])}; all trials "
            f"together {table.stream.cost(samples)}, and each repeat of the final round as much as a trial",
        )
    return samples + again


def _time(
    plan: Plan,
    data: PreparedData,
    samples: float,
    resources: TrialResources | None,
    console: Console,
    *,
    measure: bool,
) -> str:
    """How long so many samples take, from a few real steps where those can be timed."""
    if plan.base.workers > 1 or plan.base.deepspeed:
        return "not estimated for several workers or DeepSpeed"
    if resources is None:
        return "not estimated for another cluster; --measure times a few steps there"
    if not measure and not is_here(plan.base.model):
        return "not estimated as the model is not on this machine yet; --measure downloads it"
    with doing(console, "training a few steps to estimate the time"):
        timed = _rate_in_worker if measure else _rate_here
        rate = timed(plan, data, resources)
    if rate is None:
        return f"not estimated, {plan.base.train_batch_size} clips do not fit in memory there"
    cost = describe_cost(samples, 1 / rate, resources)
    where = "a worker" if measure else "this machine"
    return f"{cost}, evaluations not counted ({1000 / rate:.1f} ms a sample, measured on {where})"


def _rate_here(plan: Plan, data: PreparedData, resources: TrialResources) -> float | None:
    """Samples a second of one trial, from a few steps in this process; None where memory ran out."""
    import torch

    from trainer.probe import probe_step

    torch.set_num_threads(max(1, int(resources.cpus_per_worker)))
    return probe_step(plan.base, data, seconds=_SECONDS)


def _rate_in_worker(plan: Plan, data: PreparedData, resources: TrialResources) -> float | None:
    """The same from a few steps with a trial's resources in Ray."""
    import ray

    from tune.runs.baseline import in_worker
    from tune.workers.inputs import TrialInputs, shared_folders
    from tune.workers.node_copies import NodeCopies
    from tune.workers.trainable import time_steps

    config, copies = plan.base, None
    if config.precision == "auto" and resources.gpus:
        config = config.replace(precision=gpu_precision())
    if joined_address(plan.address) != "local":
        copies = NodeCopies.make(plan.storage, shared_folders(config, augments=plan.augments))
    cpus, gpus = resources.cpus_per_worker, resources.gpus_per_worker
    inputs = TrialInputs(config=config, data=ray.put(data), copies=copies, cpus=cpus, gpus=gpus)
    files = {path.name: path.read_bytes() for path in data.folder.iterdir()}
    return in_worker(time_steps, inputs, files, _SECONDS)


def _disk_space(plan: Plan, resources: TrialResources | None) -> str:
    """What the checkpoints take at most.

    Raises:
        DiskFullError: they would have no room.
    """
    whole, options = plan.checkpoint_bytes(), plan.options
    runs = options.trials + options.n_finalists * options.repeats
    most = 2 * (resources.concurrent if resources else 1) * whole + runs * plan.checkpoint_bytes("weights")
    if plan.storage.folder is not None:
        free = shutil.disk_usage(nearest_folder(plan.storage.folder)).free
        if free < most:
            raise DiskFullError(
                f"--storage {plan.storage.text}: has {free / 1e9:.2g} GB free, and checkpoints take up to "
                f"{most / 1e9:.2g} GB ({whole / 1e9:.2g} GB each); give a larger disk, fewer --trials, or method=lora"
            )
    return (
        f"up to {most / 1e9:.2g} GB of checkpoints ({whole / 1e9:.2g} GB each; the best and the last of running "
        "trials, the best weights of ended ones until the search ends)"
    )


def _show_trials(plan: Plan, console: Console) -> None:
    say(console, "\nthe first trials:")
    searcher = Searcher(plan.space, seed=plan.options.seed, records=Records())
    # With a warm start the others depend on the base model's WER.
    known = len(plan.space.try_first) if plan.warm_starts else _SHOWN_TRIALS
    for number in range(min(known, plan.options.trials)):
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
