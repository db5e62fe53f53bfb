"""Figures of how a search or a training went, what it came to and what it cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tune.pages.figures import (
    BLUE,
    GREEN,
    GRID,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    Picture,
    label,
    new_figure,
    pointed,
    rows_axis,
    whiskers,
)
from tune.report.analysis import Contender
from tune.report.costs import AVERAGES, FINALISTS, OUTCOMES, Costs
from tune.report.experiment import Experiment
from tune.report.scales import wer_axis
from tune.search.records import Status, TrialRecord
from tune.util.console import clock, key_settings

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_KINDS: dict[Status, tuple[str, str]] = {
    "completed": (BLUE, "circle"),
    "early_stopped": (MUTED, "triangle-down-open"),
    "diverged": (RED, "cross"),
    "failed": (RED, "x"),
    "interrupted": (ORANGE, "diamond-open"),
    "running": (ORANGE, "diamond"),
}
"""How the ends of trials are drawn."""
_CUT = 1.6
"""Learning curves are cut at so many times the base model's WER, where some go beyond."""
_ROW = 46
"""Pixels of a row of bars or marks."""


def describe_trial(trial: TrialRecord) -> str:
    """A trial in one line, for who points at it."""
    wer = "" if trial.best_value is None else f", best WER {trial.best_value:.2f} %"
    return f"trial {trial.trial_id}: {OUTCOMES[trial.status]}{wer}; {key_settings(trial.config)}"


def draw_base_line(figure: Figure, value: float) -> None:
    """The base model's WER across a figure."""
    line, name = {"color": MUTED, "dash": "dash", "width": 1.2}, f"base model {value:.1f} %"
    figure.add_hline(y=value, line=line, name=name, showlegend=True, layer="below")


def _draw_marks(figure: Figure, marks: Iterable[tuple[float, float, TrialRecord]]) -> None:
    """A mark for each trial by how it ended; ends that occur are in the legend."""
    kinds: dict[Status, list[tuple[float, float, TrialRecord]]] = {}
    for mark in marks:
        kinds.setdefault(mark[2].status, []).append(mark)
    for status, found in kinds.items():
        colour, symbol = _KINDS[status]
        figure.add_scatter(
            x=[x for x, _, _ in found],
            y=[y for _, y, _ in found],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8},
            name=OUTCOMES[status],
            cliponaxis=False,
            **pointed([describe_trial(trial) for _, _, trial in found]),
        )


def draw_history(experiment: Experiment) -> Picture | None:
    """The best WER of each trial in the order of their start; None where nothing was measured."""
    trials = experiment.trials
    measured = [trial.best_value for trial in trials if trial.best_value is not None]
    if not measured:
        return None
    highest, count = max(*measured, experiment.trial_base_value), len(trials)
    figure = new_figure(
        xaxis={"title": {"text": "trial"}, "range": [0.4, count + 0.6], "tickformat": "d", "nticks": 8},
        yaxis=wer_axis([*measured, experiment.trial_base_value], "best WER %"),
        showlegend=True,
    )
    whole = [math.inf if t.best_value is None else t.best_value for t in trials]
    steps = [(x, wer) for x, wer in enumerate(itertools.accumulate(whole, min), 1) if wer < math.inf]
    if steps:
        best = steps[-1][1]
        xs, ys = zip(*steps, (count + 0.4, best), strict=True)
        line = {"color": GREEN, "shape": "hv"}
        figure.add_scatter(x=xs, y=ys, mode="lines", line=line, name=f"best {best:.1f} %", hoverinfo="skip")
    draw_base_line(figure, experiment.trial_base_value)
    heights = [highest if trial.best_value is None else trial.best_value for trial in trials]
    _draw_marks(figure, zip(range(1, count + 1), heights, trials, strict=True))
    caption = (
        "The lowest WER of each trial. Those that were stopped early had less training, so their marks compare only "
        "with each other; the line is the best so far."
    )
    return Picture("history", caption, figure, 340)


