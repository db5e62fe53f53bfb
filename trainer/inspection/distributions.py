"""How a measure spreads over the clips: for tables, histograms and programs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from trainer.inspection.entries import Entry
from trainer.inspection.sound import Sound
from trainer.inspection.sound_findings import is_silent

_BINS = 30


@dataclasses.dataclass(frozen=True)
class Distribution:
    """One measure of many clips."""

    key: str
    """For programs: `seconds`."""
    label: str
    """For people: `duration`."""
    unit: str
    values: list[float]
    """In rising order."""

    def quantile(self, share: float) -> float:
        """The value that `share` of the clips do not exceed."""
        return self.values[min(len(self.values) - 1, int(share * len(self.values)))]

    def histogram(self) -> tuple[list[float], list[int]]:
        """Edges at round numbers and the clips between them.

        A few values far out do not squeeze all others into one bin: they are in the first and the last, which then
        reach beyond their neighbours' width.
        """
        low, high = self.quantile(0.005), self.quantile(0.995)
        slack = 0.5 * (high - low)
        low = self.values[0] if self.values[0] >= low - slack else low
        high = self.values[-1] if self.values[-1] <= high + slack else high
        width = _round_width((high - low) / _BINS)
        if self.key in ("tokens", "letters"):
            width = max(1.0, width)
        first, last = math.floor(low / width), math.floor(high / width) + 1
        counts = [0] * (last - first)
        for value in self.values:
            counts[min(len(counts) - 1, max(0, math.floor(value / width) - first))] += 1
        edges = [round(step * width, 6) for step in range(first, last + 1)]
        edges[0], edges[-1] = min(edges[0], self.values[0]), max(edges[-1], self.values[-1])
        return edges, counts


def _round_width(width: float) -> float:
    """The next larger of 1, 2 and 5 times a power of ten."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= width * 0.999)


def distributions(entries: Sequence[Entry]) -> list[Distribution]:
    """Duration, tokens, speaking rate, level and silence, each of the clips that it is known of."""
    spoken = [
        entry.units / sound.spoken
        for entry in entries
        if (sound := entry.heard) is not None and sound.spoken > 0.2 and not is_silent(sound)
    ]
    measures = [
        (
            *("seconds", "duration", "s"),
            [entry.sound.seconds for entry in entries if entry.sound is not None and entry.sound.seconds],
        ),
        ("tokens", "tokens of the text", "", [float(entry.tokens) for entry in entries if entry.tokens]),
        ("letters", "letters of the text", "", [float(entry.units) for entry in entries]),
        ("letters_per_second", "letters a second of speech", "", spoken),
        ("level", "level of the loud parts", "dBFS", _of(entries, lambda sound: sound.loud)),
        ("silence", "silence at the ends", "s", _of(entries, lambda sound: sound.lead + sound.tail)),
    ]
    return [Distribution(key, label, unit, sorted(values)) for key, label, unit, values in measures if values]


def _of(entries: Sequence[Entry], measure: Callable[[Sound], float]) -> list[float]:
    return [measure(entry.heard) for entry in entries if entry.heard is not None]
