"""Error rates: corpus-level, in percent, and never a flattering nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.scoring.characters import split_characters
from trainer.training.metrics import CharacterErrorRate, WordErrorRate, rates_and_utterances


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
    rates, _ = rates_and_utterances(["hallucinated words", "a"], ["", "a"], same)
    assert rates["wer"] == 0.0
    assert rates["empty_references"] == 1


@pytest.mark.parametrize("references", [[], [""], ["  ", ""]])
def test_nothing_to_measure_raises(references: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        rates_and_utterances(["x"] * len(references), references, same)


def test_normalised_and_orthographic_differ() -> None:
    rates, _ = rates_and_utterances(
        ["hello world"], ["Hello, world"], lambda text: text.lower().replace(",", "")
    )
    assert rates["wer"] == 0.0
    assert rates["wer_orthographic"] == 50.0


def test_metrics_work_without_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('no network in this test')\n"
        "socket.socket.connect = refuse\n"
        "from trainer.training.metrics import WordErrorRate\n"
        "print(WordErrorRate().compute(predictions=['a'], references=['b'])['wer'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "100.0"


def test_of_characters_the_wer_is_the_cer() -> None:
    rates, found = rates_and_utterances(
        ["你好!", "日本"], ["你们好。", "日本"], split_characters, "characters"
    )
    # "!" for "。" and one character left out, of six; spaces between characters are none of the text
    assert rates["wer"] == rates["cer"] == rates["wer_orthographic"] == rates["cer_orthographic"]
    assert rates["wer"] == pytest.approx(100 * 2 / 6)
    assert (found.word_errors, found.words) == ([2, 0], [4, 2])
