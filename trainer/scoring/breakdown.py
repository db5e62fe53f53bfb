"""Utterances in groups: by the values of a column, by ranges of a number, by length."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from trainer.data.columns import SPEAKER_NAMES

LENGTH = "clip length"
"""The name of the groups by seconds, which every data set has."""
_MOST_NUMBERS = 8
"""Different numbers in a column from which on ranges say more than single values."""
_RANGES = 4
_UNKNOWN = "(empty)"
_NUMBER = re.compile(r"[-+]?(?!0\d)(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""What counts as a number: not `007` and not `12_34`, which are names made of digits."""


def group_by(values: Sequence[str], name: str = "") -> dict[str, list[int]]:
    """Rows of each group of a column.

    Measures, such as a signal-to-noise ratio, are put into ranges with about as many utterances each; other values
    are groups of their own, the largest first. Empty cells come last, as `(empty)`.

    Args:
        values: the column's cell of each row, empty for none.
        name: the column's; numbers of speakers and other ids are no measures.
    """
    numbers = _measure(values, name)
    if numbers is not None:
        groups = by_ranges(numbers)
    else:
        groups = {}
        for row, value in enumerate(values):
            if value:
                groups.setdefault(value, []).append(row)
        order = sorted(groups, key=lambda value: (-len(groups[value]), value))
        groups = {value: groups[value] for value in order}
    empty = [row for row, value in enumerate(values) if not value]
    return groups | ({_UNKNOWN: empty} if empty else {})


def by_ranges(numbers: Mapping[int, float], unit: str = "") -> dict[str, list[int]]:
    """Rows in up to four ranges with about as many each, from the lowest on; equal numbers stay together.

    Args:
        numbers: the number of each row that has one.
        unit: what is put behind the numbers of a range, as in `1.2 to 3.5 s`.
    """
    import numpy as np

    if not numbers:
        return {}
    rows, values = np.array([*numbers.keys()]), np.array([*numbers.values()])
    edges = np.unique(np.quantile(values, np.arange(1, _RANGES) / _RANGES, method="lower"))
    parts = [part for at in range(_RANGES) if (part := np.searchsorted(edges, values) == at).any()]
    labels = _labels([(values[part].min(), values[part].max()) for part in parts])
    return {f"{label}{unit}": sorted(rows[part].tolist()) for label, part in zip(labels, parts, strict=True)}


def _labels(ends: Sequence[tuple[float, float]]) -> list[str]:
    """Ranges in words: with three digits of the largest number, or as many as tell numbers and ranges apart."""
    largest = max(abs(end) for pair in ends for end in pair)
    whole = all(end.is_integer() for pair in ends for end in pair)
    for digits in itertools.count(0 if whole else max(0, 2 - math.floor(math.log10(largest)))):
        written = [(f"{low:z.{digits}f}", f"{high:z.{digits}f}") for low, high in ends]
        apart = all(
            (low == high) == (first == last) for (low, high), (first, last) in zip(ends, written, strict=True)
        )
        if apart and len(set(written)) == len(ends):
            break
    return [first if first == last else f"{first} to {last}" for first, last in written]


def _measure(values: Sequence[str], name: str) -> dict[int, float] | None:
    """The column as numbers by row, where they are many and measure something.

    Fractions do. Whole numbers may also be years, dates or codes, which come again and again; a measure in whole
    numbers, such as a size in bytes, is another one in most rows.
    """
    if name.lower() in SPEAKER_NAMES or name.lower().endswith("id"):
        return None
    if not all(_NUMBER.fullmatch(value) for value in values if value):
        return None
    found = {row: float(value) for row, value in enumerate(values) if value}
    different = set(found.values())
    if len(different) <= _MOST_NUMBERS or not all(map(math.isfinite, different)):
        return None
    fractions = not all(number.is_integer() for number in different)
    return found if fractions or 2 * len(different) > len(found) else None
