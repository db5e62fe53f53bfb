"""The end of a search on the screen: all trials, the best of them, its gain, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tune.display import clock, say, short_value, trial_table
from tune.experiments.results import REPORT_FOLDER, RESULTS_FILE

if TYPE_CHECKING:
    from tune.comparison import Verdict
    from tune.runs.outcome import SearchOutcome


def print_summary(outcome: SearchOutcome, console: Console) -> None:
    """Print the last table, best against baseline, and the commands that come next."""
    plan, best, baseline = outcome.plan, outcome.best, outcome.baseline
    console.print()
    console.print(trial_table(outcome.trials, best))
    console.print()
    statuses = [trial.status for trial in outcome.trials]
    counts = [f"{statuses.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(statuses)]
    if outcome.end is not None:
        say(console, f"ended     {outcome.end.text}")
        if outcome.end.reason == "failures":
            _print_first_failure(outcome, console)
    if outcome.interrupted:
        console.print(f"[yellow]interrupted[/] before all {plan.request.trials} trials had ended")
    asked = f"{len(statuses)} of {plan.request.trials}" if outcome.interrupted else str(len(statuses))
    console.print(f"trials    {asked} in {clock(outcome.seconds)}: {', '.join(counts)}")
    if best is None or best.best_wer is None:
        if set(statuses) == {"diverged"}:
            console.print("[red]all trials diverged[/]: search lower learning rates")
        else:
            errors = "; see the errors above" if any(trial.error for trial in outcome.trials) else ""
            console.print(f"[red]no trial reached an evaluation[/]{errors}")
        if _is_resumable(outcome):
            say(console, f"resume    {plan.resume_command}")
        return
    if outcome.verdict is not None:
        _print_finalists(outcome.verdict, console)
    settings = ", ".join(f"{name} {short_value(value)}" for name, value in best.config.items())
    say(console, f"baseline  WER {baseline:6.2f} %  {plan.base.model} untouched")
    what = "repeat" if outcome.verdict is not None else "trial"
    console.print(
        f"[bold]best      WER {best.best_wer:6.2f} %  {what} {best.trial_id}: {escape(settings)}[/]",
        soft_wrap=True,
    )
    if outcome.gained:
        gain = baseline - best.best_wer
        console.print(f"gain      {gain:10.2f} points: {100 * gain / baseline:.0f} % fewer errors")
    else:
        console.print(
            "[yellow]no trial beat the untouched base model[/]: keep it, or widen the space or the budget"
        )
    storage = plan.request.storage.option
    say(console, f"results   {plan.where}/{RESULTS_FILE}")
    if _is_resumable(outcome):
        say(console, f"resume    {plan.resume_command}")
    say(console, f"report    {plan.where}/{REPORT_FOLDER}/report.html")
    say(console, f"compare   tune-whisper ui {plan.name}{storage}")
    say(console, f"export    tune-whisper export {plan.name} --output my-model{storage}")


def _is_resumable(outcome: SearchOutcome) -> bool:
    """Whether trials are left that more time, or a mended mistake, would bring to their end."""
    reasons = ("time_budget", "gpu_hours", "failures")
    return outcome.interrupted or (outcome.end is not None and outcome.end.reason in reasons)


def _print_finalists(verdict: Verdict, console: Console) -> None:
    """Mean and standard deviation of each finalist, and who won."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("finalist")
    for name in ("repeats", "mean WER %", "sd", "behind", "95 % interval", "time"):
        table.add_column(name, justify="right")
    for place, found in enumerate(verdict.standings):
        low, high = found.interval
        table.add_row(
            found.trial_id,
            str(len(found.wers)),
            f"{found.mean:.2f}",
            "" if found.sd is None else f"{found.sd:.2f}",
            f"{found.difference:.2f}" if place else "",
            f"{low:.2f} to {high:.2f}" if place else "",
            clock(found.seconds),
            style="bold" if found.trial_id == verdict.winner else None,
        )
    console.print(table)
    if len(verdict.standings) < 2:
        return
    winner = next(found for found in verdict.standings if found.trial_id == verdict.winner)
    told = f"{winner.mean:.2f} %" + ("" if winner.sd is None else f" ± {winner.sd:.2f}")
    others = [
        found.trial_id
        for found in verdict.standings
        if found.trial_id != verdict.winner and (found.tied or found is verdict.standings[0])
    ]
    if verdict.tie and others:
        cheaper = ", the cheaper one" if verdict.winner != verdict.standings[0].trial_id else ""
        text = f"tie       trial {verdict.winner} with WER {told}{cheaper}; {', '.join(others)} within noise"
    else:
        text = f"winner    trial {verdict.winner} with WER {told}, by more than noise"
    console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)


def _print_first_failure(outcome: SearchOutcome, console: Console) -> None:
    """The first error whole: it is every trial's."""
    failed = sorted((trial for trial in outcome.trials if trial.error), key=lambda trial: trial.ended)
    say(console, f"the first error, of trial {failed[0].trial_id}:\n{failed[0].error}")
