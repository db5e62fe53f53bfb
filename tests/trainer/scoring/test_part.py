"""The part of the validation split that trials measure: how large it is, and which clips it has."""

from typing import Any

import numpy as np
import pytest
from training import evaluate, train

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.part import chosen_clips, enough_clips


def made_up(n_clips: int, wer: float) -> ClipErrors:
    """Clips of 3 to 20 words, some of which are far harder than others."""
    rng = np.random.default_rng(0)
    words = rng.integers(3, 21, n_clips)
    hard = rng.gamma(1.0, 1.0, n_clips)
    errors = rng.binomial(words, np.clip(wer / 100 * hard, 0, 1))
    return ClipErrors(errors, words)


def rate(errors: ClipErrors, clips: list[int]) -> float:
    return ClipErrors(errors.word_errors[clips], errors.words[clips]).rate


def test_its_wer_is_about_half_a_point_off() -> None:
    errors = made_up(20_000, 8.0)
    count = enough_clips(errors)
    assert count is not None and 500 < count < 2000
    sources, every = [""] * 20_000, list(range(20_000))
    found = [rate(errors, chosen_clips(sources, count, seed)) for seed in range(200)]
    assert np.std(np.array(found) - rate(errors, every)) == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (made_up(20_000, 40.0), 2000),
        (ClipErrors(np.zeros(3000), np.full(3000, 9)), 500),
        (ClipErrors(np.zeros(900), np.zeros(900)), None),
    ],
)
def test_it_has_500_to_2000_clips(errors: ClipErrors, expected: int | None) -> None:
    assert enough_clips(errors) == expected


def test_it_is_always_the_same_and_has_each_source() -> None:
    clips = ["easy"] * 900 + ["hard"] * 100
    chosen = chosen_clips(clips, 200, 7)
    assert chosen == chosen_clips(clips, 200, 7) != chosen_clips(clips, 200, 8)
    assert len(set(chosen)) == 200
    assert [clips[clip] for clip in chosen].count("hard") == 20
    assert chosen_clips(clips, 1000, 7) == list(range(1000))


def test_a_training_that_measures_a_part_is_the_same_training(small_config: TrainConfig) -> None:
    config = small_config.replace(max_eval_clips=8, evaluate_at=(8, 16), max_steps=2, dropout=0.1)
    data, rows, whole = prepare(config), list[dict[str, Any]](), list[dict[str, Any]]()
    train(config, lambda row, folder: rows.append(dict(row)) if folder else None, data=data, clips=[1, 4, 6])
    train(config, lambda row, folder: whole.append(dict(row)) if folder else None, data=data)
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole]
    assert [row["eval_loss"] for row in rows] != [row["eval_loss"] for row in whole]
    assert evaluate(config, data=data, clips=[1, 4, 6]).rates["clips"] == 3
