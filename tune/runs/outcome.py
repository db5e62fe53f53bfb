"""What a search or a training came to, for the screen: read from the log's state."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

from trainer.scoring.objectives import objective_words
from tune.experiments.plan import Plan
from tune.experiments.results import outcome, source_table
from tune.search.finalists import Verdict
from tune.search.guards import describe_keeping_point
from tune.search.soup import describe_soup
from tune.util.console import say

if TYPE_CHECKING:
    from tune.experiments.events import FinalRoundCut, TrialsOver
    from tune.experiments.state import SearchState
    from tune.search.records import TrialRecord


PlanT = TypeVar("PlanT", bound=Plan)


@dataclasses.dataclass
class Outcome(Generic[PlanT]):
    """A session that has ended. Error rates in percent."""

    plan: PlanT
    state: SearchState
    tracking_problem: str | None = None
    """What was not delivered to MLflow and the other stores, in one line."""

    @functools.cached_property
    def trials(self) -> list[TrialRecord]:
        """All trials; those that still ran were stopped by who interrupted the search, not by a failure."""
        return [_closed(run) for run in self.state.records.all()]

    @property
    def best(self) -> TrialRecord | None:
        """The run to export."""
        return self.state.best()

    @property
    def baseline(self) -> float:
        """WER of the untouched base model."""
        return self.state.baseline.rates["wer"] if self.state.baseline else 0.0

    @property
    def verdict(self) -> Verdict | None:
        """How the finalists compare."""
        return Verdict.from_dict(self.state.verdict) if self.state.verdict else None

    @property
    def soup(self) -> str:
        """What averaging the finalists' repeats came to; empty where none were averaged."""
        judged = self.state.soup_judged
        return describe_soup(judged.verdict, judged.text) if judged else ""

    @property
    def guards(self) -> list[str]:
        """What the guards came to, and which point between the base model and the run keeps them; a line each."""
        state, told = self.state, [self.state.guards_text]
        if told[0] and self.best and len(state.points.get(self.best.trial_id, {})) > 2:
            told.append(describe_keeping_point(state.keeping_point))
        return [text for text in told if text]

    @property
    def not_compared(self) -> str:
        """Why the finalists have no verdict; empty where they have one, or there were none."""
        compared = self.state.compared
        return compared.text if compared is not None and compared.verdict is None else ""

    @property
    def end(self) -> TrialsOver | FinalRoundCut | None:
        """What ended the search before all that was asked for."""
        return self.state.end

    @property
    def interrupted(self) -> bool:
        """Whether something is left."""
        return self.state.something_is_left

    @property
    def seconds(self) -> float:
        """Wall time over all sessions."""
        return self.state.seconds

    @property
    def succeeded(self) -> bool:
        """Whether there is something to export, or a budget ended the search before there could be; of a training,
        whether it came to its end.
        """
        return outcome(self.state, self.end.reason if self.end else None) == "finished"

    @property
    def wer(self) -> float | None:
        """What the winner is worth: the mean of its repeats where there are any, else its lowest WER."""
        verdict = self.verdict
        if verdict is not None:
            return verdict.standing.mean
        return self.best.best_wer if self.best else None

    @property
    def gained(self) -> bool:
        """Whether the winner beats the untouched base model."""
        return self.wer is not None and self.wer < self.baseline

    @property
    def test(self) -> dict[str, Any] | None:
        """Rates of the best run, and of the base model, on the test split, where they were measured."""
        found = self.state.held_out
        if found is None or self.best is None or found.run != self.best.trial_id:
            return None
        return {**found.rates, "baseline_wer": found.baseline["wer"]}


def _closed(run: TrialRecord) -> TrialRecord:
    return dataclasses.replace(run, status="interrupted") if run.status == "running" else run


def print_sources(outcome: Outcome[Any], console: Console) -> None:
    """The rates of each of the data's sources; nothing for data without."""
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
