"""Reference and hypothesis side by side: what was heard, replaced, left out or added, and how often; by jiwer."""

from __future__ import annotations

import dataclasses
import itertools
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

    process = jiwer.process_words if level == "words" else jiwer.process_characters
    found = process(list(map(join_space, references)), list(map(join_space, hypotheses)))
    return [
        [
            Piece(
                chunk.type,
                tuple(said[chunk.ref_start_idx : chunk.ref_end_idx]),
                tuple(heard[chunk.hyp_start_idx : chunk.hyp_end_idx]),
            )
            for chunk in chunks
        ]
        for said, heard, chunks in zip(found.references, found.hypotheses, found.alignments, strict=True)
    ]


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
    """What became of the units of each utterance; of an empty reference there are insertions alone."""

    kinds: np.ndarray
    """int64 (4, utterances): hits, substitutions, deletions, insertions."""

    @classmethod
    def of_alignments(cls, alignments: Sequence[Sequence[Piece]]) -> ErrorCounts:
        """What `align` found, counted."""
        import numpy as np

        counts = np.zeros((len(_KINDS), len(alignments)), dtype=np.int64)
        for row, pieces in enumerate(alignments):
            for piece in pieces:
                counts[_KINDS[piece.kind], row] += max(len(piece.reference), len(piece.hypothesis))
        return cls(counts)

    @property
    def errors(self) -> np.ndarray:
        """Substitutions, deletions and insertions together."""
        total: np.ndarray = self.kinds[1:].sum(axis=0)
        return total

    @property
    def lengths(self) -> np.ndarray:
        """Words or characters of each reference: all but insertions."""
        total: np.ndarray = self.kinds[:3].sum(axis=0)
        return total

    def of(self, rows: Sequence[int]) -> ErrorCounts:
        return ErrorCounts(self.kinds[:, list(rows)])

    def totals(self) -> dict[str, int]:
        """Sums over all utterances: `hits`, `substitutions`, `deletions`, `insertions`, `reference`."""
        names = ("hits", "substitutions", "deletions", "insertions")
        return dict(zip(names, self.kinds.sum(axis=1).tolist(), strict=True)) | super().totals()


_KINDS: dict[Kind, int] = {"equal": 0, "substitute": 1, "delete": 2, "insert": 3}
"""Rows of `ErrorCounts.kinds`."""


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
    worst_of: int = 1
    """How many sources there are, where those clips alone count that are of the one that came out worst."""
    texts: Sequence[tuple[str, str, str]] = ()
    """Name, reference and transcript of each clip as they are written; empty where they were not kept."""

    @property
    def rate(self) -> float:
        """In percent; NaN without words."""
        words = float(self.words.sum())
        return 100.0 * float(self.word_errors.sum()) / words if words else math.nan

    def to_json(self) -> str:
        """The content of a file of them, see `parse_clips` of `tune/experiments/results`."""
        arrays = {"word_errors": self.word_errors.tolist(), "words": self.words.tolist()}
        return json.dumps(arrays | {"worst_of": self.worst_of, "texts": self.texts}) + "\n"


def pairs(pieces: Iterable[Piece]) -> Iterator[tuple[Kind, str, str]]:
    """Word by word: kind, reference and hypothesis, either of which may be empty."""
    for piece in pieces:
        for said, written in itertools.zip_longest(piece.reference, piece.hypothesis, fillvalue=""):
            yield piece.kind, said, written


def frequent_errors(alignments: Sequence[Sequence[Piece]]) -> list[tuple[Kind, str, str, int]]:
    """The 15 errors made most often: kind, word said, word written, times; those made once are left out."""
    counted: Counter[tuple[Kind, str, str]] = Counter(
        pair for pieces in alignments for pair in pairs(pieces) if pair[0] != "equal"
    )
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return [(*pair, times) for pair, times in ranked if times > 1][:15]
