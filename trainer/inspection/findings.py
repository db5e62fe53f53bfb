"""What an inspection says: each finding in plain words, with what to do and the clips that it is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from trainer.inspection.entries import Entry


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A clip that a finding is about."""

    split: str
    name: str
    """The file as the data set names it."""
    detail: str
    """What exactly was found."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something about the data that its owner should know."""

    kind: str
    """For programs: `silent`, `shared_text` ..."""
    level: Literal["warning", "note"]
    """A warning is most likely a fault; a note may be as it should be."""
    title: str
    """What was found, with its number, as a sentence without the full stop."""
    advice: str
    """What to do about it."""
    suspects: list[Suspect] = dataclasses.field(default_factory=list)

    @property
    def count(self) -> int:
        """Clips that it is about."""
        return len(self.suspects)


def suspect(entry: Entry, detail: str) -> Suspect:
    """A clip with what was found."""
    return Suspect(entry.split, entry.name, detail)


def names_of(findings: Iterable[Finding]) -> set[tuple[str, str]]:
    """Split and name of all clips that some findings are about."""
    return {(one.split, one.name) for finding in findings for one in finding.suspects}


def clips(number: int) -> str:
    """`1 clip`, `1,234 clips`."""
    return "1 clip" if number == 1 else f"{number:,} clips"


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few of some names: `a, b, c and 4 more`."""
    every = list(names)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")
