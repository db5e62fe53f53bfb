"""Figures of a search or a training: learning and loss curves, parallel coordinates, WER over each setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tune.experiments.folder import PROGRESS_FILE
from tune.experiments.log import parse_progress
from tune.pages.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PURPLE,
    RED,
    Picture,
    label,
    new_figure,
    pointed,
)
from tune.report.analysis import Analysis
from tune.report.scales import Scale, tell, wer_axis, wer_scale
from tune.search.records import OUTCOMES, Status, Trial
from tune.util.console import SHORT_NAMES, clock, key_settings

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
_SPREAD = 0.5
"""Share of a choice's width over which its trials are spread, so that equal ones do not hide each other."""
_MOST_POINTS = 200
"""Of one loss curve; of a longer one every second, third ... point is drawn."""


def _describe(trial: Trial) -> str:
    """A trial in one line, for who points at it."""
    wer = "" if trial.best_value is None else f", best WER {trial.best_value:.2f} %"
    return f"trial {trial.trial_id}: {OUTCOMES[trial.status]}{wer}; {key_settings(trial.config)}"


def _draw_base_line(figure: Figure, value: float) -> None:
    line, name = {"color": MUTED, "dash": "dash", "width": 1.2}, f"base model {value:.1f} %"
    figure.add_hline(y=value, line=line, name=name, showlegend=True, layer="below")


def _line(analysis: Analysis, trial: Trial, legend: str) -> dict[str, Any]:
    """How the curve of a trial is drawn: the winner and the usual settings stand out, and have a legend."""
    chosen, usual = trial is analysis.winning_trial, trial is analysis.recipe_trial
    colour = GREEN if chosen else PURPLE if usual else _KINDS[trial.status][0]
    return {
        "mode": "lines",
        "line": {"color": colour, "width": 2.6 if chosen or usual else 1.2},
        "opacity": 1.0 if chosen or usual else 0.75 if trial.status == "completed" else 0.5,
        "name": f"{analysis.who if chosen else 'usual settings'} {legend}",
        "showlegend": chosen or usual,
    }


def draw_curves(analysis: Analysis) -> Picture | None:
    """WER over samples seen for every trial, with the rungs; None where nothing was measured."""
    measured = [trial for trial in analysis.trials if trial.evaluations]
    if not measured:
        return None
    base, winner, recipe = analysis.trial_base_value, analysis.winning_trial, analysis.recipe_trial
    highest = max(wer for trial in measured for _, wer in trial.evaluations)
    ceiling = min(highest, _CUT * max(base, 1.0))
    cut = [min(wer, ceiling) for trial in measured for _, wer in trial.evaluations]
    reached = [
        sum(any(seen == rung for seen, _ in trial.evaluations) for trial in measured)
        for rung in analysis.settings.rungs
    ]
    figure = new_figure(
        xaxis={
            "title": {"text": "samples seen at the rungs"},
            "tickvals": [rung**0.5 for rung in analysis.settings.rungs],
            "ticktext": [
                f"{r:,}<br>{count}" for r, count in zip(analysis.settings.rungs, reached, strict=True)
            ],
            "range": [0, 1.02 * analysis.budget**0.5],
            "gridwidth": 2,
        },
        yaxis=wer_axis([*cut, base]),
        showlegend=True,
    )
    _draw_base_line(figure, base)
    ends = []
    for trial in sorted(measured, key=lambda trial: (trial is winner, trial is recipe)):  # the winner on top
        points = [(0, base), *trial.evaluations]
        xs, ys = [seen**0.5 for seen, _ in points], [min(wer, max(base, ceiling)) for _, wer in points]
        texts = [f"{wer:.2f} % at {seen:,} samples; {_describe(trial)}" for seen, wer in points]
        figure.add_scatter(
            x=xs, y=ys, **_line(analysis, trial, f"{trial.evaluations[-1][1]:.1f} %"), **pointed(texts)
        )
        if trial.status != "completed":
            ends.append((xs[-1], ys[-1], trial))
    for status, (colour, symbol) in _KINDS.items():
        if found := [end for end in ends if end[2].status == status]:
            figure.add_scatter(
                x=[x for x, _, _ in found],
                y=[y for _, y, _ in found],
                mode="markers",
                marker={"color": colour, "symbol": symbol, "size": 8},
                name=OUTCOMES[status],
                cliponaxis=False,
                **pointed([_describe(trial) for _, _, trial in found]),
            )
    text = (
        "WER of each trial, starting from the base model, before the end that of the mean of its weights; a marker "
        "shows where a trial ended early. Below each rung: the samples seen there, on a square-root scale, and the "
        "trials that reached it."
    )
    if clips := analysis.state.trial_clips:
        text += f" Trials are measured on {clips:,} of the validation clips, always the same ones."
    beyond = sum(any(wer > ceiling for _, wer in trial.evaluations) for trial in measured)
    if beyond:
        text += f" WERs above {ceiling:.0f} % are drawn there ({beyond} of {len(measured)} trials)."
    return Picture("curves", text, figure, 360)


