"""Figures of what the settings did: importances, one setting at a time, two at a time, all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.pages.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    PAPER,
    Picture,
    label,
    new_figure,
    pointed,
    rows_axis,
    whiskers,
)
from tune.report.analysis import Analysis
from tune.report.figures_result import describe_trial, draw_base_line
from tune.report.scales import Scale, tell, wer_axis, wer_scale
from tune.search.records import TrialRecord

if TYPE_CHECKING:
    import numpy as np
    from plotly.graph_objects import Figure

_SPREAD = 0.5
"""Share of a choice's width over which its trials are spread, so that equal ones do not hide each other."""
_TURNS = (0.618034, 0.754878)
"""Spread the trials of a choice, and those of two choices over both directions (golden section, Roberts' sequence)."""
_WIDTH = 0.16
"""Standard deviation of the kernel that smooths the map of two settings, which has sides of 1."""
_REACH = 0.14
"""The map ends so far from the next trial."""
_GRID = 72
_STOPPED = "were stopped early and stand at what they would have come to, by what others gained later."


def _jitter(trial: TrialRecord, turn: float = _TURNS[0]) -> float:
    return ((int(trial.trial_id) * turn) % 1 - 0.5) * _SPREAD


def _place(trial: TrialRecord, scale: Scale, turn: float = _TURNS[0]) -> float:
    """Where a trial stands on a setting's axis; another `turn` spreads those of one choice otherwise."""
    value = trial.config[scale.name]
    return float(value) if scale.values is None else scale.values.index(value) + _jitter(trial, turn)


def _with(analysis: Analysis, *names: str) -> list[TrialRecord]:
    """Trials in which these settings were searched, the best first."""
    return [trial for trial in analysis.ranked if trial.config.keys() >= {*names}]


def _draw_trials(figure: Figure, analysis: Analysis, places: Mapping[str, tuple[float, float]]) -> None:
    """Marks of trials: filled where they had their whole budget; the winner stands out, on top."""
    winner = analysis.experiment.winner
    trials = [trial for trial in analysis.ranked if trial.trial_id in places]
    trials.sort(key=lambda trial: (trial is winner, trial.status == "completed"))
    told, colours, symbols = [], [], []
    for trial in trials:
        whole, chosen = trial.status == "completed", trial is winner
        more = "" if whole else f"; it would have come to about {analysis.expected[trial.trial_id]:.1f} %"
        told.append(describe_trial(trial) + more)
        colours.append(GREEN if chosen else BLUE if whole else MUTED)
        symbols.append("star" if chosen else "circle" if whole else "circle-open")
    figure.add_scatter(
        x=[places[trial.trial_id][0] for trial in trials],
        y=[places[trial.trial_id][1] for trial in trials],
        mode="markers",
        marker={
            "color": colours,
            "symbol": symbols,
            "opacity": 1,
            "size": [15 if trial is winner else 9 for trial in trials],
            "line": {"width": 1, "color": [PAPER if "open" not in symbol else MUTED for symbol in symbols]},
        },
        cliponaxis=False,
        **pointed(told),
    )


def draw_importances(analysis: Analysis) -> Picture:
    """Bars with intervals, the most important setting on top."""
    found = analysis.importances
    figure = new_figure(
        xaxis={"title": {"text": "share of the differences, %"}, "range": [0, 100]},
        yaxis=rows_axis([importance.name for importance in found]),
        bargap=0.45,
    )
    shares, ends = [100 * one.share for one in found], [(100 * one.low, 100 * one.high) for one in found]
    figure.add_bar(
        x=shares,
        y=list(range(len(found))),
        orientation="h",
        marker={"color": BLUE},
        error_x=whiskers(shares, ends) | {"color": INK, "thickness": 1},
        **pointed(
            [
                f"{one.name}: {share:.0f} %, 90 % interval {low:.0f} to {high:.0f} %"
                for one, share, (low, high) in zip(found, shares, ends, strict=True)
            ]
        ),
    )
    caption = (
        "How much of the differences in WER each setting explains (by a random forest, in shares of 100 %). The thin "
        f"lines are 90 % intervals, from drawing the {len(analysis.expected)} trials anew: where they overlap, the "
        "order may be chance."
    )
    if len(analysis.experiment.shared) < len(analysis.experiment.parameters):
        caption += " Settings that only some trials have are left out."
    return Picture("importances", caption, figure, 110 + 36 * len(found))


