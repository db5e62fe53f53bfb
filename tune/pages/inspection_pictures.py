"""Pictures of a data set: how long, how fast, how loud its clips are, and which texts do not fit."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.pages.pictures import BLUE, CYCLE, INK, MUTED, RED, Picture, drawing

if TYPE_CHECKING:
    from trainer.inspection.findings import Entry
    from trainer.inspection.inspection import Distribution, Inspection

_MOST_POINTS, _MOST_FLAGGED = 2000, 80
_ORDER = ("train", "validation", "test")
_CAPTIONS = {
    "tokens": "Tokens that the model learns for each clip, those around the text included.",
    "letters_per_second": "How fast people speak: letters a second, without silence and pauses.",
    "level": "How loud the clips are: the level that a twentieth of each is above, in dB below full scale.",
    "silence": "Silence before the first sound and after the last.",
}


def durations_picture(inspection: Inspection, found: Distribution) -> Picture:
    """Clips by length, split by split."""
    edges, _ = found.histogram()
    by_split: dict[str, list[float]] = {}
    for entry in inspection.entries:
        if entry.sound is not None and entry.sound.seconds:
            by_split.setdefault(entry.split, []).append(entry.sound.seconds)
    names = [name for name in _ORDER if name in by_split]
    window = inspection.limits.window
    over = sum(value > window for value in found.values)
    caption = f"Clips by length; half of them are {found.quantile(0.5):.1f} s and longer.{_outside(edges)}"
    if over:
        caption += f" Longer than the window of {window:g} s: {_clips(over)}."
    with drawing(9.0, 3.0) as figure:
        axes = figure.add_subplot()
        picture = Picture("durations", caption, figure)
        bottom = [0] * (len(edges) - 1)
        for name, colour in zip(names, CYCLE, strict=False):
            counts = _counts(by_split[name], edges)
            _draw_bars(picture, edges, counts, bottom, colour=colour, label=name, unit="s")
            bottom = [base + count for base, count in zip(bottom, counts, strict=True)]
        axes.set_xlabel("seconds")
        axes.set_ylabel("clips")
        axes.grid(axis="x", visible=False)
        if len(names) > 1:
            axes.legend(loc="upper right")
    return picture


def histogram_picture(found: Distribution) -> Picture:
    """Clips by one measure."""
    edges, counts = found.histogram()
    with drawing(4.4, 2.7) as figure:
        axes = figure.add_subplot()
        picture = Picture(found.key.replace("_", "-"), _CAPTIONS[found.key] + _outside(edges), figure)
        _draw_bars(picture, edges, counts, [0] * len(counts), colour=BLUE, label="", unit=found.unit)
        axes.set_xlabel(f"{found.label}{', ' + found.unit if found.unit else ''}")
        axes.set_ylabel("clips")
        axes.grid(axis="x", visible=False)
    return picture


def _draw_bars(
    picture: Picture,
    edges: Sequence[float],
    counts: Sequence[int],
    bottom: Sequence[int],
    *,
    colour: str,
    label: str,
    unit: str,
) -> None:
    """Bars of one width, with what they stand for; the outermost may stand for more than their place says."""
    [axes] = picture.figure.axes
    width = _width(edges)
    starts = [edges[1] - width, *edges[1:-1]]
    bars = axes.bar(starts, counts, 0.94 * width, bottom=bottom, align="edge", color=colour, label=label)
    for bar, count, low, high in zip(bars, counts, edges, edges[1:], strict=False):
        if count:
            whose = f"{label}: " if label else ""
            picture.tip(bar, f"{whose}{_clips(count)} of {low:.4g} to {high:.4g} {unit}".strip())


def _width(edges: Sequence[float]) -> float:
    return edges[2] - edges[1] if len(edges) > 3 else edges[1] - edges[0]


def _outside(edges: Sequence[float]) -> str:
    """That the outermost bars reach further than they are drawn, where they do."""
    width = 1.01 * _width(edges)
    told = []
    if edges[1] - edges[0] > width:
        told.append(f"The first bar holds everything down to {edges[0]:.4g}.")
    if edges[-1] - edges[-2] > width:
        told.append(f"The last bar holds everything up to {edges[-1]:.4g}.")
    return "".join(f" {one}" for one in told)


def rates_picture(inspection: Inspection, flagged: Mapping[tuple[str, str], str]) -> Picture | None:
    """Letters against seconds of speech: texts of other audio lie far from the rest.

    Args:
        inspection: the data set.
        flagged: what is wrong with texts that do not fit, by split and name.
    """
    points = [entry for entry in inspection.entries if entry.heard is not None and entry.heard.spoken > 0]
    odd = [entry for entry in points if (entry.split, entry.name) in flagged]
    usual = [entry for entry in points if (entry.split, entry.name) not in flagged]
    if len(points) < 2:
        return None
    shown = random.Random(0).sample(usual, min(len(usual), _MOST_POINTS))
    caption = "How long texts take to speak, without pauses. Red: texts that are too long or too short for their audio."
    if len(shown) < len(usual):
        caption += f" {len(shown):,} of {len(usual):,} others are drawn."
    with drawing(9.0, 3.8) as figure:
        axes = figure.add_subplot()
        picture = Picture("rates", caption, figure)
        colours = dict(zip(inspection.languages, [BLUE, *CYCLE[1:]], strict=False))
        # Red is for what is wrong.
        colours = {code: MUTED if colour == RED else colour for code, colour in colours.items()}
        for code in inspection.languages:
            _draw_language(axes, inspection, code, shown, colours.get(code, MUTED))
        for entry in odd[:_MOST_FLAGGED]:
            [dot] = axes.plot(*_place(entry), "o", color=RED, markersize=5)
            picture.tip(dot, f"{entry.name} ({entry.split}): {flagged[entry.split, entry.name]}")
        axes.set_xlabel("letters of the text")
        axes.set_ylabel("seconds of speech")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        if len(inspection.languages) > 1:
            axes.legend(markerscale=2)
    return picture


def _draw_language(axes: Any, inspection: Inspection, code: str, shown: Sequence[Entry], colour: str) -> None:
    mine = [entry for entry in shown if inspection.code_of(entry) == code]
    places = [_place(entry) for entry in mine]
    axes.plot(
        [letters for letters, _ in places],
        [seconds for _, seconds in places],
        "o",
        color=colour,
        markersize=3,
        alpha=0.6,
        markeredgewidth=0,
        label=code,
    )
    if code in inspection.rates and places:
        ends = [0.0, float(max(letters for letters, _ in places))]
        usual = [inspection.rates[code].usual_seconds(letters) for letters in ends]
        axes.plot(ends, usual, color=INK, linewidth=1, alpha=0.7)


def _place(entry: Entry) -> tuple[int, float]:
    assert entry.heard is not None
    return entry.units, entry.heard.spoken


def _counts(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    from bisect import bisect_right

    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[min(len(counts) - 1, max(0, bisect_right(edges, value) - 1))] += 1
    return counts


def _clips(count: int) -> str:
    return "1 clip" if count == 1 else f"{count:,} clips"
