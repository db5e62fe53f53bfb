"""What a search or a training came to, for the screen: read from the log's state."""

from __future__ import annotations

import dataclasses
import functools

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trainer.scoring.objectives import objective_value, objective_words
from tune.experiments.results import no_gain_line, source_table
from tune.experiments.state import SearchState
from tune.report.analysis import Analysis
from tune.report.costs import more_text
from tune.runs.plan import Plan
from tune.search.records import Trial
from tune.util.console import say


@dataclasses.dataclass
class Outcome:
    """A session that has ended. Error rates in percent."""

    plan: Plan
    state: SearchState
    tracking_problem: str | None = None
    """What was not delivered to MLflow and the other stores, in one line."""

    @functools.cached_property
    def trials(self) -> list[Trial]:
        """All trials; those that still ran were stopped by who interrupted the search, not by a failure."""
        return [
            dataclasses.replace(run, status="interrupted") if run.status == "running" else run
            for run in self.state.records.all()
        ]


def print_measured(outcome: Outcome, console: Console) -> None:
    """By how much the result is better than the base model, and how sure that is; what more trials would gain; then the
    result on the test split and by source, as far as there are any.
    """
    analysis = Analysis(outcome.plan.experiment_folder, outcome.state, stage="finished", storage_option="")
    points, _, rest = analysis.gain_text.partition(" ")
    if points:
        say(console, f"gain      {points:>10} {rest}")
    if analysis.search_text:
        say(console, f"search    {analysis.search_text}")
    if text := more_text(analysis):
        say(console, f"more      {text}")
    if test := outcome.state.tested:
        text = f"WER {objective_value(test.rates):6.2f} % (baseline {objective_value(test.baseline):.2f} %)"
        console.print(f"test      {text}  on {test.rates['clips']:,.0f} held-out test clips")
    _print_sources(outcome, console)


def print_no_gain(state: SearchState, console: Console) -> None:
    """The first line of a summary whose model is no better than the base model, where nothing is left to train."""
    if not state.something_is_left and (line := no_gain_line(state)):
        console.print(f"[yellow]{escape(line)}[/]", soft_wrap=True)


def _print_sources(outcome: Outcome, console: Console) -> None:
    found = source_table(outcome.state, str(outcome.plan.base.language))
    if found is None:
        return
    names, rows = found
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place > 1 else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if words := objective_words(outcome.plan.base.objective):
        say(console, f"WER that decides: {words}")
