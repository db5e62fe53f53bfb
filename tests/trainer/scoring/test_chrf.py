"""Translations are judged by chrF: what each adds to it, and how sure it is."""

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from trainer.config import TrainConfig
from trainer.scoring.intervals import compare, difference_interval, rate_interval
from trainer.scoring.normalizers import make_normalizer
from trainer.scoring.objectives import describe_rates, words
from trainer.scoring.translation import ChrfCounts, count_chrf
from trainer.training.metrics import ErrorRates

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", "big", "red", "house", "runs", "fast", "away", "from"]
texts = st.lists(st.text("abcd éx", max_size=12), min_size=1, max_size=8)


def chrf_error(references: list[str], translations: list[str]) -> float:
    return 100.0 - float(CHRF().corpus_score(translations, [references]).score)


@given(texts, st.randoms())
def test_the_shares_of_all_add_up_to_what_sacrebleu_says(
    references: list[str], chance: random.Random
) -> None:
    references = [*references, "abcd"]
    translations = ["".join(chance.choices("abcd éx", k=len(text))) for text in references]
    spoken = [row for row, text in enumerate(references) if text.strip()]
    found = count_chrf(references, translations)
    assert found.percent == pytest.approx(
        chrf_error([references[row] for row in spoken], [translations[row] for row in spoken]), abs=1e-6
    )
    assert found.errors[[row for row in range(len(references)) if row not in spoken]].sum() == 0.0
    rows = chance.sample(spoken, max(1, len(spoken) // 2))
    own = chrf_error([references[row] for row in rows], [translations[row] for row in rows])
    assert found.of(rows).percent == pytest.approx(own, abs=1e-6)


def worse(text: str, share: float, chance: random.Random) -> str:
    return " ".join(word if chance.random() > share else chance.choice(WORDS) for word in text.split())


def made(clips: int = 150) -> tuple[list[str], ChrfCounts, ChrfCounts]:
    """References, and a better and a worse model."""
    chance = random.Random(1)
    references = [" ".join(chance.choices(WORDS, k=chance.randint(2, 12))) for _ in range(clips)]
    models = ([worse(text, share, chance) for text in references] for share in (0.3, 0.5))
    first, second = (count_chrf(references, model) for model in models)
    return references, first, second


def test_intervals_are_those_of_drawing_the_translations_anew() -> None:
    _, first, second = made()
    chance, rates, differences = np.random.default_rng(0), [], []
    for _ in range(1000):
        rows = chance.integers(len(first.lengths), size=len(first.lengths)).tolist()
        pair = first.of(rows).percent, second.of(rows).percent
        rates.append(pair[0])
        differences.append(pair[1] - pair[0])
    assert rate_interval(first.errors, first.lengths) == pytest.approx(
        np.percentile(rates, [2.5, 97.5]), abs=0.8
    )
    interval = difference_interval(second.errors - first.errors, first.lengths)
    assert interval == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=0.8)
    found = compare(first.errors, second.errors, first.lengths)
    assert found.difference == pytest.approx(first.percent - second.percent)
    assert found.shown
    assert not compare(first.errors, first.errors, first.lengths).shown


def test_translations_have_words_of_their_own() -> None:
    rates = {"chrf_error": 40.0, "chrf": 60.0, "bleu": 20.0}
    assert describe_rates(rates) == "chrF error 40.00 % (chrF 60.00), BLEU 20.00"
    assert words("WER 3 %, no WERs, POWER", "translate") == "chrF error 3 %, no chrF error, POWER"


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
