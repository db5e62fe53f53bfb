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

from trainer.scoring.characters import split_characters
from trainer.scoring.normalizers import Unit
from trainer.training.utterances import UtteranceErrors

_CITATION = "Morris, Maier and Green: From WER and RIL to MER and WIL, Interspeech 2004"


class _ErrorRate(evaluate.Metric):
    """Corpus-level error rate in percent over texts; references that are empty are counted and left out."""

    rate: str
    align: Callable[..., Any]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(keep_in_memory=True, **kwargs)
        self.by_text: list[tuple[int, int]] = []
        """Errors and reference length of every text of the last `compute`."""

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
        counted = iter(_counts(out))
        self.by_text = [next(counted) if r.strip() else (0, 0) for r in references]
        return {
            self.rate: 100.0 * errors / length,
            "errors": errors,
            "length": length,
            "empty_references": len(references) - len(pairs),
        }


def _counts(out: Any) -> list[tuple[int, int]]:
    """Errors and reference length of each pair of texts of an alignment."""
    return [
        (
            sum(
                max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
                for chunk in chunks
                if chunk.type != "equal"
            ),
            len(reference),
        )
        for chunks, reference in zip(out.alignments, out.references, strict=True)
    ]


class WordErrorRate(_ErrorRate):
    """WER in percent, corpus-level; `compute` gives `wer`, `errors`, `length`, `empty_references`."""

    rate = "wer"
    align = staticmethod(jiwer.process_words)


class CharacterErrorRate(_ErrorRate):
    """CER in percent, corpus-level; `compute` gives `cer`, `errors`, `length`, `empty_references`."""

    rate = "cer"
    align = staticmethod(jiwer.process_characters)


def rates_and_utterances(
    predictions: Sequence[str],
    references: Sequence[str],
    normalize: Callable[[str], str],
    unit: Unit = "words",
) -> tuple[dict[str, float], UtteranceErrors]:
    """WER and CER in percent, of normalised and of orthographic text, and what each text adds to the WER.

    Args:
        predictions: texts of the model.
        references: what was said.
        normalize: gives texts whose units are apart by spaces.
        unit: what they are. Of `characters` the WER is the CER, so that a language without spaces is measured by
            what it has; spaces count in neither.

    Returns:
        `wer`, `cer` (normalised), `wer_orthographic`, `cer_orthographic`, `empty_references` (of the
        normalised); and the counts of the alignment that `wer` comes from: it is exactly
        `100 * sum(word_errors) / sum(words)`.

    Raises:
        ValueError: no reference has any text, or a rate is not a finite number.
    """
    normal_predictions = [normalize(text) for text in predictions]
    normal_references = [normalize(text) for text in references]
    word, character = WordErrorRate(), CharacterErrorRate()
    normal = word.compute(predictions=normal_predictions, references=normal_references)
    utterances = UtteranceErrors([errors for errors, _ in word.by_text], [words for _, words in word.by_text])
    if unit == "characters":
        predictions = [split_characters(text) for text in predictions]
        references = [split_characters(text) for text in references]
    rates = {
        "wer": normal["wer"],
        "wer_orthographic": word.compute(predictions=predictions, references=references)["wer"],
        "empty_references": normal["empty_references"],
    }
    if unit == "characters":
        rates |= {"cer": rates["wer"], "cer_orthographic": rates["wer_orthographic"]}
    else:
        rates["cer"] = character.compute(predictions=normal_predictions, references=normal_references)["cer"]
        rates["cer_orthographic"] = character.compute(predictions=predictions, references=references)["cer"]
    broken = {name: rate for name, rate in rates.items() if not math.isfinite(rate)}
    if broken:
        raise ValueError(f"error rates must be finite numbers, got {broken}")
    return rates, utterances
