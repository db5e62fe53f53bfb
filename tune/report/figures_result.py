"""Figures of how a search or a training went, what it came to and what it cost."""

from __future__ import annotations

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
from tune.report.costs import FINALISTS, Costs
from tune.report.estimates import Contender
from tune.report.known import Experiment
from tune.report.scales import wer_axis
from tune.search.records import TrialRecord, best_rate
from tune.util.console import clock, key_settings

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_KINDS = {
    "completed": ("completed", BLUE, "circle"),
    "early_stopped": ("stopped early", MUTED, "triangle-down-open"),
    "diverged": ("failed or diverged", RED, "x"),
    "failed": ("failed or diverged", RED, "x"),
    "interrupted": ("broken off", ORANGE, "diamond-open"),
    "running": ("running", ORANGE, "diamond-open"),
}
"""How the ends of trials are told and drawn."""
_SHARES = {
    "completed": BLUE,
    "stopped early": MUTED,
    "diverged": RED,
    "failed": RED,
    "interrupted": ORANGE,
    "running": ORANGE,
    FINALISTS: PURPLE,
}
_CUT = 1.6
"""Learning curves are cut at so many times the base model's WER, where some go beyond."""
_ROW = 46
"""Pixels of a row of bars or marks."""


def describe_trial(trial: TrialRecord) -> str:
    """A trial in one line, for who points at it."""
    wer = "" if trial.best_wer is None else f", best WER {best_rate(trial)} %"
    return f"trial {trial.trial_id}: {_KINDS[trial.status][0]}{wer}; {key_settings(trial.config)}"


def draw_base_line(figure: Figure, wer: float, across: Sequence[float]) -> None:
    """The base model's WER across a figure."""
    figure.add_scatter(
        x=across,
        y=[wer, wer],
        mode="lines",
        line={"color": MUTED, "dash": "dash", "width": 1.2},
        name=f"base model {wer:.1f} %",
        hoverinfo="skip",
    )


def draw_history(experiment: Experiment) -> Picture | None:
    """The best WER of each trial in the order of their start; None where nothing was measured."""
    measured = [trial.best_wer for trial in experiment.trials if trial.best_wer is not None]
    if not measured:
        return None
    highest, count = max(*measured, experiment.baseline), len(experiment.trials)
    figure = new_figure(
        xaxis={"title": {"text": "trial"}, "range": [0.4, count + 0.6], "tickformat": "d", "nticks": 8},
        yaxis=wer_axis([*measured, experiment.baseline], "best WER %"),
        showlegend=True,
    )
    best: float | None = None
    steps = []
    for place, trial in enumerate(experiment.trials, start=1):
        if trial.best_wer is not None and not trial.best_is_partial:
            best = trial.best_wer if best is None else min(best, trial.best_wer)
        if best is not None:
            steps.append((place, best))
    if best is not None:
        xs, ys = zip(*steps, (count + 0.4, best), strict=True)
        line = {"color": GREEN, "shape": "hv"}
        figure.add_scatter(x=xs, y=ys, mode="lines", line=line, name=f"best {best:.1f} %", hoverinfo="skip")
    draw_base_line(figure, experiment.baseline, [0.4, count + 0.6])
    places = enumerate(experiment.trials, start=1)
    _draw_marks(figure, ((x, highest if t.best_wer is None else t.best_wer, t) for x, t in places))
    caption = (
        "The lowest WER of each trial. Those that were stopped early had less training, so their marks compare only "
        "with each other; the line is the best so far."
    )
    return Picture("history", caption, figure, 340)


def _draw_marks(figure: Figure, marks: Iterable[tuple[float, float, TrialRecord]]) -> None:
    """A mark for each trial by how it ended; ends that occur are in the legend."""
    kinds: dict[tuple[str, str, str], list[tuple[float, float, TrialRecord]]] = {}
    for mark in marks:
        kinds.setdefault(_KINDS[mark[2].status], []).append(mark)
    for (name, colour, symbol), found in kinds.items():
        figure.add_scatter(
            x=[x for x, _, _ in found],
            y=[y for _, y, _ in found],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8},
            name=name,
            cliponaxis=False,
            **pointed([describe_trial(trial) for _, _, trial in found]),
        )


def draw_curves(experiment: Experiment) -> Picture | None:
    """WER over samples seen for every trial, with the rungs; None where nothing was measured."""
    measured = [trial for trial in experiment.trials if trial.evaluations]
    if not measured:
        return None
    highest = max(wer for trial in measured for _, wer in trial.evaluations)
    ceiling = min(highest, _CUT * max(experiment.baseline, 1.0))
    end = experiment.budget**0.5
    ticks = [
        f"{rung:,}<br>{sum(any(seen == rung for seen, _ in trial.evaluations) for trial in measured)}"
        for rung in experiment.rungs
    ]
    cut = [min(wer, ceiling) for trial in measured for _, wer in trial.evaluations]
    figure = new_figure(
        xaxis={
            "title": {"text": "samples seen at a rung, trials there"},
            "tickvals": [rung**0.5 for rung in experiment.rungs],
            "ticktext": ticks,
            "range": [0, 1.02 * end],
            "gridwidth": 2,
        },
        yaxis=wer_axis([*cut, experiment.baseline], "WER %"),
        showlegend=True,
    )
    draw_base_line(figure, experiment.baseline, [0, end])
    winner, recipe = experiment.winner, experiment.recipe_trial
    ends = []
    for trial in sorted(measured, key=lambda trial: (trial is winner, trial is recipe)):  # the winner on top
        chosen, usual = trial is winner, trial is recipe
        name = (
            "best trial" if chosen and not experiment.has_ended else "winner" if chosen else "usual settings"
        )
        xs = [0.0, *(seen**0.5 for seen, _ in trial.evaluations)]
        ys = [experiment.baseline, *(min(wer, ceiling) for _, wer in trial.evaluations)]
        told = [
            f"{wer:.2f} % at {seen:,} samples" for seen, wer in [(0, experiment.baseline), *trial.evaluations]
        ]
        figure.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={
                "color": GREEN if chosen else PURPLE if usual else _KINDS[trial.status][1],
                "width": 2.6 if chosen or usual else 1.2,
            },
            opacity=1.0 if chosen or usual else 0.75 if trial.status == "completed" else 0.5,
            name=f"{name} {trial.evaluations[-1][1]:.1f} %",
            showlegend=chosen or usual,
            **pointed([f"{point}; {describe_trial(trial)}" for point in told]),
        )
        if trial.status != "completed":
            ends.append((xs[-1], ys[-1], trial))
    _draw_marks(figure, ends)
    return Picture("curves", _curves_caption(experiment, measured, ceiling), figure, 360)


