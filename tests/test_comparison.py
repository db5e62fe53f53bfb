"""Which settings win, and when that is noise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tune.comparison import Repeat, Verdict, judge_finalists

CLIPS, WORDS = 400, 10


def repeats(wers: list[float], *, seconds: float = 100.0, seed: int = 0, clips: int = CLIPS) -> list[Repeat]:
    """Trainings with these WERs in percent; which words are wrong is by chance, hard clips alike for all."""
    difficulty = np.random.default_rng(1).gamma(2.0, 0.5, clips)
    generator = np.random.default_rng(seed)
    words = np.full(clips, WORDS)
    found = []
    for number, wer in enumerate(wers, 1):
        errors = np.zeros(clips, int)
        wrong = round(wer / 100 * clips * WORDS)
        np.add.at(errors, generator.choice(clips, wrong, p=difficulty / difficulty.sum()), 1)
        found.append(Repeat(f"r{number}", 100 * errors.sum() / words.sum(), seconds, errors, words))
    return found


def even(wer: float, seconds: float = 100.0) -> Repeat:
    """The same share of every clip is wrong, so that there is no noise of the clips."""
    words = np.full(CLIPS, 100)
    return Repeat("r", wer, seconds, words * wer / 100, words)


def interval(verdict: Verdict) -> tuple[float, float]:
    return verdict.standings[1].interval


def test_a_clear_difference_has_a_winner() -> None:
    verdict = judge_finalists(
        {"001": repeats([20.4, 20.0, 20.2]), "002": repeats([12.1, 12.4, 12.0], seed=5)}
    )
    assert (verdict.winner, verdict.tie) == ("002", False)
    first, second = verdict.standings
    assert (first.trial_id, second.trial_id, second.tied) == ("002", "001", False)
    assert first.runs == ["r1", "r2", "r3"]
    assert first.mean == pytest.approx(np.mean(first.wers))
    assert first.sd == pytest.approx(np.std(first.wers, ddof=1))
    assert second.difference == pytest.approx(second.mean - first.mean)
    assert 4 < interval(verdict)[0] < second.difference < interval(verdict)[1] < 12
    assert (first.difference, first.interval) == (0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("better", "worse", "winner"),
    [(300.0, 100.0, "worse"), (100.0, 300.0, "better"), (100.0, 97.0, "better"), (100.0, 94.0, "worse")],
)
def test_noise_is_a_tie_and_the_cheaper_one_wins(better: float, worse: float, winner: str) -> None:
    """A few percent of time are noise too."""
    verdict = judge_finalists(
        {
            "worse": repeats([15.6, 15.1], seconds=worse, seed=3),
            "better": repeats([15.2, 15.3], seconds=better),
        }
    )
    assert [found.trial_id for found in verdict.standings] == ["better", "worse"]
    assert verdict.tie
    assert verdict.winner == winner
    assert interval(verdict)[0] <= 0 < interval(verdict)[1]


def test_a_cheap_one_that_is_clearly_worse_does_not_win() -> None:
    verdict = judge_finalists(
        {
            "cheap": repeats([31.0, 31.4], seconds=5.0),
            "close": repeats([15.4, 15.2], seconds=80.0, seed=2),
            "best": repeats([15.0, 15.1], seconds=100.0, seed=3),
        }
    )
    assert [found.trial_id for found in verdict.standings] == ["best", "close", "cheap"]
    assert [found.tied for found in verdict.standings] == [False, True, False]
    assert (verdict.winner, verdict.tie) == ("close", True)


def test_one_repeat_shows_no_spread_so_the_usual_one_is_taken() -> None:
    near = judge_finalists({"001": [even(15.0)], "002": [even(15.6)]})
    assert [found.sd for found in near.standings] == [None, None]
    assert near.tie
    far = judge_finalists({"001": [even(15.0)], "002": [even(18.0)]})
    assert (far.tie, far.winner) == (False, "001")
    low, high = interval(far)
    assert (low, high) == pytest.approx(
        (3 - 1.96 * 0.5 * math.sqrt(2), 3 + 1.96 * 0.5 * math.sqrt(2)), abs=0.12
    )


def test_one_finalist_wins_alone() -> None:
    verdict = judge_finalists({"003": repeats([15.0, 15.4])})
    assert (verdict.winner, verdict.tie, len(verdict.standings)) == ("003", False, 1)


def test_the_interval_of_a_known_case() -> None:
    """No noise of the clips: that of Student's t for two means of three with a pooled deviation."""
    verdict = judge_finalists(
        {"001": [even(14.0), even(15.0), even(16.0)], "002": [even(18.0), even(19.0), even(20.0)]}
    )
    half = 2.776 * math.sqrt(1 / 3 + 1 / 3)  # t of 4 degrees of freedom; both deviations are 1
    assert interval(verdict) == pytest.approx((4 - half, 4 + half), abs=0.35)
    # No noise of the seeds: that of the mean over clips of a known deviation.
    words = np.full(CLIPS, 10)
    wrong = np.tile([0, 2], CLIPS // 2)  # 10 %, with a deviation of 10 points between clips
    one = [Repeat("a", 10.0, 1.0, wrong, words)] * 2
    other = [Repeat("b", 20.0, 1.0, wrong[::-1] + 1, words)] * 2
    half = 1.96 * 20.0 / math.sqrt(CLIPS)  # the difference of a clip is -10 or 30 points
    assert interval(judge_finalists({"001": one, "002": other})) == pytest.approx(
        (10 - half, 10 + half), abs=0.3
    )


def test_the_same_clips_are_drawn_for_both() -> None:
    """Settings that differ by the same on every clip differ for sure, however much the clips do."""
    hard = np.random.default_rng(3).integers(0, 60, CLIPS)
    words = np.full(CLIPS, 100)

    def runs(more: int) -> list[Repeat]:
        return [Repeat("r", float((hard + more).mean()), 1.0, hard + more, words)] * 2

    assert interval(judge_finalists({"001": runs(0), "002": runs(1)})) == pytest.approx((1.0, 1.0))


def test_equal_settings_rarely_have_a_winner() -> None:
    """Seeds differ by half a point and nothing else does: at most about one verdict in twenty may be wrong."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        wers = 15 + 0.5 * generator.standard_normal((2, 2))
        wrong += not judge_finalists({str(n): [even(wer) for wer in pair] for n, pair in enumerate(wers)}).tie
    assert wrong <= 12


def test_a_verdict_is_the_same_each_time_and_plain() -> None:
    found = {"001": repeats([15.0, 15.4]), "002": repeats([15.5, 15.1], seed=2)}
    verdict = judge_finalists(found)
    assert verdict == judge_finalists(found)
    told = json.loads(json.dumps(verdict.to_dict()))
    assert told["winner"] == verdict.winner
    assert {"trial_id", "runs", "wers", "mean", "sd", "seconds", "difference", "interval", "tied"} == set(
        told["standings"][0]
    )