def draw_curves(experiment: Experiment) -> Picture | None:
    """WER over samples seen for every trial, with the rungs; None where nothing was measured."""
    measured = [trial for trial in experiment.trials if trial.evaluations]
    if not measured:
        return None
    base, winner, recipe = experiment.trial_base_value, experiment.winner, experiment.recipe_trial
    highest = max(wer for trial in measured for _, wer in trial.evaluations)
    ceiling = min(highest, _CUT * max(base, 1.0))
    cut = [min(wer, ceiling) for trial in measured for _, wer in trial.evaluations]
    reached = [
        sum(any(seen == rung for seen, _ in trial.evaluations) for trial in measured)
        for rung in experiment.settings.rungs
    ]
    figure = new_figure(
        xaxis={
            "title": {"text": "samples seen at a rung, trials there"},
            "tickvals": [rung**0.5 for rung in experiment.settings.rungs],
            "ticktext": [
                f"{r:,}<br>{count}" for r, count in zip(experiment.settings.rungs, reached, strict=True)
            ],
            "range": [0, 1.02 * experiment.budget**0.5],
            "gridwidth": 2,
        },
        yaxis=wer_axis([*cut, base]),
        showlegend=True,
    )
    draw_base_line(figure, base)
    ends = []
    for trial in sorted(measured, key=lambda trial: (trial is winner, trial is recipe)):  # the winner on top
        chosen, usual = trial is winner, trial is recipe
        best = "winner" if experiment.has_ended else "best trial"
        points = [(0, base), *trial.evaluations]
        xs, ys = [seen**0.5 for seen, _ in points], [min(wer, max(base, ceiling)) for _, wer in points]
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={
                "color": GREEN if chosen else PURPLE if usual else _KINDS[trial.status][0],
                "width": 2.6 if chosen or usual else 1.2,
            },
            opacity=1.0 if chosen or usual else 0.75 if trial.status == "completed" else 0.5,
            name=f"{best if chosen else 'usual settings'} {trial.evaluations[-1][1]:.1f} %",
            showlegend=chosen or usual,
            **pointed([f"{wer:.2f} % at {seen:,} samples; {describe_trial(trial)}" for seen, wer in points]),
        )
        if trial.status != "completed":
            ends.append((xs[-1], ys[-1], trial))
    _draw_marks(figure, ends)
    text = "Learning curves, from the base model on; a mark is where a trial ended. The scale below is a square root."
    baseline = experiment.state.baseline
    if baseline is not None and baseline.trial_clips:
        text += f" Trials are measured on {baseline.trial_clips:,} of the validation clips, always the same."
    beyond = sum(any(wer > ceiling for _, wer in trial.evaluations) for trial in measured)
    if beyond:
        text += f" Curves above {ceiling:.0f} % are cut ({beyond} of {len(measured)} trials)."
    return Picture("curves", text, figure, 360)


def draw_training(experiment: Experiment) -> Picture | None:
    """The learning curve of a single training; None where nothing was measured."""
    if not experiment.trials or not experiment.trials[0].evaluations:
        return None
    trial = experiment.trials[0]
    points = [(0, experiment.trial_base_value), *trial.evaluations]
    figure = new_figure(
        xaxis={"title": {"text": "samples seen"}, "range": [0, 1.03 * experiment.budget], "tickformat": ",d"},
        yaxis=wer_axis([wer for _, wer in points]),
        showlegend=True,
    )
    draw_base_line(figure, experiment.trial_base_value)
    figure.add_scatter(
        x=[seen for seen, _ in points],
        y=[wer for _, wer in points],
        mode="lines+markers",
        line={"color": BLUE},
        marker={"size": [0, *([8] * len(trial.evaluations))], "opacity": 1},
        name=f"training, best {min(wer for _, wer in trial.evaluations):.1f} %",
        cliponaxis=False,
        **pointed([f"{seen:,} samples: WER {wer:.2f} %" for seen, wer in points]),
    )
    caption = f"WER at each evaluation, from the base model on; {clock(trial.elapsed)} in all."
    return Picture("curve", caption, figure, 330)


