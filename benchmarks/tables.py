"""How the benchmarks show what they measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def markdown(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are formatted by the caller."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def spread(values: Iterable[float]) -> str:
    """Median and range of a few repeats."""
    every = list(values)
    return f"{statistics.median(every):.2f} ({min(every):.2f} to {max(every):.2f})"
