"""One piece of advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

FEW = 8
"""Trials that compare, below which a search tells little of its space."""


@dataclasses.dataclass(frozen=True)
class Advice:
    """What was seen, and what follows."""

    seen: str
    """One sentence that can stand alone."""
    follows: str = ""
    """What to do about it, or what it means."""
    change: bool = True
    """Whether something should be done otherwise next time; else it is good to know."""


def counted(number: int, noun: str) -> str:
    """`1 trial`, `3 trials`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`001, 002 and 003`; long lists are cut."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
