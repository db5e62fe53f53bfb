"""The head of a search's page: what came out of it, and what to do with that."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tune.display import clock
from tune.pages import page
from tune.pages.page import Cell, Column, Html
from tune.pages.pictures import Picture
from tune.report.advice_words import Advice, all_diverged_words
from tune.report.analysis import Analysis
from tune.report.costs import OUTCOMES
from tune.report.estimates import Contender
from tune.report.known import Experiment
from tune.report.scales import tell
from tune.search.finalists import describe_lowest

_SHORT_CODE = 28
"""Characters of a command or setting that are never broken into two lines."""
_FINALIST_COLUMNS = (
    *(Column("finalist"), Column("seeds", True), Column("mean WER %", True), Column("± sd", True)),
    *(Column("95 % interval", True), Column("behind", True), Column("95 % interval of that", True)),
    *(Column("time each", True), Column("")),
)


def result_parts(analysis: Analysis, shown: Picture | None) -> list[str]:
    """Winner against base model and usual settings, and the finalists."""
    experiment, winner = analysis.experiment, analysis.winner
    base = (f"{experiment.baseline:.2f} %", f"WER of the base model, {experiment.model}")
    if winner is None or shown is None:
        diverged = analysis.all_diverged
        why = "No trial has reached an evaluation."
        if diverged:
            why = f"{all_diverged_words(diverged)} before there was a WER."
        return [page.tiles([("none", "trained model yet"), base]), page.paragraph(why, "warn")]
    spent, unit = analysis.costs.tell(analysis.costs.total).split(" ")
    figures = [
        (f"{winner.wer:.2f} %", _winner_words(experiment, winner)),
        base,
        gain_tile(experiment.baseline, winner.wer),
        *_usual(analysis),
        (spent, f"{unit} spent, in {clock(experiment.seconds)}"),
    ]
    beside = page.gallery([page.picture(shown), _winning_settings(analysis)])
    return [page.tiles(figures), beside, *_finalists(analysis)]


def _winner_words(experiment: Experiment, winner: Contender) -> str:
    if winner.unfinished:
        return f"lowest WER so far, {winner.name} before its full budget"
    if experiment.verdict is not None:
        return f"WER of the winner, {winner.name}, {winner.describe()}"
    if not experiment.has_ended:
        return f"lowest WER so far, {winner.name}"
    luck = describe_lowest(trial.best_wer for trial in experiment.trials)
    return ", ".join(filter(None, ["WER of the best", winner.name, luck]))


def gain_tile(base: float, wer: float) -> tuple[str, str]:
    """What was gained over the base model: a figure and what it is."""
    gain = base - wer
    if gain <= 0:
        return f"{gain:.2f}", "points of WER: no gain over the base model"
    return f"{gain:.2f}", f"points of WER gained: {100 * gain / base:.0f} % fewer errors"


def _usual(analysis: Analysis) -> list[tuple[str, str]]:
    recipe = analysis.recipe
    won = recipe is not None and analysis.winner is not None and recipe.trial_id == analysis.winner.trial_id
    if recipe is None or recipe.best_wer is None or recipe.status != "completed" or won:
        return []
    return [(f"{recipe.best_wer:.2f} %", f"WER of the usual settings, trial {recipe.trial_id}")]


def _winning_settings(analysis: Analysis) -> str:
    """The winner's settings beside the usual ones."""
    experiment = analysis.experiment
    winner = experiment.winner.config if experiment.winner else {}
    rows: list[list[Cell]] = [
        [page.code(name), tell(winner.get(name, "")), tell(experiment.recipe.get(name, ""))]
        for name in experiment.parameters
    ]
    best = "winner" if experiment.has_ended else "best so far"
    parts = [page.table([Column("setting"), Column(best, True), Column("usual", True)], rows)]
    usual = "The usual settings are those that models of this size are commonly trained with, moved into the space."
    parts.append(page.paragraph(f"{usual} {_usual_outcome(experiment)}".rstrip(), "muted"))
    if analysis.gain is not None:
        low, high = analysis.gain
        told = f"95 % interval of the gain over the base model: {low:.2f} to {high:.2f} points."
        parts.append(page.paragraph(told, "muted"))
    return "".join(parts)


