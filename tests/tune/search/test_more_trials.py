"""What more trials would gain."""

import numpy as np
import pytest

from tune.search.more_trials import MORE, more_trials
from tune.search.records import Trial, TrialOutcome


def trials_of(wers: list[float], outcome: TrialOutcome = "completed") -> list[Trial]:
    return [
        Trial(f"{number:03d}", {}, status=outcome, best_value=wer, seconds=60.0)
        for number, wer in enumerate(wers, 1)
    ]


@pytest.mark.parametrize("count", [8, 24])
def test_of_independent_trials_the_interval_holds_and_the_mean_is_right(count: int) -> None:
    """The mean where low WERs fall off as the method has it, the interval where there is a best WER besides."""
    source, shape = np.random.default_rng(0), (2000, count + MORE)
    held, gain, expected = _held(60 - source.exponential(3, shape), count)
    assert gain == pytest.approx(expected, rel=0.2)
    for wers in (source.lognormal(3, 0.5, shape), 10 + source.gamma(2, 5, shape)):
        held, gain, expected = _held(wers, count)
        assert 0.9 < held < 0.97
        assert gain < expected < 2.5 * gain


def _held(wers: np.ndarray, count: int) -> tuple[float, float, float]:
    """How often the interval held, the mean gain, and the mean of what was expected."""
    gains = wers[:, :count].min(1) - wers.min(1)
    found = [more_trials(trials_of(before.tolist())) for before in wers[:, :count]]
    known = [each for each in found if each is not None]
    assert len(known) == len(wers)
    held = np.mean([gain <= each.upper_end for gain, each in zip(gains, known, strict=True)])
    return float(held), float(gains.mean()), float(np.mean([each.gain for each in known]))


def test_time_is_that_of_so_many_trials() -> None:
    found = more_trials(trials_of([10.0, 11.0, 12.0, 13.0]))
    assert found is not None
    assert (found.trials, found.seconds) == (MORE, MORE * 60.0)
    assert 0 < found.gain < found.upper_end <= 10.0


def test_no_gain_is_more_than_the_whole_wer() -> None:
    found = more_trials(trials_of([0.5, 30.0, 60.0]))
    assert found is not None
    assert (found.gain, found.upper_end) == (0.5, 0.5)


def test_trials_that_were_stopped_count_but_tell_no_wer() -> None:
    assert more_trials(trials_of([10.0, 11.0, 12.0], "early_stopped")) is None
    assert more_trials(trials_of([10.0, 11.0])) is None
    few = trials_of([10.0, 11.0, 12.0])
    less, more = more_trials([*few, *trials_of([1.0] * 8, "early_stopped")]), more_trials(few)
    assert less is not None
    assert more is not None
    assert less.gain < more.gain
    assert less.upper_end < more.upper_end
