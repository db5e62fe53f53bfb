"""Where two transcripts of the same audio differ: words aligned, or characters where words have no spaces."""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from trainer.languages import WITHOUT_SPACES
from trainer.scoring.alignment import align, pairs
from trainer.scoring.language_rules import split_characters
from trainer.transcription.transcripts import Segment, Transcript, segment_dict

Kind = Literal["equal", "written", "replace", "delete", "insert"]
"""`written`: the same but for capitals and punctuation; `delete`: only the base heard it; `insert`: only the model."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A stretch of both transcripts."""

    kind: Kind
    base: str
    model: str


@dataclasses.dataclass(frozen=True)
class Row:
    """What both heard in one segment."""

    start: float
    end: float
    base: Segment | None
    model: Segment | None
    differences: tuple[Difference, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two transcripts of one recording, side by side."""

    base: Transcript
    model: Transcript
    rows: tuple[Row, ...]
    unit: Literal["words", "characters"]
    count: int
    """Units of the longer transcript, segment by segment."""
    changed: int
    """Units of it that differ; what differs only in capitals or punctuation does not count."""

    def to_dict(self, base: str, model: str) -> dict[str, Any]:
        """Plain values for JSON, with the models' names."""
        return {
            "file": str(self.model.recording.path),
            "seconds": round(self.model.seconds, 3),
            "models": {"base": base, "model": model},
            "language": self.model.language,
            "text": {"base": self.base.text, "model": self.model.text},
            "unit": self.unit,
            **({"empty": self.model.empty} if self.model.empty else {}),
            "count": self.count,
            "changed": self.changed,
            "segments": [
                {
                    "start": round(row.start, 3),
                    "end": round(row.end, 3),
                    "base": segment_dict(row.base) if row.base else None,
                    "model": segment_dict(row.model) if row.model else None,
                    "differences": [dataclasses.asdict(difference) for difference in row.differences],
                }
                for row in self.rows
            ],
        }


def compare(base: Transcript, model: Transcript) -> Comparison:
    """Align two transcripts of the same recording, segment by segment."""
    by_character = (model.language or base.language) in WITHOUT_SPACES
    gap = "" if by_character else " "
    rows, count, changed = [], 0, 0
    for start, end, *sides in _pair(base.segments, model.segments):
        texts = [" ".join(segment.text for segment in side) for side in sides]
        left, right = ((split_characters(text) if by_character else text).split() for text in texts)
        differences = []
        for kind, heard, written in _align(left, right):
            differences.append(Difference(kind, gap.join(heard), gap.join(written)))
            units = max(len(heard), len(written))
            count += units
            changed += units if kind not in ("equal", "written") else 0
        rows.append(Row(start, end, _merge(sides[0]), _merge(sides[1]), tuple(differences)))
    return Comparison(base, model, tuple(rows), "characters" if by_character else "words", count, changed)


def _pair(
    base: Sequence[Segment], model: Sequence[Segment]
) -> list[tuple[float, float, list[Segment], list[Segment]]]:
    """Segments of both that overlap in time, together; one of the two may have halved one that the other has whole."""
    marked = [(segment, 0) for segment in base] + [(segment, 1) for segment in model]
    groups: list[tuple[float, float, list[Segment], list[Segment]]] = []
    for segment, side in sorted(marked, key=lambda pair: (pair[0].start, pair[0].end)):
        if groups and segment.start < groups[-1][1]:
            start, end, *sides = groups.pop()
            end = max(end, segment.end)
        else:
            start, end, sides = segment.start, segment.end, [[], []]
        sides[side].append(segment)
        groups.append((start, end, sides[0], sides[1]))
    return groups


def _merge(segments: list[Segment]) -> Segment | None:
    if not segments:
        return None
    doubts = [segment.doubt for segment in segments if segment.doubt]
    text = " ".join(segment.text for segment in segments)
    return Segment(segments[0].start, segments[-1].end, text, doubts[0] if doubts else None)


def _fold(piece: str) -> str:
    """Without capitals and punctuation; what is nothing else stays as it is."""
    kept = "".join(char for char in piece.casefold() if unicodedata.category(char)[0] not in "PS")
    return kept or piece


def _align(base: list[str], model: list[str]) -> Iterator[tuple[Kind, list[str], list[str]]]:
    """Stretches of one kind with the pieces of both; what differs side by side is one replacement."""
    left, right = iter(base), iter(model)
    units: list[tuple[Kind, str, str]] = []
    [pieces] = align([" ".join(map(_fold, base))], [" ".join(map(_fold, model))])
    for kind, said, written in pairs(pieces):
        first, second = next(left) if said else "", next(right) if written else ""
        alike: Kind = "equal" if first == second else "written"
        units.append((alike if kind == "equal" else "replace", first, second))
    for shared, group in itertools.groupby(units, key=lambda unit: unit[0]):
        members = list(group)
        ours, theirs = ([unit[side] for unit in members if unit[side]] for side in (1, 2))
        yield (shared if ours and theirs else "delete" if ours else "insert"), ours, theirs
