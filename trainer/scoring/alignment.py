"""Reference and hypothesis side by side: what was heard, replaced, left out or added, and how often; by jiwer."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self

from trainer.data.text import join_space

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["equal", "substitute", "delete", "insert"]
Level = Literal["words", "characters"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of one kind; of a substitution both sides have as many words."""

    kind: Kind
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


def align(references: Sequence[str], hypotheses: Sequence[str], level: Level = "words") -> list[list[Piece]]:
    """The alignment of each utterance with the fewest errors (Levenshtein), from left to right.

    Args:
        references: texts whose units (words, or characters of a language without spaces) are apart by white space of
            any kind, which is joined on both sides as in what the model is taught; any may be empty.
        hypotheses: as many.
        level: `characters` aligns code points, spaces included, as jiwer's CER does.
    """
    import jiwer

    references, hypotheses = list(map(join_space, references)), list(map(join_space, hypotheses))
    found: list[list[Piece]] = []
    rows = []
    for row, (reference, hypothesis) in enumerate(zip(references, hypotheses, strict=True)):
        added = tuple(hypothesis.split() if level == "words" else hypothesis)
        found.append([Piece("insert", (), added)] if added else [])
        if reference:
            rows.append(row)
    if rows:  # jiwer takes no empty references
        process = jiwer.process_words if level == "words" else jiwer.process_characters
        out = process([references[row] for row in rows], [hypotheses[row] for row in rows])
        for row, said, heard, chunks in zip(
            rows, out.references, out.hypotheses, out.alignments, strict=True
        ):
            found[row] = [
                Piece(
                    chunk.type,
                    tuple(said[chunk.ref_start_idx : chunk.ref_end_idx]),
                    tuple(heard[chunk.hyp_start_idx : chunk.hyp_end_idx]),
                )
                for chunk in chunks
            ]
    return found


class Counts(Protocol):
    """What each utterance adds to a rate that is a ratio of sums."""

    @property
    def errors(self) -> np.ndarray:
        """Shape (utterances,)."""

    @property
    def lengths(self) -> np.ndarray:
        """What the reference holds, of shape (utterances,); 0 where it is empty."""

    @property
    def percent(self) -> float:
        """The corpus-level rate: total errors / total reference length, in percent.

        Raises:
            ValueError: no reference has any text.
        """
        length = float(self.lengths.sum())
        if not length:
            raise ValueError(f"no reference with text among {len(self.lengths)}; nothing to measure")
        return 100.0 * float(self.errors.sum()) / length

    def of(self, rows: Sequence[int]) -> Self:
        """Those of some utterances."""

    def totals(self) -> dict[str, int]:
        """Sums over all utterances; the references' length as `reference`."""
        return {"reference": int(self.lengths.sum())}

    def worst_first(self) -> list[int]:
        """Utterances with errors, those with most errors first; of equal ones the shorter, where more is wrong."""
        errors, lengths = self.errors, self.lengths
        rows = [row for row in range(len(errors)) if errors[row]]
        return sorted(rows, key=lambda row: (-errors[row], lengths[row], row))


@dataclasses.dataclass(frozen=True)
class ErrorCounts(Counts):
    """Counts of each utterance, int64 arrays of shape (utterances,); insertions where the reference is empty."""

    hits: np.ndarray
    substitutions: np.ndarray
    deletions: np.ndarray
    insertions: np.ndarray

    @classmethod
    def of_alignments(cls, alignments: Sequence[Sequence[Piece]]) -> ErrorCounts:
        """What `align` found, counted."""
        import numpy as np

        counts = np.zeros((len(_KINDS), len(alignments)), dtype=np.int64)
        for row, pieces in enumerate(alignments):
            for piece in pieces:
                length = max(len(piece.reference), len(piece.hypothesis))
                counts[_KINDS.index(piece.kind), row] += length
        return cls(*counts)

    @property
    def errors(self) -> np.ndarray:
        """Substitutions, deletions and insertions together."""
        total: np.ndarray = self.substitutions + self.deletions + self.insertions
        return total

    @property
    def lengths(self) -> np.ndarray:
        """Words or characters of each reference."""
        total: np.ndarray = self.hits + self.substitutions + self.deletions
        return total

    def of(self, rows: Sequence[int]) -> ErrorCounts:
        """The counts of some utterances."""
        return ErrorCounts(**{name: values[list(rows)] for name, values in vars(self).items()})

    def totals(self) -> dict[str, int]:
        """Sums over all utterances, and the references' length as `reference`."""
        return {name: int(values.sum()) for name, values in vars(self).items()} | super().totals()


_KINDS: tuple[Kind, ...] = ("equal", "substitute", "delete", "insert")
"""In the order of the fields of `ErrorCounts`."""


def count_errors(references: Sequence[str], hypotheses: Sequence[str], level: Level = "words") -> ErrorCounts:
    """Align as `align` does, and count."""
    return ErrorCounts.of_alignments(align(references, hypotheses, level))


@dataclasses.dataclass(frozen=True)
class ClipErrors:
    """Errors and reference words (or characters) of each clip, of shape (clips,).

    Of several sources both count by a factor where the rate that decides is not that of all clips (`objectives`).
    Of translations what each adds to 100 - chrF (see `translation.ChrfCounts`).
    """

    word_errors: np.ndarray
    words: np.ndarray

    @property
    def rate(self) -> float:
        """In percent; NaN without words."""
        words = float(self.words.sum())
        return 100.0 * float(self.word_errors.sum()) / words if words else math.nan

    def to_json(self) -> str:
        """The content of a file of them, see `parse_clips` of `tune/experiments/settings_file`."""
        return json.dumps({name: values.tolist() for name, values in vars(self).items()}) + "\n"


def pairs(pieces: Iterable[Piece]) -> Iterator[tuple[Kind, str, str]]:
    """Word by word: kind, reference and hypothesis, either of which may be empty."""
    for piece in pieces:
        length = max(len(piece.reference), len(piece.hypothesis))
        for at in range(length):
            said = piece.reference[at] if piece.reference else ""
            written = piece.hypothesis[at] if piece.hypothesis else ""
            yield piece.kind, said, written


def frequent_errors(
    alignments: Sequence[Sequence[Piece]], most: int = 15
) -> list[tuple[Kind, str, str, int]]:
    """The errors made most often: kind, word said, word written, times; those made once are left out."""
    counted: Counter[tuple[Kind, str, str]] = Counter(
        pair for pieces in alignments for pair in pairs(pieces) if pair[0] != "equal"
    )
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return [(*pair, times) for pair, times in ranked if times > 1][:most]
