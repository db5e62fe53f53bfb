"""The metric that a training measures with: corpus-level, in percent, and never a flattering nothing."""

from __future__ import annotations

import jiwer
import pytest

from trainer.config import TrainConfig
from trainer.scoring.normalizers import make_normalizer
from trainer.training.metrics import ErrorRates

SAID = ["a", "1 2 3 4 5 6 7 8 9", "Hello, world"]
HEARD = ["b x y", "1 2 3 4 5 6 7 8 9", "hello world"]


def metric(texts: int) -> ErrorRates:
    return ErrorRates([make_normalizer(TrainConfig(normalizer="none"))] * texts)


def test_rates_are_those_of_the_whole_corpus() -> None:
    measured = metric(3)
    rates = measured.compute(predictions=HEARD, references=SAID)
    assert set(rates) == {"wer", "cer", "wer_orthographic", "cer_orthographic"}
    assert rates["wer"] == pytest.approx(100 * jiwer.wer(SAID, HEARD))
    assert rates["cer"] == pytest.approx(100 * jiwer.cer(SAID, HEARD))
    assert measured.utterances.word_errors.tolist() == [3, 0, 1]
    for said, heard in zip(SAID, HEARD, strict=True):
        measured.add(prediction=heard, reference=said)
    assert measured.compute() == rates
