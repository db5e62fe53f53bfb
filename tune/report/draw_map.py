"""The map of two settings: WER over both, where there are trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tune.pages.pictures import BLUE, Picture, drawing
from tune.report.draw_settings import STOPPED, draw_trial, shown_trials, spread
from tune.report.known import Experiment
from tune.report.scales import Scale, draw_scale

if TYPE_CHECKING:
    import numpy as np

_WIDTH = 0.16
"""Standard deviation of the kernel that smooths the map of two settings, which has sides of 1."""
_REACH = 0.14
"""The map ends so far from the next trial."""
_TURN = 0.754878
"""Spreads the trials of two choices over both directions (Roberts' sequence)."""
_GRID = 72
_LEVELS = 7


def draw_map(experiment: Experiment, expected: Mapping[str, float], first: str, second: str) -> Picture:
    """WER over the two most important settings: a smooth map where there are trials, and the trials on it."""
    from matplotlib.colors import to_rgba

    trials, winner = shown_trials(experiment, expected), experiment.winner
    across, up = experiment.scales[first], experiment.scales[second]
    points = [(across.place(t.config[first]), up.place(t.config[second])) for t in trials]
    wers = [expected[trial.trial_id] for trial in trials]
    with drawing(5.2, 4.0) as figure:
        axes = figure.add_subplot()
        caption = (
            f"WER over {first} and {second}, other settings left as they came; the stronger the colour, the better. "
            f"The colours are averages of near trials and end where there are none. The star is the winner. {STOPPED}"
        )
        shown = Picture("map", caption, figure)
        levels = _levels(wers)
        colours = [
            (*to_rgba(BLUE)[:3], 0.85 * (1 - index / len(levels)) ** 1.2) for index in range(len(levels))
        ]
        filled = None
        for xs, ys, heights in _smooth(points, wers, across, up):
            filled = axes.contourf(xs, ys, heights, levels=levels, colors=colours, extend="max")
        for trial, wer in zip(trials, wers, strict=True):
            chosen = winner is not None and trial.trial_id == winner.trial_id
            draw_trial(axes, shown, spread(trial, across), spread(trial, up, _TURN), trial, chosen, wer)
        draw_scale(axes, across, "x")
        draw_scale(axes, up, "y")
        axes.grid(False)
        if filled is not None:
            bar = figure.colorbar(filled, ax=axes, label="WER %", shrink=0.85, pad=0.02)
            bar.ax.yaxis.set_ticks(levels, [f"{level:.3g}" for level in levels])
            bar.outline.set_visible(False)
    return shown


def _levels(wers: Sequence[float]) -> list[float]:
    """Boundaries of the map's colours: round, from the best WER to where three quarters of the trials are."""
    import numpy as np

    low, high = float(min(wers)), float(np.percentile(wers, 75))
    if high - low < 0.05:
        high = low + 0.05
    step = (high - low) / (_LEVELS - 1)
    width = 10 ** math.floor(math.log10(step))
    step = next(width * times for times in (1, 2, 2.5, 5, 10) if width * times >= step)
    first = math.floor(low / step)
    return [
        float(f"{(first + index) * step:.10g}")
        for index in range(math.ceil((high - first * step) / step) + 1)
    ]


def _smooth(
    points: Sequence[tuple[float, float]], wers: Sequence[float], across: Scale, up: Scale
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Weighted means of the WERs of near trials (Nadaraya and Watson), as pieces to draw.

    Choices have no order, so each is a band of its own that knows only its trials. Where no trial is near, the map
    is masked.
    """
    import numpy as np

    at, values = np.array(points), np.array(wers)
    pieces: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for columns, take_x in _bands(across, at[:, 0]):
        for rows, take_y in _bands(up, at[:, 1]):
            own = take_x & take_y
            if not own.any():
                continue
            # Within a band all trials stand at its middle: there is no distance but along the other setting.
            middle = (columns.mean() if across.values else columns, rows.mean() if up.values else rows)
            x, y = np.meshgrid(
                *(np.broadcast_to(m, line.shape) for m, line in zip(middle, (columns, rows), strict=True))
            )
            apart = (x[..., None] - at[own, 0]) ** 2 + (y[..., None] - at[own, 1]) ** 2
            weights = np.exp(-apart / (2 * _WIDTH**2))
            heights = (weights * values[own]).sum(-1) / weights.sum(-1)
            masked = np.ma.masked_where(apart.min(-1) > _REACH**2, heights)
            if masked.count() > 1:
                pieces.append((columns, rows, masked))
    return pieces


def _bands(scale: Scale, places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pieces of an axis, and which trials belong to each: one piece for a range, one for each choice."""
    import numpy as np

    if scale.values is None:
        return [(np.linspace(0, 1, _GRID), np.ones(len(places), bool))]
    half = 0.42 * scale.step
    centres = [(index + 0.5) / len(scale.values) for index in range(len(scale.values))]
    return [
        (np.array([centre - half, centre + half]), np.abs(places - centre) < scale.step / 2)
        for centre in centres
    ]
