"""Early rungs on a part of the validation split: how large it is, how far off its WER may be, and what comes of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from made_logs import folded

from trainer.config import TrainConfig
from trainer.scoring.alignment import ErrorCounts, UtteranceErrors
from trainer.scoring.objectives import combine
from trainer.train import train
from trainer.training.early_evaluation import early_clips, enough_clips, wer_error
from tune.search.records import Records


def made_up(n_clips: int, wer: float, seed: int = 0) -> UtteranceErrors:
    """Clips of 3 to 20 words, some of which are far harder than others."""
    rng = np.random.default_rng(seed)
    words = rng.integers(3, 21, n_clips)
    hard = rng.gamma(1.0, 1.0, n_clips)
    errors = rng.binomial(words, np.clip(wer / 100 * hard, 0, 1))
    return UtteranceErrors(errors.tolist(), words.tolist())


def rate(errors: UtteranceErrors) -> float:
    return 100 * sum(errors.word_errors) / sum(errors.words)


def part(errors: UtteranceErrors, clips: list[int]) -> UtteranceErrors:
    return UtteranceErrors([errors.word_errors[c] for c in clips], [errors.words[c] for c in clips])


def error_of(errors: UtteranceErrors, n_clips: int) -> float:
    return wer_error(errors, [""] * len(errors.words), {"": n_clips})


@pytest.mark.parametrize("count", [150, 500])
def test_the_error_is_that_of_many_draws(count: int) -> None:
    errors = made_up(1200, 30.0)
    drawn = [part(errors, early_clips([""] * 1200, count, seed)) for seed in range(400)]
    seen = np.std([rate(each) - rate(errors) for each in drawn])
    assert np.median([error_of(each, 1200) for each in drawn]) == pytest.approx(seen, rel=0.12)
    assert error_of(errors, 1200) == 0.0


def test_as_many_clips_as_a_decision_needs() -> None:
    errors = made_up(5000, 30.0)
    count = enough_clips(errors)
    assert count is not None
    assert count < 2500
    told = [error_of(part(errors, early_clips([""] * 5000, count, seed)), 5000) for seed in range(20)]
    assert np.median(told) == pytest.approx(0.02 * rate(errors), rel=0.1)
    assert enough_clips(made_up(300, 30.0)) is None, "most of a small set would be needed"
    assert enough_clips(UtteranceErrors([0] * 2000, [9] * 2000)) == 100
    assert enough_clips(UtteranceErrors([0, 0], [0, 0])) is None


def test_the_part_is_always_the_same() -> None:
    clips = [""] * 1000
    assert early_clips(clips, 200, 7) == early_clips(clips, 200, 7) != early_clips(clips, 200, 8)
    assert len(set(early_clips(clips, 200, 7))) == 200
    few = clips[:50]
    assert early_clips(few, None, 7) == early_clips(few, 0, 7) == early_clips(few, 60, 7) == list(range(50))


@pytest.mark.parametrize("objective", ["clips", "sources", "worst_source"])
def test_each_source_is_in_the_part_and_in_its_error(objective: str) -> None:
    easy, hard = made_up(1000, 10.0), made_up(250, 40.0, seed=1)
    sources = ["easy"] * 1000 + ["hard"] * 250
    errors, words = (
        np.array(a + b) for a, b in zip(*(vars(each).values() for each in (easy, hard)), strict=True)
    )
    rates, told = [], []
    for seed in range(400):
        clips = early_clips(sources, 250, seed)
        zero = np.zeros(len(clips), np.int64)
        counts = ErrorCounts(words[clips] - errors[clips], errors[clips], zero, zero)
        of = [sources[clip] for clip in clips]
        assert of.count("hard") == 50
        found = combine({"wer": counts}, of, objective)
        rates.append(found.rates["wer"])
        assert rate(found.utterances) == pytest.approx(rates[-1])
        told.append(wer_error(found.utterances, of, Counter(sources)))
    assert np.median(told) == pytest.approx(np.std(rates), rel=0.12)


def test_a_training_measures_all_clips_from_half_of_its_budget_on(small_config: TrainConfig) -> None:
    config = small_config.replace(max_eval_clips=8, early_eval_clips=3, evaluate_at=(8, 16, 32), max_steps=4)
    rows: list[dict[str, Any]] = []
    result = train(config, lambda row, folder: rows.append(dict(row)) if folder else None)
    assert [row["samples_seen"] for row in rows] == [8, 16, 32]
    assert [row.get("eval_clips") for row in rows] == [3.0, None, None]
    assert rows[0]["wer_error"] > 0
    whole: list[dict[str, Any]] = []
    train(config.replace(early_eval_clips=0), lambda row, folder: whole.append(dict(row)) if folder else None)
    for row, other in zip(rows[1:], whole[1:], strict=True):
        assert (row["wer"], row["eval_loss"]) == (other["wer"], other["eval_loss"])
    assert result.wer == min(row["wer"] for row in rows[1:]), "the best is one of those on all clips"


def test_a_rate_on_a_part_is_best_only_where_there_is_no_other() -> None:
    records = Records()
    first, second = records.start("001", {}), records.start("002", {})
    row = {"cer": 5.0, "eval_loss": 1.0, "epoch": 1.0, "finished": 0.0}
    first.add_evaluation({**row, "samples_seen": 100, "wer": 15.0, "wer_error": 1.2, "eval_clips": 200.0})
    assert (first.best_wer, first.best_is_partial, records.best()) == (15.0, True, first)
    second.add_evaluation({**row, "samples_seen": 100, "wer": 30.0})
    assert records.best() is second
    first.add_evaluation({**row, "samples_seen": 300, "wer": 20.0})
    assert (first.best_wer, first.best_samples_seen, first.best_is_partial) == (20.0, 300, False)
    assert records.best() is first
    first.add_evaluation({**row, "samples_seen": 200, "wer": 1.0, "wer_error": 1.2, "eval_clips": 200.0})
    assert first.best_wer == 20.0
    assert folded(records)[first.trial_id].wer_errors == first.wer_errors == {100: 1.2, 200: 1.2}