def draw_training(analysis: Analysis) -> Picture | None:
    """The learning curve of a single training; None where nothing was measured."""
    if not analysis.trials or not analysis.trials[0].evaluations:
        return None
    trial = analysis.trials[0]
    points = [(0, analysis.trial_base_value), *trial.evaluations]
    figure = new_figure(
        xaxis={"title": {"text": "samples seen"}, "range": [0, 1.03 * analysis.budget], "tickformat": ",d"},
        yaxis=wer_axis([wer for _, wer in points]),
        showlegend=True,
    )
    _draw_base_line(figure, analysis.trial_base_value)
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
    caption = (
        "WER at each evaluation, starting from the base model, before the end that of the mean of the weights; "
        f"{clock(trial.elapsed)} in total."
    )
    return Picture("curve", caption, figure, 330)


def draw_losses(analysis: Analysis) -> Picture | None:
    """Training loss of every trial, and the winner's loss on the validation clips; None where none was reported."""
    rows, _ = parse_progress(analysis.folder.read(PROGRESS_FILE) or b"")
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        loss = row["metrics"].get("loss")
        if loss is not None and math.isfinite(loss):
            points.setdefault(row["trial_id"], []).append((row["metrics"]["samples_seen"], loss))
    trials, winner = [trial for trial in analysis.trials if trial.trial_id in points], analysis.winning_trial
    if not trials:
        return None
    figure = new_figure(
        xaxis={"title": {"text": "samples seen"}, "range": [0, 1.03 * analysis.budget], "tickformat": ",d"},
        yaxis={"title": {"text": "loss"}, "rangemode": "tozero"},
        showlegend=True,
    )
    for trial in sorted(trials, key=lambda trial: trial is winner):
        every = sorted(points[trial.trial_id])  # a resumed trial comes by the same samples again
        some = every[:: 1 + len(every) // _MOST_POINTS]
        figure.add_scatter(
            x=[seen for seen, _ in some],
            y=[loss for _, loss in some],
            **_line(analysis, trial, "training loss"),
            **pointed([f"loss {loss:.3f} at {seen:,.0f} samples; {_describe(trial)}" for seen, loss in some]),
        )
    if winner is not None and any(winner.losses.values()):
        known = [(seen, loss) for seen, loss in sorted(winner.losses.items()) if loss]
        figure.add_scatter(
            x=[seen for seen, _ in known],
            y=[loss for _, loss in known],
            mode="lines+markers",
            line={"color": ORANGE, "dash": "dot", "width": 2.6},
            name=f"{analysis.who} validation loss",
            **pointed([f"validation loss {loss:.3f} at {seen:,} samples" for seen, loss in known]),
        )
    text = "A validation loss that rises while the training loss falls is a sign of overfitting; WER decides who wins."
    return Picture("losses", text, figure, 300)


def draw_parallel(analysis: Analysis) -> Picture:
    """WER and the settings that all ranked trials have, as axes of which a part can be selected."""
    ranked = analysis.ranked
    wers = wer_scale([analysis.expected[trial.trial_id] for trial in ranked])
    places = [wers.place(analysis.expected[trial.trial_id]) for trial in ranked]
    shared = [name for name in analysis.parameters if all(name in trial.config for trial in ranked)]
    axes = [(wers, places)]
    axes += [
        (analysis.scales[name], [analysis.scales[name].place(trial.config[name]) for trial in ranked])
        for name in shared
    ]
    figure = new_figure(margin={"l": 60, "r": 60, "t": 44, "b": 16})
    figure.add_parcoords(
        line={"color": places, "cmin": 0, "cmax": 1, "colorscale": [[0, GREEN], [0.4, BLUE], [1, ORANGE]]},
        dimensions=[
            {"label": label(SHORT_NAMES.get(scale.name, scale.name), 18), "values": values, "range": [0, 1]}
            | dict(zip(("tickvals", "ticktext"), scale.ticks(), strict=True))
            for scale, values in axes
        ],
        labelfont={"color": INK},
        tickfont={"color": MUTED},
    )
    text = (
        "Each line is a trial, green for a low WER. Drag along an axis to select trials, click it to reset."
    )
    if any(trial.status != "completed" for trial in ranked):
        text += " Trials that did not end with their full budget stand at the WER extrapolated to it."
    if len(shared) < len(analysis.parameters):
        text += " Settings that only some trials have are left out."
    return Picture("parallel", text, figure, 300)


def _place(trial: Trial, scale: Scale) -> float:
    """Where a trial stands on a setting's axis; those of one choice are spread by the golden section."""
    value = trial.config[scale.name]
    if scale.values is None:
        return float(value)
    return scale.values.index(value) + ((int(trial.trial_id) * 0.618034) % 1 - 0.5) * _SPREAD


def _draw_trials(figure: Figure, analysis: Analysis, scale: Scale, trials: Sequence[Trial]) -> None:
    """Marks of trials: filled where they had their whole budget; the winner stands out, on top."""
    winner = analysis.winning_trial
    trials = sorted(trials, key=lambda trial: (trial is winner, trial.status == "completed"))
    labels, colours, symbols = [], [], []
    for trial in trials:
        whole, chosen = trial.status == "completed", trial is winner
        more = "" if whole else f"; extrapolated WER {analysis.expected[trial.trial_id]:.1f} %"
        labels.append(_describe(trial) + more)
        colours.append(GREEN if chosen else BLUE if whole else MUTED)
        symbols.append("star" if chosen else "circle" if whole else "circle-open")
    figure.add_scatter(
        x=[_place(trial, scale) for trial in trials],
        y=[analysis.expected[trial.trial_id] for trial in trials],
        mode="markers",
        marker={
            "color": colours,
            "symbol": symbols,
            "opacity": 1,
            "size": [15 if trial is winner else 9 for trial in trials],
            "line": {"width": 1, "color": [PAPER if "open" not in symbol else MUTED for symbol in symbols]},
        },
        cliponaxis=False,
        **pointed(labels),
    )


def draw_slices(analysis: Analysis) -> list[Picture]:
    """WER over each setting, the most important first, with where the best trials lie."""
    found = []
    wers = [analysis.expected[trial.trial_id] for trial in analysis.ranked]
    for name in sorted(analysis.parameters, key=lambda name: -analysis.importances.get(name, 0.0)):
        scale, trials = analysis.scales[name], [t for t in analysis.ranked if name in t.config]
        if not trials:
            continue
        best = trials[: max(3, len(trials) // 10)]
        figure = new_figure(xaxis=scale.axis(), yaxis=wer_axis(wers))
        if min(wers) <= analysis.trial_base_value <= max(wers):
            _draw_base_line(figure, analysis.trial_base_value)
        _draw_trials(figure, analysis, scale, trials)
        values = [trial.config[name] for trial in best]
        if all(isinstance(value, float) for value in values):
            span = f"{tell(min(values))} to {tell(max(values))}"
        else:
            span = ", ".join(dict.fromkeys(tell(value) for value in values))
        caption = f"Best {len(best)} trials: {span}."
        found.append(Picture(f"slice-{name.replace('_', '-')}", caption, figure, 250))
    return found