def _curves_caption(experiment: Experiment, measured: Sequence[TrialRecord], ceiling: float) -> str:
    text = "Learning curves, from the base model on; a mark is where a trial ended. The scale below is a square root."
    if experiment.early_clips:
        text += f" Before half of the budget {experiment.early_clips:,} of the validation clips are measured."
    beyond = sum(any(wer > ceiling for _, wer in trial.evaluations) for trial in measured)
    if beyond:
        text += f" Curves above {ceiling:.0f} % are cut ({beyond} of {len(measured)} trials)."
    return text


def draw_training(experiment: Experiment) -> Picture | None:
    """The learning curve of a single training; None where nothing was measured."""
    if not experiment.trials or not experiment.trials[0].evaluations:
        return None
    trial = experiment.trials[0]
    points = [(0, experiment.baseline), *trial.evaluations]
    figure = new_figure(
        xaxis={"title": {"text": "samples seen"}, "range": [0, 1.03 * experiment.budget], "tickformat": ",d"},
        yaxis=wer_axis([wer for _, wer in points], "WER %"),
        showlegend=True,
    )
    draw_base_line(figure, experiment.baseline, [0, 1.03 * experiment.budget])
    best = min(wer for _, wer in trial.evaluations)
    figure.add_scatter(
        x=[seen for seen, _ in points],
        y=[wer for _, wer in points],
        mode="lines+markers",
        line={"color": BLUE},
        marker={"size": [0, *([8] * len(trial.evaluations))], "opacity": 1},
        name=f"training, best {best:.1f} %",
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
    colours = {"winner": GREEN, "finalist": BLUE, "recipe": PURPLE, "base": MUTED}
    figure = new_figure(
        xaxis={"title": {"text": "WER %"}, "rangemode": "tozero"},
        yaxis=rows_axis([_contender_label(contender, won) for contender in found]),
    )
    for row, contender in enumerate(found):
        marker = {"color": colours[contender.kind]}
        told = f"{contender.name}: WER {contender.wer:.2f} %"
        if contender.interval is not None:
            low, high = contender.interval
            told += f", 95 % interval {low:.2f} to {high:.2f}"
        if len(contender.wers) > 1:
            figure.add_scatter(
                x=contender.wers,
                y=[row] * len(contender.wers),
                mode="markers",
                marker=marker | {"size": 6, "opacity": 0.6},
                **pointed([f"{contender.name}, one seed: WER {wer:.2f} %" for wer in contender.wers]),
            )
        figure.add_scatter(
            x=[contender.wer],
            y=[row],
            mode="markers+text",
            marker=marker | {"symbol": "diamond", "size": 10},
            error_x=whiskers([contender.wer], [contender.interval or (contender.wer, contender.wer)]),
            text=f"{contender.wer:.2f} %",
            textposition="top center",
            cliponaxis=False,
            **pointed([told]),
        )
    return Picture("winner", _contenders_caption(found), figure, 90 + _ROW * len(found))


def _contender_label(contender: Contender, won: bool) -> str:
    name = label(contender.name, 24)
    words = {
        "winner": f"{'winner' if won else 'best so far'}: {name}",
        "finalist": f"finalist: {name}",
        "recipe": f"usual settings: {name}",
        "base": f"base model {name}",
    }
    stopped = contender.unfinished and contender.kind == "recipe"
    return words[contender.kind] + ("<br>(before its full budget)" if stopped else "")


def _contenders_caption(found: Sequence[Contender]) -> str:
    text = "WER on the validation clips; less is better."
    if any(len(contender.wers) > 1 for contender in found):
        text += " A diamond is the mean of all seeds, a dot each of them."
    if any(contender.interval for contender in found):
        text += (
            " A bar is a 95 % interval: clips drawn anew, for trained models with the noise between seeds."
        )
    if found[-1].interval is None:
        text += " The base model's errors by clip were not kept, so it has no interval."
    return text


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
    bars = [
        (
            0,
            share.hours,
            _SHARES[share.name],
            share.name,
            f"{share.name}: {share.runs} runs, {costs.tell(share.hours)}",
        )
        for share in costs.shares
    ]
    if full is not None:
        told = f"without early stopping: about {costs.tell(full)}"
        bars.append((1, full, GRID, "without early stopping", told))
    for row, hours, colour, name, told in bars:
        figure.add_bar(
            x=[costs.amount(hours)],
            y=[row],
            orientation="h",
            marker={"color": colour},
            name=name,
            showlegend=row == 0,
            **pointed([told]),
        )
    return Picture(
        "cost", f"{costs.device} time by outcome, in {costs.unit}.", figure, 130 + _ROW * len(rows)
    )