def _usual_outcome(experiment: Experiment) -> str:
    """What became of the usual settings, where they have no WER to compare with."""
    recipe = experiment.recipe_trial
    if recipe is None:
        return "They were not tried."
    if (
        recipe is experiment.winner
        and not experiment.has_ended
        and recipe.status not in ("diverged", "failed")
    ):
        return "They lead so far."
    if recipe.status == "completed":
        return "They won." if recipe is experiment.winner else ""
    outcomes = {
        "early_stopped": "was stopped early",
        "running": "still runs",
        "interrupted": "was broken off",
    }
    at = f" at {recipe.best_wer:.2f} %" if recipe.best_wer is not None else ""
    return f"Trial {recipe.trial_id} had them; it {outcomes.get(recipe.status, OUTCOMES[recipe.status])}{at}."


def _finalists(analysis: Analysis) -> list[str]:
    experiment, verdict = analysis.experiment, analysis.experiment.verdict
    if verdict is None:
        return _open_finalists(experiment)
    intervals = {found.trial_id: found.interval for found in analysis.contenders}
    rows: list[list[Cell]] = []
    for standing in verdict.standings:
        leads = standing is verdict.standings[0]
        interval = intervals.get(standing.trial_id)
        won, alike = standing.trial_id == verdict.winner, standing.trial_id in verdict.undecided
        words = "winner" if won else ("no difference shown" if alike else "")
        rows.append(
            [
                standing.trial_id,
                str(len(standing.wers)),
                f"{standing.mean:.2f}",
                "" if standing.sd is None else f"{standing.sd:.2f}",
                "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
                "" if leads else f"{standing.difference:.2f}",
                "" if leads else f"{standing.interval[0]:.2f} to {standing.interval[1]:.2f}",
                clock(standing.seconds),
                Html(f'<span class="nowrap">{words}</span>'),
            ]
        )
    strong = frozenset(i for i, s in enumerate(verdict.standings) if s.trial_id == verdict.winner)
    text = "The best trials once more with other seeds, since a single training is partly luck. "
    text += f"Trial {verdict.describe()}." if len(verdict.standings) > 1 else ""
    return [page.heading("Finalists", 3), page.paragraph(text), page.table(_FINALIST_COLUMNS, rows, strong)]


def _open_finalists(experiment: Experiment) -> list[str]:
    """Finalists that were not compared yet."""
    if not experiment.repeats:
        return []
    ended = sum(run.status == "completed" for run in experiment.repeats)
    text = (
        f"Trials {', '.join(experiment.finalists)} are trained again with other seeds; {ended} of these trainings have "
        "ended, and they are not compared yet."
    )
    return [page.heading("Finalists", 3), page.paragraph(text)]


def advice_parts(advice: Sequence[Advice]) -> list[str]:
    """What to do otherwise, then what is good to know."""
    boxes = []
    for change, title in ((True, "Change next time"), (False, "Good to know")):
        items: list[Cell] = [
            Html(f"<strong>{_coded(found.seen)}</strong> {_coded(found.follows)}")
            for found in advice
            if found.change == change
        ]
        if items:
            boxes.append(page.box(page.heading(title, 3) + page.bullets(items), warn=change))
    return [page.heading("What to do with it"), *boxes] if boxes else []


def _coded(text: str) -> str:
    """Advice as HTML: what is between backticks is code."""
    pieces = []
    for index, piece in enumerate(escape(text).split("`")):
        kind = ' class="nowrap"' if len(piece) <= _SHORT_CODE else ""
        pieces.append(f"<code{kind}>{piece}</code>" if index % 2 else piece)
    return "".join(pieces)
