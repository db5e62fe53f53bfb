"""Where two transcripts of the same audio differ: words aligned, or characters where words have no spaces."""

from __future__ import annotations

import dataclasses
import difflib
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

from trainer.scoring.characters import WITHOUT_SPACES
from trainer.transcription.formats import segment_dict
from trainer.transcription.transcripts import Segment, Transcript

Kind = Literal["equal", "written", "replace", "delete", "insert"]
"""`written`: the same but for capitals and punctuation; `delete`: only the base heard it; `insert`: only the model."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A stretch of both transcripts."""

    kind: Kind
    base: str
    model: str

    def to_dict(self) -> dict[str, str]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


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
            "count": self.count,
            "changed": self.changed,
            "segments": [
                {
                    "start": round(row.start, 3),
                    "end": round(row.end, 3),
                    "base": segment_dict(row.base) if row.base else None,
                    "model": segment_dict(row.model) if row.model else None,
                    "differences": [difference.to_dict() for difference in row.differences],
                }
                for row in self.rows
            ],
        }


def compare(base: Transcript, model: Transcript) -> Comparison:
    """Align two transcripts of the same recording, segment by segment."""
    by_character = (model.language or base.language) in WITHOUT_SPACES
    rows, count, changed = [], 0, 0
    for start, end, first, second in _pair(base.segments, model.segments):
        pieces = [
            _pieces(" ".join(segment.text for segment in side), by_character) for side in (first, second)
        ]
        differences = _align(pieces[0], pieces[1], "" if by_character else " ")
        for kind, left, right in _operations(pieces[0], pieces[1]):
            units = max(right[1] - right[0], left[1] - left[0])
            count += units
            changed += units if kind not in ("equal", "written") else 0
        rows.append(Row(start, end, _merge(first), _merge(second), tuple(differences)))
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


def _pieces(text: str, by_character: bool) -> list[str]:
    """Words, or characters with the marks that belong to them."""
    if not by_character:
        return text.split()
    pieces: list[str] = []
    for char in text:
        if pieces and unicodedata.category(char).startswith("M"):
            pieces[-1] += char
        elif not char.isspace():
            pieces.append(char)
    return pieces


def _fold(piece: str) -> str:
    """Without capitals and punctuation; what is nothing else stays as it is."""
    kept = "".join(char for char in piece.casefold() if unicodedata.category(char)[0] not in "PS")
    return kept or piece


def _operations(base: list[str], model: list[str]) -> list[tuple[Kind, tuple[int, int], tuple[int, int]]]:
    """Aligned stretches as index ranges; equal ones are split by whether they are also written alike."""
    matcher = difflib.SequenceMatcher(
        None, [_fold(p) for p in base], [_fold(p) for p in model], autojunk=False
    )
    found: list[tuple[Kind, tuple[int, int], tuple[int, int]]] = []
    for kind, low, high, left, right in matcher.get_opcodes():
        if kind != "equal":
            found.append((kind, (low, high), (left, right)))
            continue
        for offset in range(high - low):
            here, there = low + offset, left + offset
            same: Kind = "equal" if base[here] == model[there] else "written"
            if found and found[-1][0] == same and found[-1][1][1] == here:
                found[-1] = (same, (found[-1][1][0], here + 1), (found[-1][2][0], there + 1))
            else:
                found.append((same, (here, here + 1), (there, there + 1)))
    return found


def _align(base: list[str], model: list[str], gap: str) -> list[Difference]:
    return [
        Difference(kind, gap.join(base[slice(*left)]), gap.join(model[slice(*right)]))
        for kind, left, right in _operations(base, model)
    ]
