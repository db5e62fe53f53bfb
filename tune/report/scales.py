"""Axes of figures: settings on the scale that they were searched on, WERs so that small differences show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from tune.pages.figures import label
from tune.space.parameters import ChoiceParameter, Parameter, show
from tune.util.console import short_value

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

    def value(self, place: float) -> float:
        """What of a range lies at a place."""
        if self.log:
            return float(self.low * (self.high / self.low) ** place)
        return self.low + place * (self.high - self.low)

    @property
    def ends(self) -> tuple[float, float]:
        """Of its axis in a figure, where choices stand at 0, 1, 2, ..."""
        return (self.low, self.high) if self.values is None else (-0.5, len(self.values) - 0.5)

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


def setting_axis(scale: Scale) -> dict[str, Any]:
    """A setting as an axis of a figure: values of a range, indices of choices."""
    axis: dict[str, Any] = {"title": {"text": scale.name}}
    if scale.values is not None:
        marks = {
            "tickvals": list(range(len(scale.values))),
            "ticktext": [label(text) for _, text in scale.ticks],
        }
        return axis | marks | {"range": scale.ends, "showgrid": False}
    ends = [scale.value(-0.03), scale.value(1.03)]
    marks = {
        "tickvals": [scale.value(place) for place, _ in scale.ticks],
        "ticktext": [text for _, text in scale.ticks],
    }
    if scale.log:
        return axis | marks | {"type": "log", "range": [math.log10(end) for end in ends]}
    return axis | marks | {"range": ends}


def wer_axis(values: Sequence[float], title: str) -> dict[str, Any]:
    """An axis of WERs, logarithmic where they differ by a multiple."""
    low, high = min(values), max(values)
    axis: dict[str, Any] = {"title": {"text": title}}
    if not _is_wide(low, high):
        room = 0.08 * (high - low) or 0.05 * high or 1.0
        return axis | {"range": [max(0.0, low - room), high + room], "nticks": _MOST_TICKS}
    room = 0.06 * math.log10(high / low)
    ends = [math.log10(low) - room, math.log10(high) + room]
    ticks = [tick for tick in _WER_TICKS if ends[0] <= math.log10(tick) <= ends[1]]
    ticks = ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]
    return axis | {
        "type": "log",
        "range": ends,
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }


def wer_scale(values: Sequence[float]) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Places of WERs from 0 to 1, as `Scale` has them of settings, and three labelled ones."""
    low, high = min(values), max(values)
    wide = _is_wide(low, high)

    def place(wer: float) -> float:
        if high == low:
            return 0.5
        return math.log(wer / low) / math.log(high / low) if wide else (wer - low) / (high - low)

    middle = math.sqrt(low * high) if wide else (low + high) / 2
    return place, [(place(wer), f"{wer:.3g}") for wer in sorted({low, middle, high})]


def _is_wide(low: float, high: float) -> bool:
    return low > 0 and high > _WIDE * low
