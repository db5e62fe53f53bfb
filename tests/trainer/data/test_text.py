"""What the model learns to write."""

from __future__ import annotations

import pytest

from trainer.data.text import prepare_target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, mother-in-law!", "Don't stop mother-in-law"),
        ("don\u2019t \u2018quote\u2019 -- it", "don\u2019t quote it"),
        ("costs $3.50, i.e. 1,000 at 10:30", "costs $3.50 i e 1,000 at 10:30"),
        ("50% of R&D @ home", "50% of R&D @ home"),
        ("Es sind -5 °C, \u22125 % und E-Mail - 3!", "Es sind -5 °C \u22125 % und E-Mail 3"),
        ("कि हिन्दी, में।", "कि हिन्दी में"),
        ("שָׁלוֹם, עולם", "שָׁלוֹם עולם"),
        ("ก็ได้ ไหม?", "ก็ได้ ไหม"),
        ("\u00bfQu\u00e9? \u00abs\u00ed\u00bb", "Qué sí"),
        ("paral\u00b7lel \u00b7 punt", "paral\u00b7lel punt"),
        ("a_b [noise] (aside)\u2026", "a b noise aside"),
        ("...", ""),
    ],
)
def test_punctuation_goes_and_words_stay_whole(text: str, expected: str) -> None:
    assert prepare_target(text, lowercase=False, remove_punctuation=True) == expected


def test_text_is_kept_but_for_white_space() -> None:
    text = " \u201cDon't\u201d,\n he\t said \u2014 PAUSE. "
    expected = "\u201cDon't\u201d, he said \u2014 PAUSE."
    assert prepare_target(text, lowercase=False, remove_punctuation=False) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("\u00c9COLE Stra\u00dfe", None, "\u00e9cole stra\u00dfe"),
        ("\u0130stanbul ILIK", "tr", "istanbul \u0131l\u0131k"),
        ("\u0130stanbul IS", "en", "istanbul is"),
        ("\u039f\u0394\u039f\u03a3", "el", "\u03bf\u03b4\u03bf\u03c2"),
    ],
)
def test_lower_case_knows_the_alphabet(text: str, language: str | None, expected: str) -> None:
    assert prepare_target(text, lowercase=True, remove_punctuation=False, language=language) == expected
