"""`--dry-run`: the resolved space, the first configurations and the budget, without running anything."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from rich.console import Console

from tune.cluster import check_precision, this_machine, trial_resources
from tune.display import key_settings, print_plan, say, say_notes
from tune.mlflow_store import check_store
from tune.searcher import TRIAL_ID, make_searcher
from tune.trainable import count_clips

if TYPE_CHECKING:
    from tune.plan import SearchPlan

_SAMPLES = 3


def show_plan(plan: SearchPlan, console: Console) -> None:
    """Print what the search would do; reads the data's tables but no audio, and writes nothing.

    Raises:
        UserError: the data, the store or the resources asked for cannot be used.
    """
    counts, notes = count_clips(plan.base)
    check_store(plan.tracking_uri)
    if "RAY_ADDRESS" not in os.environ:  # what another cluster has shows only when it is joined
        check_precision(plan, trial_resources(plan.request, [this_machine()]))
    print_plan(plan, console)
    say_notes(console, notes)
    say(
        console,
        f"data: {', '.join(f'{count:,} {name}' for name, count in counts.items())} clips, before their audio is read",
    )
    say(console, "\nthe first trials:")
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    searcher = make_searcher(plan.space, experiment=plan.name, seed=plan.request.seed)
    for number in range(min(_SAMPLES, plan.request.trials)):
        config = searcher.suggest(f"dry-{number}") or {}
        trial_id = config.pop(TRIAL_ID)
        resolved = plan.base.replace(**config)
        say(
            console,
            f"  {trial_id} {key_settings(config)} (effective batch {resolved.effective_batch_size})",
        )
    rungs = plan.rungs(counts["train"])
    trials = plan.request.trials
    shortest = rungs[0]
    if plan.base.max_steps is not None:
        shortest = min(shortest, plan.base.max_steps * plan.batch_sizes[0])
    say(
        console,
        f"\nbudget: {trials} trials of up to {rungs[-1]:,} samples ({rungs[-1] / counts['train']:.2f} epochs), "
        f"rungs at {', '.join(f'{rung:,}' for rung in rungs)}: "
        f"between {trials * shortest:,} and {trials * rungs[-1]:,} samples in all\nnothing was run",
    )
