"""What a search shows on the screen: its trials while it runs, and in the end what won and what to do next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trainer.scoring.objectives import objective_value
from tune.experiments.folder import RESULTS_FILE
from tune.experiments.results import REPORT_FOLDER, guards_line
from tune.runs.outcome import Outcome, print_measured, print_no_gain
from tune.search.budgets import FAILURES_IN_A_ROW
from tune.search.finalists import Verdict, describe_lowest
from tune.search.records import OUTCOMES, Records, Status, Trial, listed, role_of, trial_order
from tune.util.console import SHORT_NAMES, LiveDisplay, clock, say, short_value

_COLOURS: dict[Status, str] = {
    "running": "cyan",
    "completed": "green",
    "early_stopped": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "diverged": "red",
}
_LINES = 4
"""Running trials that have a line each."""


class SearchDisplay(LiveDisplay):
    def __init__(
        self,
        console: Console,
        records: Records,
        *,
        n_trials: int,
        budget_of: Callable[[Trial], int],
        baseline: str,
        trouble: Callable[[], str | None],
        noun: str = "trials",
    ) -> None:
        super().__init__(console, trouble)
        self._records, self._n_trials, self._budget_of = records, n_trials, budget_of
        self._baseline, self._noun = baseline, noun
        self._seen = sum(trial.samples_now for trial in records.all())
        """Samples of earlier sessions, whose time does not count."""
        self._before: dict[str, tuple[float, int]] = {}
        """When `running` was called last, and the samples that each trial had seen."""

    def parts(self) -> list[str]:
        """How far the search is: trials ended, best so far, time left."""
        trials, best = self._records.all(), self._records.best()
        ended = sum(trial.status != "running" for trial in trials)
        left = self._seconds_left()
        parts = [f"{ended}/{self._n_trials} {self._noun} ended"]
        if best and best.best_value is not None:
            which = f"{role_of(best.trial_id)} {best.trial_id}"
            parts.append(f"best WER {best.best_value:.2f} % ({which}), {self._baseline}")
        if left and ended < self._n_trials:  # nothing is known of how long a last evaluation takes
            parts.append(f"about {clock(left)} left")
        return parts

    def _seconds_left(self) -> float | None:
        """That the rest of the search may take, from the samples seen so far; None before the first.

        Trials to come are taken to need what those that ended needed on average (the full budget before any ended),
        running ones to go to the end.
        """
        trials, elapsed = self._records.all(), time.monotonic() - self._started
        seen = sum(trial.samples_now for trial in trials) - self._seen
        if seen <= 0 or elapsed <= 0:
            return None
        ended = [trial for trial in trials if trial.status != "running"]
        counted = [trial.samples_now for trial in ended] or [self._budget_of(trial) for trial in trials]
        to_come = (self._n_trials - len(trials)) * sum(counted) / len(counted)
        running = sum(max(0, self._budget_of(trial) - trial.samples_now) for trial in self._records.running())
        return (to_come + running) * elapsed / seen

    def running(self) -> list[str]:
        """Where each running trial stands; all in one line where there are many."""
        trials, now = self._records.running(), time.monotonic()
        lines, speeds = [], []
        for trial in trials:
            seen, (then, before) = trial.samples_now, self._before.get(trial.trial_id, (now, 0))
            self._before[trial.trial_id] = now, seen
            budget = self._budget_of(trial)
            parts = [f"{role_of(trial.trial_id)} {trial.trial_id}: {seen:,} of {budget:,} samples"]
            parts += [f"loss {trial.progress['loss']:.4f}"] if "loss" in trial.progress else []
            if seen >= budget:
                parts.append("last evaluation")
            elif seen > before and now > then:
                speeds.append((seen - before) / (now - then))
                left = clock((budget - seen) / speeds[-1])
                parts += [f"{speeds[-1]:.3g} samples/s", f"about {left} to its end"]
            lines.append(" · ".join(parts))
        if len(trials) <= _LINES:
            return lines
        every, budget = [trial.samples_now for trial in trials], max(map(self._budget_of, trials))
        return [
            f"{len(trials)} {self._noun} run: {min(every):,} to {max(every):,} of {budget:,} samples · "
            f"{sum(speeds):.3g} samples/s"
        ]

    def __rich__(self) -> Group:
        trials, best = self._records.all(), self._records.best()
        # What does not fit would be cut off at the bottom, where the running trials are.
        shown = most_telling(trials, best, self._console.height - 5)
        hidden = len(trials) - len(shown)
        more = [Text(f"... and {hidden} that ended earlier", style="dim")] if hidden else []
        return Group(super().__rich__(), trial_table(shown, best), *more)


def most_telling(trials: Sequence[Trial], best: Trial | None, rows: int) -> list[Trial]:
    """At most `rows` trials by number: the running ones and the best first, then those that ended last."""

    def rank(trial: Trial) -> tuple[bool, bool, tuple[int, str, int, str]]:
        is_best = best is not None and trial.trial_id == best.trial_id
        return trial.status == "running", is_best, trial_order(trial.trial_id)

    chosen = sorted(trials, key=rank, reverse=True)[: max(1, rows)]
    return sorted(chosen, key=lambda trial: trial_order(trial.trial_id))


def trial_table(trials: list[Trial], best: Trial | None) -> Table:
    """All trials: status, searched settings, effective batch, epoch, WER, best WER."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.config))
    effective = any(trial.effective_batch != trial.config.get("train_batch_size") for trial in trials)
    last = [*(["effective"] if effective else []), "epoch", "WER %", "best %", "time"]
    table = Table("trial", "status", box=None, pad_edge=False, header_style="bold")
    for name in [SHORT_NAMES.get(name, name) for name in names] + last:
        table.add_column(name, justify="right")
    for trial in trials:
        chosen = best is not None and trial.trial_id == best.trial_id
        table.add_row(
            trial.trial_id,
            f"[{_COLOURS[trial.status]}]{OUTCOMES[trial.status]}[/]",
            *(short_value(trial.config.get(name, "")) for name in names),
            *([str(trial.effective_batch)] if effective else []),
            f"{trial.epoch_now:.2f}",
            "" if trial.value is None else f"{trial.value:.2f}",
            "" if trial.best_value is None else f"{trial.best_value:.2f}" + (" *" if chosen else ""),
            clock(trial.elapsed),
            style="bold" if chosen else None,
        )
    return table


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the last table, the winner against the baseline, and the commands that come next."""
    plan, state, best = outcome.plan, outcome.state, outcome.state.best()
    console.print()
    print_no_gain(state, console)
    console.print(trial_table(outcome.trials, best))
    console.print()
    if state.end is not None:
        say(console, f"ended     {state.end.text}")
        if state.end.reason == "failures":  # the first error whole: it is that of all in a row
            runs = (state.repeats if state.repeats_cut else state.records).all()
            failed = sorted((run for run in runs if run.status == "failed"), key=lambda run: run.ended)
            first = failed[-FAILURES_IN_A_ROW]
            say(console, f"the first error, of {role_of(first.trial_id)} {first.trial_id}:\n{first.error}")
    statuses = [trial.status for trial in outcome.trials]
    asked = str(len(statuses))
    if state.something_is_left:
        console.print(f"[yellow]interrupted[/] before all {plan.options.trials} trials had ended")
        asked += f" of {plan.options.trials}"
    counts = [f"{statuses.count(status)} {OUTCOMES[status]}" for status in dict.fromkeys(statuses)]
    console.print(f"trials    {asked} in {clock(state.seconds)}: {', '.join(counts)}")
    found = best is not None and best.best_value is not None
    if best is not None and found:
        _print_result(outcome, best, console)
        say(console, f"results   {plan.where}/{RESULTS_FILE}")
    elif set(statuses) == {"diverged"}:
        console.print("[red]all trials diverged[/]: search lower learning rates")
    else:
        why = "; see the errors above" if any(trial.error for trial in outcome.trials) else ""
        if not why and state.end is not None and state.end.reason in ("time_budget", "gpu_hours"):
            why = ": the budget was too small; a larger one with --resume goes on"
        console.print(f"[red]no trial reached an evaluation[/]{why}")
    if _is_resumable(outcome):
        say(console, f"resume    {plan.resume_command}")
    if found:
        storage = plan.storage.option
        say(console, f"report    {plan.where}/{REPORT_FOLDER}/report.html")
        say(console, f"compare   tune-whisper ui {plan.name}{storage}")
        say(console, f"export    tune-whisper export {plan.name} --output my-model{storage}")


def _is_resumable(outcome: Outcome) -> bool:
    """Whether trials are left that more time, or a mended mistake, would bring to their end."""
    end = outcome.state.end
    cut = end is not None and end.reason in ("time_budget", "gpu_hours", "failures")
    return outcome.state.something_is_left or cut


def _print_result(outcome: Outcome, best: Trial, console: Console) -> None:
    """What the search came to, and by how much that is better than the base model.

    It begins with the winner's mean: the lowest WER of several trainings, on the clips by which it was chosen, is
    partly their luck, and only told as the WER of the weights that are there.
    """
    verdict, baseline = outcome.state.verdict, outcome.state.comparable_base
    trials = {trial.trial_id: trial for trial in outcome.trials}
    if verdict is None:
        if why := outcome.state.compared.text:
            say(console, f"no verdict: {why}; the weights of all finalists are kept")
        _print_winner(f"best      WER {best.best_value:6.2f} %  trial {best.trial_id}", best, console)
        if luck := describe_lowest(best.best_value, (trial.best_value for trial in outcome.trials)):
            console.print(f"          {luck}")
    else:
        _print_finalists(verdict, console)
        won = verdict.score
        text = f"winner    WER {won.mean:6.2f} % ({won.describe()})  trial {won.trial_id}"
        _print_winner(text, trials.get(won.trial_id, best), console)
        if len(verdict.scores) > 1:
            say(console, f"verdict   trial {verdict.describe()}")
    where = "" if baseline == objective_value(outcome.state.base_rates) else ", measured like the trials"
    say(console, f"baseline  WER {baseline:6.2f} %  {outcome.plan.base.model} before fine-tuning{where}")
    print_measured(outcome, console)
    if guards := guards_line(outcome.state):
        say(console, f"guards    {guards}")
    if best.members:
        of = listed(best.members)
        say(
            console,
            f"best      WER {best.best_value:6.2f} %  {best.trial_id}, the mean of {of}, to be exported",
        )
    elif verdict is not None:
        seeds = len(verdict.score.values)
        luck = f": the lowest of {seeds} seeds, which is partly luck" if seeds > 1 else ""
        say(console, f"best      WER {best.best_value:6.2f} %  repeat {best.trial_id}, to be exported{luck}")


def _print_winner(text: str, trial: Trial, console: Console) -> None:
    settings = ", ".join(f"{name} {short_value(value)}" for name, value in trial.config.items())
    console.print(f"[bold]{text}: {escape(settings)}[/]", soft_wrap=True)


def _print_finalists(verdict: Verdict, console: Console) -> None:
    """Mean and standard deviation of each finalist, and what it cost."""
    table = Table("finalist", box=None, pad_edge=False, header_style="bold")
    for name in ("repeats", "mean WER %", "sd", "behind", "95 % interval", "time"):
        table.add_column(name, justify="right")
    for place, found in enumerate(verdict.scores):
        low, high = found.interval
        table.add_row(
            found.trial_id,
            str(len(found.values)),
            f"{found.mean:.2f}",
            "" if found.sd is None else f"{found.sd:.2f}",
            *((f"{found.difference:.2f}", f"{low:.2f} to {high:.2f}") if place else ("", "")),
            clock(found.seconds),
            style="bold" if found.trial_id == verdict.winner else None,
        )
    console.print(table)
