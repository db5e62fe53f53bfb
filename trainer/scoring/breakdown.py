"""Utterances in groups: by the values of a column, by ranges of a number, by length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

LENGTH = "clip length"
"""The name of the groups by seconds, which every data set has."""
_MOST_NUMBERS = 8
"""Different numbers in a column from which on ranges say more than single values."""
_RANGES = 4
_UNKNOWN = "(empty)"


def group_by(values: Sequence[str]) -> dict[str, list[int]]:
    """Rows of each group of a column.

    Numbers that differ much are put into ranges with about as many utterances each; other values, and a few
    different numbers, are groups of their own, the largest first. Empty cells come last, as `(empty)`.

    Args:
        values: the column's cell of each row, empty for none.
    """
    numbers = _numbers(values)
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


def by_ranges(numbers: Mapping[int, float], form: str = "{:.3g}", unit: str = "") -> dict[str, list[int]]:
    """Rows in up to four ranges with about as many each, from the lowest on.

    Args:
        numbers: the number of each row that has one.
        form: how a number is written.
        unit: what is put behind the numbers of a range, as in `1.2 to 3.5 s`.
    """
    rows = sorted(numbers, key=lambda row: (numbers[row], row))
    groups: dict[str, list[int]] = {}
    begin = 0
    for part in range(1, _RANGES + 1):
        end = round(part * len(rows) / _RANGES)
        # Equal numbers stay together.
        while 0 < end < len(rows) and numbers[rows[end]] == numbers[rows[end - 1]]:
            end += 1
        if end > begin:
            low, high = numbers[rows[begin]], numbers[rows[end - 1]]
            ends = dict.fromkeys((form.format(low), form.format(high)))
            label = " to ".join(ends)
            groups.setdefault(f"{label}{unit}", []).extend(sorted(rows[begin:end]))
            begin = end
    return groups


def _numbers(values: Sequence[str]) -> dict[int, float] | None:
    """The column as numbers by row, where it holds nothing else and many different ones."""
    found: dict[int, float] = {}
    for row, value in enumerate(values):
        if value:
            try:
                found[row] = float(value)
            except ValueError:
                return None
    many = len(set(found.values())) > _MOST_NUMBERS
    return found if many and all(map(math.isfinite, found.values())) else None
