"""Axes of pictures: settings on the scale that they were searched on, WERs so that small differences show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tune.display import short_value
from tune.pages.pictures import MUTED
from tune.parameters import ChoiceParameter, Parameter, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WER_TICKS = (
    *(0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50, 70),
    *(100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000),
)
_WIDE = 4.0
"""Largest WER to the smallest from which their axis is logarithmic."""
_MOST_TICKS = 7
_LONGEST = 14
"""Characters of a choice's label; longer ones are cut."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """A searched setting as an axis from 0 to 1."""

    name: str
    ticks: list[tuple[float, str]]
    """Places and labels."""
    values: tuple[Any, ...] | None
    """Of a choice, in the order of the axis; None for a range."""
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Any) -> float:
        """Where a value lies, from 0 to 1."""
        if self.values is not None:
            return (self.values.index(value) + 0.5) / len(self.values)
        ends = (float(value), self.low, self.high)
        at, low, high = (math.log(end) for end in ends) if self.log else ends
        return (at - low) / (high - low)

    @property
    def step(self) -> float:
        """Width of a choice on the axis; 0 for a range."""
        return 1 / len(self.values) if self.values is not None else 0.0


def scale_of(name: str, parameter: Parameter) -> Scale:
    """The axis of a setting; choices of numbers in rising order."""
    if isinstance(parameter, ChoiceParameter):
        values = parameter.values
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            values = tuple(sorted(values))
        places = [((index + 0.5) / len(values), _cut(show(value))) for index, value in enumerate(values)]
        return Scale(name, places, values)
    low, high = float(parameter.low or 0.0), float(parameter.high or 0.0)
    bare = Scale(name, [], None, low, high, parameter.log)
    marks = _log_marks(low, high) if parameter.log else _marks(low, high)
    return dataclasses.replace(bare, ticks=[(bare.place(mark), number(mark)) for mark in marks])


def tell(value: Any) -> str:
    """A setting's value in a few characters: `0.00131`, `8`, `true`."""
    return show(value) if value is None or isinstance(value, bool) else short_value(value)


def number(value: float) -> str:
    """`0.001`, `1e-5`, `250`."""
    text = f"{value:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def _marks(low: float, high: float) -> list[float]:
    """Round numbers of a range, at most five."""
    width = 10 ** math.floor(math.log10((high - low) / 2))
    for times in (1, 2, 2.5, 5, 10, 20):
        step = width * times
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < 5:
            return [index * step for index in range(first, last + 1)]
    return [low, high]


def _log_marks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 times them (or 3 times) where the range is short; at most five."""
    powers = range(math.floor(math.log10(low) - 1), math.ceil(math.log10(high)) + 2)
    for times in ((1, 2, 5), (1, 3), (1,)):
        marks = [float(f"{base}e{power}") for power in powers for base in times]
        inside = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if 2 <= len(inside) <= 5:
            return inside
    return inside[:: math.ceil(len(inside) / 5)] if len(inside) > 5 else [low, high]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def draw_scale(axes: Axes, scale: Scale, which: Literal["x", "y"]) -> None:
    """Put a setting on an axis of a picture."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    places = [place for place, _ in scale.ticks]
    axis.set_ticks(places, [label for _, label in scale.ticks])
    margin = 0.03 if scale.values is None else 0.0
    (axes.set_xlim if which == "x" else axes.set_ylim)(-margin, 1 + margin)
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(scale.name)
    if scale.values is not None:
        axes.grid(False, axis=which)


def draw_wer_axis(axes: Axes, values: Iterable[float], *, label: str = "WER %") -> tuple[float, float]:
    """Make the vertical axis one of WERs, logarithmic where they differ by a multiple, and return its ends."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    found = list(values)
    low, high = min(found), max(found)
    axes.set_ylabel(label)
    if not low or high <= _WIDE * low:
        room = 0.08 * (high - low) or 0.05 * high or 1.0
        ends = (max(0.0, low - room), high + room)
        axes.set_ylim(*ends)
        return ends
    ends = (low / (high / low) ** 0.06, high * (high / low) ** 0.06)
    axes.set_yscale("log")
    axes.set_ylim(*ends)
    ticks = [tick for tick in _WER_TICKS if ends[0] <= tick <= ends[1]]
    ticks = ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    return ends


def draw_margin_labels(axes: Axes, labels: Sequence[tuple[float, str, str]], height: float = 0.085) -> None:
    """Name heights of a picture in its right margin, where no mark can be; those too near are moved apart.

    Args:
        axes: its vertical axis is complete.
        labels: height on the axis, text and colour.
        height: of one line of text, as a share of the axis.
    """
    to_share = axes.transScale + axes.transLimits
    at = sorted(
        ((float(to_share.transform((0, y))[1]), text, colour) for y, text, colour in labels), reverse=True
    )
    ceiling = 1.05
    places = []
    for share, text, colour in at:
        need = height * (text.count("\n") + 1)
        place = min(share, ceiling - need / 2)
        ceiling = place - need / 2
        places.append((place, text, colour))
    lift = max(0.0, -0.05 - ceiling)
    for place, text, colour in places:
        axes.annotate(
            text,
            (1.015, place + lift),
            xycoords="axes fraction",
            va="center",
            ha="left",
            color=colour,
            annotation_clip=False,
        )


def draw_base_line(axes: Axes, wer: float) -> None:
    """The base model's WER across a picture."""
    axes.axhline(wer, color=MUTED, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1)
