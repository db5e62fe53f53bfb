"""How the benchmarks show what they measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence


def markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """A table with a line for each row, below the names that the first one has."""
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Iterable[float]) -> str:
    """Median and range of a few repeats."""
    every = list(values)
    return f"{statistics.median(every):.2f} ({min(every):.2f} to {max(every):.2f})"
