"""The rates of a training, as a metric of the library `evaluate`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import datasets
import evaluate
import numpy as np

from trainer.scoring.alignment import ClipErrors, Counts
from trainer.scoring.normalizers import Normalizer
from trainer.scoring.objectives import CHRF_ERROR, combine, rates_by_source
from trainer.scoring.scores import count_rates
from trainer.scoring.translation import TRANSLATE, bleu, count_chrf


class ErrorRates(evaluate.Metric):
    """WER and CER in percent over all texts, normalised and as written; `compute` gives those of `objectives.RATES`.

    Of texts from several `sources` it gives each source's as well (`wer@fleurs`), and all together by the objective.
    Of translations `chrf_error`, which is 100 - chrF, with `chrf` and `bleu`: word errors would count every other
    choice of words.

    WER is what the search decides on. Loss is no proxy for it: in published runs WER fell from 34.6 to 32.0 while the
    evaluation loss rose from 0.31 to 0.45. `evaluate.load("wer")` downloads code at run time, and so fails offline.
    """

    def __init__(
        self,
        normalizers: Sequence[Normalizer],
        sources: Sequence[str] = (),
        objective: str = "clips",
        task: str = "transcribe",
        *,
        silence: bool = False,
    ) -> None:
        """`normalizers` and `sources` are those of each text, `sources` empty for a single one; `silence` as in
        `count_rates`.
        """
        super().__init__(keep_in_memory=True)
        self._normalizers, self._translates = normalizers, task == TRANSLATE
        self._sources, self._objective, self._silence = sources, objective, silence
        self.utterances = ClipErrors(np.zeros(0), np.zeros(0))
        """What each text of the last `compute` adds to the objective."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="Morris, Maier and Green: From WER and RIL to MER and WIL, Interspeech 2004",
            inputs_description="predictions, references: texts of equal number",
            features=datasets.Features({"predictions": text, "references": text}),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        counts: Mapping[str, Counts] = (
            {CHRF_ERROR: count_chrf(references, predictions)}
            if self._translates
            else count_rates(references, predictions, self._normalizers, silence=self._silence).counts
        )
        rates, self.utterances = combine(counts, self._sources or [""] * len(references), self._objective)
        if not self._translates:
            return rates
        chrf = {name.replace(CHRF_ERROR, "chrf"): 100.0 - rate for name, rate in rates.items()}
        return {**rates, **chrf, **self._bleu(references, predictions, rates_by_source(rates))}

    def _bleu(
        self, references: Sequence[str], predictions: Sequence[str], sources: Iterable[str]
    ) -> dict[str, float]:
        """BLEU of each of these sources, and of all as the objective has them."""
        rows = {name: [row for row, own in enumerate(self._sources) if own == name] for name in sources}
        found = {
            name: bleu([references[row] for row in own], [predictions[row] for row in own])
            for name, own in rows.items()
        }
        named = {f"bleu@{name}": value for name, value in found.items()}
        if not found or self._objective == "clips":
            return {"bleu": bleu(references, predictions), **named}
        together = min if self._objective == "worst_source" else statistics.fmean
        return {"bleu": together(found.values()), **named}
