"""Word and character error rate: total errors / total reference length over the whole set, in percent.

WER is what the search decides on. Loss is no proxy for it: in published runs WER fell from 34.6 to 32.0 while
the evaluation loss rose from 0.31 to 0.45. `evaluate.load("wer")` downloads code at run time and so fails
offline; these metrics are classes of our own over jiwer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import evaluate
import jiwer

_CITATION = "Morris, Maier and Green: From WER and RIL to MER and WIL, Interspeech 2004"


class _ErrorRate(evaluate.Metric):
    """Corpus-level error rate in percent over texts; references that are empty are counted and left out."""

    rate: str
    align: Callable[..., Any]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(keep_in_memory=True, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation=_CITATION,
            inputs_description="predictions, references: texts of equal number",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        pairs = [(r, p) for r, p in zip(references, predictions, strict=True) if r.strip()]
        if not pairs:
            raise ValueError(
                f"{self.rate}: no reference with text among {len(references)}; nothing to measure"
            )
        out = type(self).align([r for r, _ in pairs], [p for _, p in pairs])
        errors = out.substitutions + out.deletions + out.insertions
        length = out.substitutions + out.deletions + out.hits
        return {
            self.rate: 100.0 * errors / length,
            "errors": errors,
            "length": length,
            "empty_references": len(references) - len(pairs),
        }


class WordErrorRate(_ErrorRate):
    """WER in percent, corpus-level; `compute` gives `wer`, `errors`, `length`, `empty_references`."""

    rate = "wer"
    align = staticmethod(jiwer.process_words)


class CharacterErrorRate(_ErrorRate):
    """CER in percent, corpus-level; `compute` gives `cer`, `errors`, `length`, `empty_references`."""

    rate = "cer"
    align = staticmethod(jiwer.process_characters)


def error_rates(
    predictions: Sequence[str], references: Sequence[str], normalize: Callable[[str], str]
) -> dict[str, float]:
    """WER and CER in percent, of normalised and of orthographic text.

    Returns:
        `wer`, `cer` (normalised), `wer_orthographic`, `cer_orthographic`, `empty_references` (of the normalised).

    Raises:
        ValueError: no reference has any text, or a rate is not a finite number.
    """
    normal_predictions = [normalize(text) for text in predictions]
    normal_references = [normalize(text) for text in references]
    word, character = WordErrorRate(), CharacterErrorRate()
    normal = word.compute(predictions=normal_predictions, references=normal_references)
    rates = {
        "wer": normal["wer"],
        "cer": character.compute(predictions=normal_predictions, references=normal_references)["cer"],
        "wer_orthographic": word.compute(predictions=predictions, references=references)["wer"],
        "cer_orthographic": character.compute(predictions=predictions, references=references)["cer"],
        "empty_references": normal["empty_references"],
    }
    broken = {name: rate for name, rate in rates.items() if not math.isfinite(rate)}
    if broken:
        raise ValueError(f"error rates must be finite numbers, got {broken}")
    return rates
