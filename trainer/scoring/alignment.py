"""Reference and hypothesis side by side: which words were heard, which replaced, left out or added."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from trainer.scoring.counts import ErrorCounts

Kind = Literal["equal", "substitute", "delete", "insert"]


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of one kind; of a substitution both sides have as many words."""

    kind: Kind
    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]


def align(reference: str, hypothesis: str) -> list[Piece]:
    """The alignment with the fewest errors, by jiwer, from left to right.

    Args:
        reference: text whose units (words, or characters of a language without spaces) are apart by spaces;
            may be empty.
        hypothesis: likewise.
    """
    import jiwer

    spoken, heard = tuple(reference.split()), tuple(hypothesis.split())
    if not spoken:
        return [Piece("insert", (), heard)] if heard else []
    if not heard:
        return [Piece("delete", spoken, ())]
    [chunks] = jiwer.process_words(" ".join(spoken), " ".join(heard)).alignments
    return [
        Piece(
            chunk.type,
            spoken[chunk.ref_start_idx : chunk.ref_end_idx],
            heard[chunk.hyp_start_idx : chunk.hyp_end_idx],
        )
        for chunk in chunks
    ]


def pairs(pieces: Iterable[Piece]) -> Iterator[tuple[Kind, str, str]]:
    """Word by word: kind, reference and hypothesis, either of which may be empty."""
    for piece in pieces:
        length = max(len(piece.reference), len(piece.hypothesis))
        for at in range(length):
            said = piece.reference[at] if piece.reference else ""
            written = piece.hypothesis[at] if piece.hypothesis else ""
            yield piece.kind, said, written


def worst_first(counts: ErrorCounts) -> list[int]:
    """Utterances with errors, those with most errors first; of equal ones the shorter, where more is wrong."""
    errors, lengths = counts.errors, counts.lengths
    rows = [row for row in range(len(errors)) if errors[row]]
    return sorted(rows, key=lambda row: (-errors[row], lengths[row], row))


def frequent_errors(
    alignments: Sequence[Sequence[Piece]], most: int = 15
) -> list[tuple[Kind, str, str, int]]:
    """The errors made most often: kind, word said, word written, times; those made once are left out."""
    counted: Counter[tuple[Kind, str, str]] = Counter(
        pair for pieces in alignments for pair in pairs(pieces) if pair[0] != "equal"
    )
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return [(*pair, times) for pair, times in ranked if times > 1][:most]