def draw_contenders(found: Sequence[Contender], *, won: bool) -> Picture:
    """The best beside the others, with what is known of their uncertainty.

    Args:
        found: from the best to the base model.
        won: the search has ended, so that the best is the winner.
    """
    kinds = {
        "winner": (GREEN, "winner: " if won else "best so far: "),
        "finalist": (BLUE, "finalist: "),
        "average": (ORANGE, "average "),
        "recipe": (PURPLE, "usual settings: "),
        "base": (MUTED, "base model "),
    }
    early = "<br>(before its full budget)"
    names = [
        f"{kinds[one.kind][1]}{label(one.name, 24)}{early if one.unfinished and one.kind == 'recipe' else ''}"
        for one in found
    ]
    figure = new_figure(xaxis={"title": {"text": "WER %"}, "rangemode": "tozero"}, yaxis=rows_axis(names))
    for row, contender in enumerate(found):
        marker = {"color": kinds[contender.kind][0]}
        told = f"{contender.name}: WER {contender.value:.2f} %"
        if contender.interval is not None:
            low, high = contender.interval
            told += f", 95 % interval {low:.2f} to {high:.2f}"
        if len(contender.values) > 1:
            figure.add_scatter(
                x=contender.values,
                y=[row] * len(contender.values),
                mode="markers",
                marker=marker | {"size": 6, "opacity": 0.6},
                **pointed([f"{contender.name}, one seed: WER {wer:.2f} %" for wer in contender.values]),
            )
        figure.add_scatter(
            x=[contender.value],
            y=[row],
            mode="markers+text",
            marker=marker | {"symbol": "diamond", "size": 10},
            error_x=whiskers([contender.value], [contender.interval or (contender.value, contender.value)]),
            text=f"{contender.value:.2f} %",
            textposition="top center",
            cliponaxis=False,
            **pointed([told]),
        )
    text = "WER on the validation clips; less is better."
    if any(len(contender.values) > 1 for contender in found):
        text += " A diamond is the mean of all seeds, a dot each of them."
    if any(contender.interval for contender in found):
        text += " A bar is a 95 % interval: noise of the clips, for trained models also that of the seeds."
    if found[-1].interval is None:
        text += " The base model's errors by clip were not kept, so it has no interval."
    return Picture("winner", text, figure, 90 + _ROW * len(found))


def draw_costs(costs: Costs) -> Picture | None:
    """What the runs held, by outcome, above what it would have been without early stopping."""
    if not costs.total:
        return None
    full = None if costs.full is None or not costs.saved else costs.full + costs.total - costs.trials
    rows = ["spent", "without early<br>stopping"][: 1 if full is None else 2]
    figure = new_figure(
        xaxis={"title": {"text": costs.unit}},
        yaxis=rows_axis(rows),
        barmode="stack",
        bargap=0.45,
        showlegend=True,
    )
    colours = {OUTCOMES[status]: colour for status, (colour, _) in _KINDS.items()}
    colours |= {FINALISTS: PURPLE, AVERAGES: GREEN}
    bars = [
        (0, share.hours, colours[share.name], share.name, f"{share.runs} runs, {costs.tell(share.hours)}")
        for share in costs.shares
    ]
    if full is not None:
        bars.append((1, full, GRID, "without early stopping", f"about {costs.tell(full)}"))
    for row, hours, colour, name, told in bars:
        figure.add_bar(
            x=[costs.amount(hours)],
            y=[row],
            orientation="h",
            marker={"color": colour},
            name=name,
            showlegend=row == 0,
            **pointed([f"{name}: {told}"]),
        )
    return Picture(
        "cost", f"{costs.device} time by outcome, in {costs.unit}.", figure, 130 + _ROW * len(rows)
    )
