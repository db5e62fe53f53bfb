"""Utterances in groups: by the values of a column, by length."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = "clip length"
"""The name of the groups by seconds, which every data set has."""
_RANGES = 4
_UNKNOWN = "(empty)"


def group_by(values: Sequence[str]) -> dict[str, list[int]]:
    """Rows of each value of a column, the largest group first; those of empty cells come last, as `(empty)`."""
    groups: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    order = sorted(groups, key=lambda value: (not value, -len(groups[value]), value))
    return {value or _UNKNOWN: groups[value] for value in order}


def by_seconds(seconds: Sequence[float]) -> dict[str, list[int]]:
    """Rows in up to four ranges of seconds with about as many each, from the lowest on; equal ones stay together."""
    import numpy as np

    values = np.round(np.array(seconds), 2)
    edges = np.unique(np.quantile(values, np.arange(1, _RANGES) / _RANGES, method="lower"))
    groups = {}
    for at in range(_RANGES):
        rows = np.flatnonzero(np.searchsorted(edges, values) == at)
        if len(rows):
            low, high = values[rows].min(), values[rows].max()
            groups[f"{low:g} s" if low == high else f"{low:g} to {high:g} s"] = rows.tolist()
    return groups
