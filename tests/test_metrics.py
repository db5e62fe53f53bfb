"""Error rates: corpus-level, in percent, and never a flattering nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.config import TrainConfig
from trainer.metrics import CharacterErrorRate, WordErrorRate, error_rates
from trainer.model import load_processor
from trainer.normalizers import make_normalizer


def same(text: str) -> str:
    return text


def test_wer_is_total_errors_over_total_words() -> None:
    # one error in one word and none in nine: the mean of the clips' rates would be 50
    result = WordErrorRate().compute(
        predictions=["b", "1 2 3 4 5 6 7 8 9"], references=["a", "1 2 3 4 5 6 7 8 9"]
    )
    assert result == {"wer": 10.0, "errors": 1, "length": 10, "empty_references": 0}


def test_insertions_can_exceed_100_percent() -> None:
    assert WordErrorRate().compute(predictions=["a b c d"], references=["a"])["wer"] == 300.0


def test_cer_counts_characters() -> None:
    assert CharacterErrorRate().compute(predictions=["abcx"], references=["abcd"])["cer"] == 25.0


def test_empty_references_are_counted_and_left_out() -> None:
    rates = error_rates(["hallucinated words", "a"], ["", "a"], same)
    assert rates["wer"] == 0.0
    assert rates["empty_references"] == 1


@pytest.mark.parametrize("references", [[], [""], ["  ", ""]])
def test_nothing_to_measure_raises(references: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        error_rates(["x"] * len(references), references, same)


def test_normalised_and_orthographic_differ() -> None:
    rates = error_rates(["hello world"], ["Hello, world"], lambda text: text.lower().replace(",", ""))
    assert rates["wer"] == 0.0
    assert rates["wer_orthographic"] == 50.0


def test_metrics_work_without_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('no network in this test')\n"
        "socket.socket.connect = refuse\n"
        "from trainer.metrics import WordErrorRate\n"
        "print(WordErrorRate().compute(predictions=['a'], references=['b'])['wer'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "100.0"


@pytest.mark.parametrize(
    ("language", "normalizer", "text", "expected"),
    [
        ("en", "whisper", "It's Mr. Smith, isn't it?", "it is mister smith is not it"),
        ("en", "whisper", "seven three two", "732"),
        ("en", "auto", "Seven, three -- isn't it?", "seven three isn't it"),
        ("be", "auto", "Раз'яднаць, сёння!", "раз'яднаць сёння"),
        ("hi", "auto", "हिन्दी।", "हिन्दी"),
        ("be", "whisper", "Раз'яднаць", "раз яднаць"),
        ("en", "none", " As It Is. ", "As It Is."),
        ("en", "basic", "It's - HERE!", "it's here"),
        ("en", "basic", "don\u2019t", "don't"),
        ("be", "basic", "раз\u02bcяднаць", "раз'яднаць"),
    ],
)
def test_normalizers(language: str, normalizer: str, text: str, expected: str) -> None:
    config = TrainConfig(language=language, normalizer=normalizer)
    assert make_normalizer(config, load_processor(config).tokenizer)(text) == expected
