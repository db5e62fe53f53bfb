"""How good a translation is: chrF, as the error 100 - chrF that is lower for a better one, and BLEU beside it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.scoring.alignment import Counts

if TYPE_CHECKING:
    import numpy as np

TRANSLATE = "translate"
_ORDER, _BETA = 6, 2.0
"""Of sacrebleu's default, chrF2: n-grams of 1 to 6 characters, recall counts twice."""


@dataclasses.dataclass(frozen=True)
class ChrfCounts(Counts):
    """What each translation adds to 100 - chrF of all.

    chrF is no ratio of sums, but a smooth function of sums of n-gram counts. So each translation's share of the error
    is that of its length, and how far its counts would move chrF beside it (its influence, by the derivative): they
    add up to the exact error, and have its variance as drawing the translations anew would show it.
    """

    statistics: np.ndarray
    """(utterances, 6, 3): n-grams of each length in the translation, in the reference, and in both."""

    @property
    def lengths(self) -> np.ndarray:
        """Characters of each reference without spaces; 0 where it is empty."""
        found: np.ndarray = self.statistics[:, 0, 1]
        return found

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """What each adds."""
        made, wanted, both = self.statistics.sum(axis=0).T
        known = (made > 0) & (wanted > 0)
        made, wanted, both, counts = made[known], wanted[known], both[known], self.statistics[:, known]
        if not both.any():
            return self.lengths.copy()
        precision, recall = float((both / made).mean()), float((both / wanted).mean())
        below = _BETA**2 * precision + recall
        score = (1 + _BETA**2) * precision * recall / below
        moves_precision = (counts[:, :, 2] / made - both * counts[:, :, 0] / made**2).mean(axis=1)
        moves_recall = (counts[:, :, 2] / wanted - both * counts[:, :, 1] / wanted**2).mean(axis=1)
        moves = recall**2 * moves_precision + (_BETA * precision) ** 2 * moves_recall
        influence = (1 + _BETA**2) / below**2 * moves
        found: np.ndarray = (1 - score) * self.lengths - influence * float(self.lengths.sum())
        return found

    def of(self, rows: Sequence[int]) -> ChrfCounts:
        return ChrfCounts(self.statistics[list(rows)])

    def worst_first(self) -> list[int]:
        """Those with errors, the worst first by their own chrF."""
        errors = [self.of([row]).percent if length else 0.0 for row, length in enumerate(self.lengths)]
        return sorted((row for row in range(len(errors)) if errors[row]), key=lambda row: (-errors[row], row))


def count_chrf(references: Sequence[str], translations: Sequence[str]) -> ChrfCounts:
    """chrF's statistics of each, of sacrebleu's n-grams; references without text are in no rate.

    Args:
        references: what the translations should be, as written.
        translations: as many.
    """
    import numpy as np
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    statistics = np.zeros((len(references), _ORDER, 3))
    for row, texts in enumerate(zip(translations, references, strict=True)):
        for order, (made, wanted) in enumerate(
            zip(*(extract_all_char_ngrams(text, _ORDER) for text in texts), strict=True)
        ):
            if wanted:  # in an empty reference, and in one shorter than the n-gram, nothing counts
                statistics[row, order] = made.total(), wanted.total(), (made & wanted).total()
    return ChrfCounts(statistics)


def bleu(references: Sequence[str], translations: Sequence[str]) -> float:
    """sacrebleu's corpus BLEU with its default tokenizer, from 0 to 100; of references that have text."""
    from sacrebleu.metrics.bleu import BLEU

    pairs = [pair for pair in zip(references, translations, strict=True) if pair[0].strip()]
    if not pairs:
        return 0.0
    said, written = map(list, zip(*pairs, strict=True))
    return float(BLEU().corpus_score(written, [said]).score)
