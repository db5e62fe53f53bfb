"""Errors of every utterance: substitutions, deletions and insertions of words or characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Level = Literal["words", "characters"]


@dataclasses.dataclass(frozen=True)
class ErrorCounts:
    """Counts of each utterance, int64 arrays of shape (utterances,); all 0 where the reference is empty."""

    hits: np.ndarray
    substitutions: np.ndarray
    deletions: np.ndarray
    insertions: np.ndarray

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

    @property
    def percent(self) -> float:
        """The corpus-level rate: total errors / total reference length, in percent.

        Raises:
            ValueError: no reference has any text.
        """
        length = int(self.lengths.sum())
        if not length:
            raise ValueError(f"no reference with text among {len(self.hits)}; nothing to measure")
        return 100.0 * float(self.errors.sum()) / length

    def of(self, rows: Sequence[int]) -> ErrorCounts:
        """The counts of some utterances."""
        return ErrorCounts(**{name: getattr(self, name)[list(rows)] for name in _NAMES})

    def totals(self) -> dict[str, int]:
        """Sums over all utterances, and the references' length as `reference`."""
        found = {name: int(getattr(self, name).sum()) for name in _NAMES}
        return {**found, "reference": int(self.lengths.sum())}


_NAMES = ("hits", "substitutions", "deletions", "insertions")


def count_errors(references: Sequence[str], hypotheses: Sequence[str], level: Level = "words") -> ErrorCounts:
    """Align each hypothesis with its reference (Levenshtein, by jiwer) and count.

    Args:
        references: texts whose units are apart by spaces, normalised if that is wanted.
        hypotheses: as many.
        level: `characters` counts each code point, spaces included, as jiwer's CER does.
    """
    import jiwer
    import numpy as np

    align = jiwer.process_words if level == "words" else jiwer.process_characters
    rows = [row for row, reference in enumerate(references) if reference.strip()]
    counts = {name: np.zeros(len(references), dtype=np.int64) for name in _NAMES}
    if rows:
        out = align([references[row] for row in rows], [hypotheses[row] for row in rows])
        for row, chunks in zip(rows, out.alignments, strict=True):
            for chunk in chunks:
                name, length = _kind_and_length(chunk)
                counts[name][row] += length
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses")
    return ErrorCounts(**counts)


_KINDS = {"equal": "hits", "substitute": "substitutions", "delete": "deletions", "insert": "insertions"}


def _kind_and_length(chunk: Any) -> tuple[str, int]:
    length = max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return _KINDS[chunk.type], length
