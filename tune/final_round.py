"""What comes after the trials: the best of them again with other seeds, and weights that nobody needs any more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from tune.checkpoint_files import CheckpointFiles
from tune.display import say
from tune.finalists import (
    choose_finalists,
    compare_finalists,
    describe_repeats,
    finalists_cost,
    repeat_settings,
)
from tune.limits import End, Limits
from tune.trainable import CONFIG_FILE, UTTERANCES_FILE

if TYPE_CHECKING:
    from rich.console import Console

    from tune.cluster import TrialResources
    from tune.comparison import Verdict
    from tune.display import SearchDisplay
    from tune.plan import SearchPlan
    from tune.records import Records
    from tune.results import SearchOutcome
    from tune.search_state import SearchState
    from tune.trials import TrialRunner

_KEPT_FILES = (UTTERANCES_FILE, CONFIG_FILE)
"""What stays of a checkpoint without its weights: finalists of a search that goes on are compared by it."""


@dataclasses.dataclass(frozen=True)
class FinalRound:
    """What the repeats came to."""

    verdict: Verdict | None = None
    """None where there were none, or none came to its end."""
    end: End | None = None
    """The limit that cut them short."""
    interrupted: bool = False
    """Whether something else did."""


def make_limits(plan: SearchPlan, state: SearchState, resources: TrialResources) -> Limits:
    """The search's limits, with the finalists' share kept back."""
    request = plan.request
    limits = Limits(
        request.budgets, (state.records,), gpus_per_trial=resources.gpus, spent_seconds=state.earlier_seconds
    )
    runs = request.n_finalists * request.repeats
    if runs:
        limits.reserve = lambda: finalists_cost(state.records, runs, resources.concurrent)
    return limits


def run_finalists(
    runner: TrialRunner, console: Console, display: Callable[[Records, int, str], SearchDisplay]
) -> FinalRound:
    """Train the finalists again, where the trials have come to their end, and compare them."""
    plan, state = runner.plan, runner.state
    request = plan.request
    if not runner.limits.search_is_over(request.trials):
        return FinalRound()
    finalists = choose_finalists(state.records, request.n_finalists)
    settings = repeat_settings(finalists, request.repeats, request.seed)
    if not settings:
        return FinalRound()
    say(console, f"\n{describe_repeats(settings)}\n")
    limits = runner.limits.after_trials((state.records, state.repeats))
    with display(state.repeats, len(settings), "repeats") as shown:
        dataclasses.replace(runner, limits=limits).run_repeats(settings, shown)
    verdict = compare_finalists(state.repeats, list(settings), CheckpointFiles(plan.experiment_folder))
    left = [name for name in settings if name not in state.repeats or state.repeats[name].status == "running"]
    return FinalRound(verdict, limits.end, interrupted=bool(left) and limits.end is None)


def remove_leftovers(plan: SearchPlan, state: SearchState) -> None:
    """Remove checkpoints that a killed process had written and nobody had taken note of."""
    known = {path for record in (*state.records.all(), *state.repeats.all()) for path in record.checkpoints}
    CheckpointFiles(plan.experiment_folder).keep_only(known)


def drop_losers(outcome: SearchOutcome, state: SearchState, console: Console) -> None:
    """Remove the weights of all but the best run, once the search is over, unless they are to be kept."""
    if outcome.interrupted or outcome.plan.request.keep_checkpoints == "all" or outcome.best is None:
        return
    files = CheckpointFiles(outcome.plan.experiment_folder)
    try:
        for record in (*state.records.all(), *state.repeats.all()):
            if (
                record.trial_id == outcome.best.trial_id
                or record.status == "running"
                or not record.checkpoint
            ):
                continue
            files.strip(record.checkpoint, lambda name: name not in _KEPT_FILES)
            record.weights_dropped = True
            outcome.drop_checkpoint(record.trial_id)
    except OSError as error:
        say(console, f"warning: the weights of other trials stay: {error}")