def draw_slices(analysis: Analysis) -> list[Picture]:
    """WER over each setting, a figure each, with where the best trials lie."""
    experiment, expected, found = analysis.experiment, analysis.expected, []
    wers = [expected[trial.trial_id] for trial in analysis.ranked]
    for name in analysis.settings_order:
        scale, trials = experiment.scales[name], _with(analysis, name)
        if not trials:
            continue
        best = trials[: max(3, len(trials) // 10)]
        figure = new_figure(xaxis=scale.axis(), yaxis=wer_axis(wers))
        if min(wers) <= experiment.trial_base_value <= max(wers):
            draw_base_line(figure, experiment.trial_base_value)
        places = {trial.trial_id: (_place(trial, scale), expected[trial.trial_id]) for trial in trials}
        _draw_trials(figure, analysis, places)
        values = [trial.config[name] for trial in best]
        if all(isinstance(value, float) for value in values):
            told = f"{tell(min(values))} to {tell(max(values))}"
        else:
            told = ", ".join(dict.fromkeys(tell(value) for value in values))
        caption = f"The {len(best)} best: {told}."
        found.append(Picture(f"slice-{name.replace('_', '-')}", caption, figure, 250))
    return found


def draw_parallel(analysis: Analysis) -> Picture:
    """All settings side by side: a line is a trial, the stronger the better.

    (Optuna's own has ranges to filter by, but does not say which trial one points at, nor which were stopped early,
    draws those of one choice over each other, and needs WebGL.)
    """
    winner, ranked, expected = analysis.experiment.winner, analysis.ranked[::-1], analysis.expected
    scales = [analysis.experiment.scales[name] for name in analysis.settings_order]
    wers = wer_scale([expected[trial.trial_id] for trial in ranked])
    columns = list(range(len(scales) + 1))
    names = [*(label(scale.name).replace("_", "_<br>", 1) for scale in scales), wers.name]
    hidden = {"showgrid": False, "showline": False, "ticks": ""}
    figure = new_figure(
        xaxis=hidden | {"tickvals": columns, "ticktext": names, "range": [-0.4, len(names) - 0.9]},
        yaxis=hidden | {"showticklabels": False, "range": [-0.05, 1.05]},
    )
    for rank, trial in enumerate(ranked, start=1):
        chosen = trial is winner
        heights = [
            scale.place(trial.config[scale.name]) + scale.step * _jitter(trial)
            if scale.name in trial.config
            else None  # a gap
            for scale in scales
        ]
        figure.add_scatter(
            x=columns,
            y=[*heights, wers.place(expected[trial.trial_id])],
            mode="lines",
            line={
                "color": GREEN if chosen else BLUE,
                "width": 3 if chosen else 1.5,
                "dash": "solid" if trial.status == "completed" else "dash",
            },
            opacity=1.0 if chosen else 0.12 + 0.78 * (rank / len(ranked)) ** 3,
            **pointed([describe_trial(trial)] * len(names)),
        )
    for column, scale in enumerate([*scales, wers]):
        figure.add_shape(type="line", x0=column, x1=column, y0=0, y1=1, line={"color": MUTED, "width": 1})
        for place, text in scale.marks:
            mark = {"x": column, "y": place, "text": text, "xanchor": "right"}
            figure.add_annotation(**mark, showarrow=False, bgcolor=PAPER, borderpad=1)
    caption = (
        "Each line is a trial across all settings to its WER: the stronger, the better; green is the winner. Where "
        f"strong lines run together, that setting's value matters. Dashed lines {_STOPPED}"
    )
    return Picture("parallel", caption, figure, 360)


def draw_map(analysis: Analysis) -> Picture:
    """WER over the two most important settings: a smooth map where there are trials, and the trials on it.

    (Optuna's own colours what lies between choices, and parts of the space that no trial was near.)
    """
    import numpy as np

    first, second = analysis.settings_order[:2]
    trials, across, up = (
        _with(analysis, first, second),
        analysis.experiment.scales[first],
        analysis.experiment.scales[second],
    )
    wers = np.array([analysis.expected[trial.trial_id] for trial in trials])
    (xs, far_x), (ys, far_y) = (_distances(scale, trials) for scale in (across, up))
    apart = far_x[None, :, :] + far_y[:, None, :]
    weights = np.exp(-np.minimum(apart, 1.0) / (2 * _WIDTH**2))
    heights = (weights * wers).sum(-1) / weights.sum(-1)
    heights[apart.min(-1) > _REACH**2] = np.nan
    figure = new_figure(xaxis=across.axis(), yaxis=up.axis())
    figure.add_heatmap(
        x=xs,
        y=ys,
        z=[[None if np.isnan(height) else round(height, 3) for height in row] for row in heights.tolist()],
        zmin=float(wers.min()),
        zmax=max(float(np.percentile(wers, 75)), float(wers.min()) + 0.05),
        colorscale=[[0, BLUE], [1, PAPER]],
        opacity=0.85,
        hoverinfo="skip",
        colorbar={
            "title": {"text": "WER %", "side": "right"},
            "thickness": 12,
            "outlinewidth": 0,
            "len": 0.9,
        },
    )
    places = {trial.trial_id: (_place(trial, across), _place(trial, up, _TURNS[1])) for trial in trials}
    _draw_trials(figure, analysis, places)
    caption = (
        f"WER over {first} and {second}, other settings left as they came; the stronger the colour, the better. The "
        "colours are averages of near trials and end where there are none. The star is the winner. Hollow marks "
        f"{_STOPPED}"
    )
    return Picture("map", caption, figure, 400)


def _distances(scale: Scale, trials: Sequence[TrialRecord]) -> tuple[list[float], np.ndarray]:
    """Edges of the map's cells along a setting, and squared distances from their middles to the trials.

    Choices have no order, so each is a band of its own that knows only its trials.
    """
    import numpy as np

    at: Any = np.array([scale.place(trial.config[scale.name]) for trial in trials])
    if scale.values is None:
        edges = np.linspace(0, 1, _GRID + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        return [scale.value(edge) for edge in edges], (middles[:, None] - at) ** 2
    choices = (np.arange(len(scale.values)) + 0.5) * scale.step
    same = abs(choices[:, None] - at) < scale.step / 2
    return [index - 0.5 for index in range(len(scale.values) + 1)], np.where(same, 0.0, np.inf)
