"""Translations are judged by chrF: what each adds to it, and how sure it is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from trainer.scoring.intervals import compare, difference_interval, rate_interval
from trainer.scoring.translation import ChrfCounts, count_chrf

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


def test_without_text_there_is_nothing_to_measure() -> None:
    assert count_chrf(["abc def", ""], ["abc def", "x"]).percent == 0.0
    with pytest.raises(ValueError, match="nothing to measure"):
        _ = count_chrf([""], ["x"]).percent
