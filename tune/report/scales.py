"""Axes of figures: settings on the scale that they were searched on, WERs so that small differences show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tune.pages.figures import label
from tune.space.parameters import ChoiceParameter, Parameter, is_number, show
from tune.util.console import short_value

_WIDE = 4.0
"""Largest WER to the smallest from which their axis is logarithmic."""
_LONGEST = 14
"""Characters of a choice's label; longer ones are cut."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """A searched setting, or WERs, as an axis."""

    name: str
    values: tuple[Any, ...] | None = None
    """Of a choice, in the order of the axis; None for a range."""
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Any) -> float:
        """Where a value lies, from 0 to 1."""
        if self.values is not None:
            return (self.values.index(value) + 0.5) * self.step
        ends = (float(value), self.low, self.high)
        at, low, high = (math.log(end) for end in ends) if self.log else ends
        return (at - low) / (high - low)

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places of a few values, from 0 to 1, and their labels."""
        if self.values is not None:
            return [self.place(value) for value in self.values], [
                label(show(value), _LONGEST) for value in self.values
            ]
        places = [0.0, 0.25, 0.5, 0.75, 1.0]
        if self.log:
            return places, [f"{self.low * (self.high / self.low) ** place:.3g}" for place in places]
        return places, [f"{self.low + (self.high - self.low) * place:.3g}" for place in places]

    @property
    def step(self) -> float:
        """Width of a choice on the axis; 0 for a range."""
        return 1 / len(self.values) if self.values is not None else 0.0

    def axis(self, room: float = 0.03) -> dict[str, Any]:
        """An axis of a figure: values of a range, with so much room beyond its ends; indices of choices."""
        axis: dict[str, Any] = {"title": {"text": self.name}, "nticks": 7}
        if self.values is not None:
            texts = [label(show(value), _LONGEST) for value in self.values]
            ends = (-0.5, len(texts) - 0.5)
            return axis | {
                "range": ends,
                "showgrid": False,
                "tickvals": [*range(len(texts))],
                "ticktext": texts,
            }
        if not self.log:
            more = room * (self.high - self.low)
            return axis | {"range": [self.low - more, self.high + more]}
        low, high = math.log10(self.low), math.log10(self.high)
        more, decades = room * (high - low), high - low
        # Else plotly's own, a label for each digit.
        ticks = {"dtick": math.ceil(decades / 4) if decades >= 2 else "D2"} if decades >= 0.7 else {}
        return axis | ticks | {"type": "log", "range": [low - more, high + more], "tickformat": "~g"}


def scale_of(name: str, parameter: Parameter) -> Scale:
    """The axis of a setting; choices of numbers in rising order."""
    if isinstance(parameter, ChoiceParameter):
        values = parameter.values
        if all(map(is_number, values)):
            values = tuple(sorted(values))
        return Scale(name, values)
    return Scale(name, None, float(parameter.low or 0.0), float(parameter.high or 0.0), parameter.log)


def wer_scale(values: Sequence[float]) -> Scale:
    """The axis of these WERs, logarithmic where they differ by a multiple."""
    low, high = min(values), max(values)
    if low == high:
        half = 0.05 * high or 1.0
        low, high = max(0.0, low - half), high + half
    return Scale("WER %", None, low, high, log=low > 0 and high > _WIDE * low)


def wer_axis(values: Sequence[float]) -> dict[str, Any]:
    """The same for a figure."""
    return wer_scale(values).axis(room=0.07)


def tell(value: Any) -> str:
    """A setting's value in a few characters: `0.00131`, `8`, `true`."""
    return show(value) if value is None or isinstance(value, bool) else short_value(value)


def number(value: float) -> str:
    """`0.001`, `1e-5`, `250`."""
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")
