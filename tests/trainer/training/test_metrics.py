"""The metric that a training measures with: corpus-level, in percent, and never a flattering nothing."""

from __future__ import annotations

import statistics

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from trainer.config import TrainConfig
from trainer.scoring.normalizers import make_normalizer
from trainer.training.metrics import ErrorRates


@pytest.mark.parametrize("objective", ["clips", "sources", "worst_source"])
def test_translations_of_several_sources_have_their_own_chrf_and_bleu(objective: str) -> None:
    """BLEU was once of all clips together alone, beside the chrF of the worst source."""
    said = ["the cat sat on the mat today", "a dog ran over the hill", "we all like to sing in the rain"]
    heard = ["the cat sat on the mat now", "a dog ran over the hill", "all of us sing when rain comes"]
    sources = ["a", "a", "b"]
    normalizers = [make_normalizer(TrainConfig(task="translate"))] * 3
    measured = ErrorRates(normalizers, sources, objective, "translate")
    rates = measured.compute(predictions=heard, references=said)
    for name, metric in {"chrf": CHRF(), "bleu": BLEU()}.items():
        every = metric.corpus_score(heard, [said]).score
        own = [metric.corpus_score(heard[rows], [said[rows]]).score for rows in (slice(2), slice(2, 3))]
        assert [rates[f"{name}@a"], rates[f"{name}@b"]] == pytest.approx(own)
        wanted = {"clips": every, "sources": statistics.fmean(own), "worst_source": min(own)}
        assert rates[name] == pytest.approx(wanted[objective])
