"""Signs that a model writes what nobody said: runs of insertions, text over and over, text for silence.

Each has a threshold of its own and none is a proof: the utterances are named so that one can listen to them. What
the reference does as well (a chorus, a list of numbers) is no sign.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

from trainer.scoring.alignment import Piece
from trainer.scoring.normalizers import Unit

INSERTED_WORDS = 5
"""Words in a row that nobody said; of characters three times as many, for they are shorter."""
COMPRESSION_RATIO = 2.4
"""Whisper's own threshold, above which its decoding falls back to another temperature (openai/whisper)."""
_CHARACTERS_A_WORD = 3


@dataclasses.dataclass(frozen=True)
class Sign:
    """One utterance that shows one sign."""

    row: int
    kind: str
    """`insertions`, `compression` or `empty reference`."""
    detail: str


SIGNS = {
    "insertions": "a run of words that nobody said",
    "compression": f"text over and over: it compresses more than {COMPRESSION_RATIO:g} times",
    "empty reference": "text where the reference is empty",
}
"""The kinds of signs, in words."""


def find_signs(
    references: Sequence[str], hypotheses: Sequence[str], alignments: Sequence[Sequence[Piece]], unit: Unit
) -> list[Sign]:
    """All signs of all utterances, in their order, of normalised texts in such units and how `align` aligns them."""
    found: list[Sign] = []
    for row, (reference, hypothesis, pieces) in enumerate(
        zip(references, hypotheses, alignments, strict=True)
    ):
        if not reference.strip():
            if hypothesis.strip():
                found.append(Sign(row, "empty reference", _shortened(_plain(hypothesis, unit))))
            continue
        run = longest_insertion(pieces)
        if len(run) >= INSERTED_WORDS * (_CHARACTERS_A_WORD if unit == "characters" else 1):
            found.append(
                Sign(row, "insertions", f"{len(run)} {unit}: {_shortened(_plain(' '.join(run), unit))}")
            )
        ratio = compression_ratio(_plain(hypothesis, unit))
        if ratio > max(COMPRESSION_RATIO, compression_ratio(_plain(reference, unit))):
            found.append(Sign(row, "compression", f"{ratio:.1f} times"))
    return found


def longest_insertion(pieces: Sequence[Piece]) -> tuple[str, ...]:
    """The longest run of inserted words without a word that was said in between.

    A substitution beside an insertion is part of the run: which of the words replaced the one that was said is
    the alignment's choice. Its words do not count.
    """
    best: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    for piece in pieces:
        if piece.kind in ("equal", "delete"):
            run = ()
        elif piece.kind == "insert":
            run += piece.hypothesis
            best = max(best, run, key=len)
    return best


def compression_ratio(text: str) -> float:
    """Bytes of a text / bytes of it compressed by zlib, as openai/whisper has it; 0 for an empty text."""
    content = text.encode()
    return len(content) / len(zlib.compress(content)) if content else 0.0


def _plain(text: str, unit: Unit) -> str:
    return text.replace(" ", "") if unit == "characters" else text


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
