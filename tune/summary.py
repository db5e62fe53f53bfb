"""The end of a search on the screen: all trials, the best of them, its gain, and what to do next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from tune.display import clock, say, short_path, short_value, trial_table
from tune.results import RESULTS_FILE

if TYPE_CHECKING:
    from tune.plan import SearchPlan
    from tune.results import SearchOutcome


def print_summary(outcome: SearchOutcome, console: Console) -> None:
    """Print the last table, best against baseline, and the commands that come next."""
    plan, best, baseline = outcome.plan, outcome.best, outcome.baseline
    console.print()
    console.print(trial_table(outcome.trials, best))
    console.print()
    statuses = [trial.status for trial in outcome.trials]
    counts = [f"{statuses.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(statuses)]
    if outcome.interrupted:
        console.print(f"[yellow]interrupted[/] before all {plan.request.trials} trials had ended")
    asked = f"{len(statuses)} of {plan.request.trials}" if outcome.interrupted else str(len(statuses))
    console.print(f"trials    {asked} in {clock(outcome.seconds)}: {', '.join(counts)}")
    if best is None or best.best_wer is None:
        console.print("[red]no trial reached an evaluation[/]; see the errors above")
        return
    settings = ", ".join(f"{name} {short_value(value)}" for name, value in best.config.items())
    say(console, f"baseline  WER {baseline.wer:6.2f} %  {plan.base.model} untouched")
    console.print(
        f"[bold]best      WER {best.best_wer:6.2f} %  trial {best.trial_id}: {escape(settings)}[/]",
        soft_wrap=True,
    )
    if outcome.gained:
        gain = baseline.wer - best.best_wer
        console.print(f"gain      {gain:10.2f} points: {100 * gain / baseline.wer:.0f} % fewer errors")
    else:
        console.print(
            "[yellow]no trial beat the untouched base model[/]: keep it, or widen the space or the budget"
        )
    _print_next_steps(plan, console)


def _print_next_steps(plan: SearchPlan, console: Console) -> None:
    default = plan.folder.parent == Path("experiments").absolute()
    storage = "" if default else f" --storage {shlex.quote(str(plan.folder.parent))}"
    say(console, f"results   {short_path(plan.folder / RESULTS_FILE)}")
    say(console, f"compare   tune-whisper ui {plan.name}{storage}")
    say(console, f"export    tune-whisper export {plan.name} --output my-model{storage}")
