"""How good a translation is: chrF, as the error 100 - chrF that is lower for a better one, and BLEU beside it.

Inside, the rate that decides is called `wer` whatever it is, as it takes the same way; what people and files are told
has its true name, for which `words` and `renamed` are here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

TRANSLATE = "translate"
CHRF_ERROR = "chrf_error"
"""Key of 100 - chrF in logs, results and stores."""
_ORDER, _BETA = 6, 2.0
"""Of sacrebleu's default, chrF2: n-grams of 1 to 6 characters, recall counts twice."""


@dataclasses.dataclass(frozen=True)
class ChrfCounts:
    """What each translation adds to the error of all, in the form of `ErrorCounts`; arrays of shape (utterances,).

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

    @property
    def percent(self) -> float:
        """100 - chrF of all.

        Raises:
            ValueError: no reference has any text.
        """
        length = float(self.lengths.sum())
        if not length:
            raise ValueError(f"no reference with text among {len(self.lengths)}; nothing to measure")
        return 100.0 * float(self.errors.sum()) / length

    def of(self, rows: Sequence[int]) -> ChrfCounts:
        """Those of some."""
        return ChrfCounts(self.statistics[list(rows)])

    def each(self) -> list[float]:
        """100 - chrF of each by itself; 0 where the reference is empty."""
        return [self.of([row]).percent if length else 0.0 for row, length in enumerate(self.lengths)]

    def totals(self) -> dict[str, int]:
        """The references' length as `reference`."""
        return {"reference": int(self.lengths.sum())}

    def worst_first(self) -> list[int]:
        """Those with errors, the worst first by their own chrF."""
        errors = self.each()
        return sorted((row for row in range(len(errors)) if errors[row]), key=lambda row: (-errors[row], row))


def count_chrf(references: Sequence[str], translations: Sequence[str]) -> ChrfCounts:
    """chrF's statistics of each, by sacrebleu; references without text are in no rate.

    Args:
        references: what the translations should be, as written.
        translations: as many.
    """
    import numpy as np
    from sacrebleu.metrics.chrf import CHRF

    found = CHRF()._extract_corpus_statistics(list(translations), [list(references)])
    statistics = np.asarray(found, float).reshape(-1, _ORDER, 3)
    statistics[[not text.strip() for text in references]] = 0.0
    return ChrfCounts(statistics)


def bleu(references: Sequence[str], translations: Sequence[str]) -> float:
    """sacrebleu's corpus BLEU with its default tokenizer, from 0 to 100; of references that have text."""
    from sacrebleu.metrics.bleu import BLEU

    pairs = [pair for pair in zip(references, translations, strict=True) if pair[0].strip()]
    if not pairs:
        return 0.0
    said, written = map(list, zip(*pairs, strict=True))
    return float(BLEU().corpus_score(written, [said]).score)


def words(text: str, task: str) -> str:
    """Text about the rate that decides, with its true name for the task."""
    return text if task != TRANSLATE else re.sub(r"\bWERs?\b", "chrF error", text)


def true_name(key: str, task: str) -> str:
    """A key such as `best_wer` with the true name of the rate for the task."""
    return key if task != TRANSLATE else re.sub(r"(^|_)wer(?=$|s$|[_/])", rf"\1{CHRF_ERROR}", key)


def renamed(content: Any, task: str) -> Any:
    """JSON content with true names for keys; CER, which translations do not have, goes."""
    if task != TRANSLATE:
        return content
    if isinstance(content, Mapping):
        kept = {key: value for key, value in content.items() if not re.search(r"(^|_)cer($|_)", str(key))}
        return {true_name(str(key), task): renamed(value, task) for key, value in kept.items()}
    if isinstance(content, list | tuple):
        return [renamed(each, task) for each in content]
    return content


def told(rates: Mapping[str, Any]) -> dict[str, Any]:
    """Rates as the log has them: the one that decides on translations, which have a chrF, by its true name."""
    return {CHRF_ERROR if key == "wer" and "chrf" in rates else key: rate for key, rate in rates.items()}


def judged(rates: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of the log as they are used: what decides is `wer`."""
    return {"wer" if key == CHRF_ERROR else key: rate for key, rate in rates.items()}


def describe_rates(wer: float, cer: float | None, bleu: float | None = None) -> str:
    """`WER 9.19 %, CER 3.02 %`; of translations, which have a BLEU, `chrF error 43.20 (chrF 56.80), BLEU 31.00`."""
    if bleu is not None:
        return f"chrF error {wer:.2f} % (chrF {100 - wer:.2f}), BLEU {bleu:.2f}"
    return f"WER {wer:.2f} %" + ("" if cer is None else f", CER {cer:.2f} %")
