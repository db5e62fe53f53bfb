"""One piece of advice."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Advice:
    """What was seen, and what follows."""

    seen: str
    """One sentence that can stand alone."""
    follows: str = ""
    """What to do about it."""


def counted(number: int, noun: str) -> str:
    """`1 trial`, `3 trials`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
