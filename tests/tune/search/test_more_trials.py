"""By how much more trials would lower the lowest WER."""

import numpy as np
import pytest

from tune.search.more_trials import MORE, more_trials
from tune.search.records import Trial, TrialOutcome


def trials_of(*wers: float, outcome: TrialOutcome = "completed") -> list[Trial]:
    return [Trial(f"{wer:.3f}", {}, status=outcome, best_value=wer, seconds=60.0) for wer in wers]


STOPPED = trials_of(*range(50, 70), outcome="early_stopped")


@pytest.mark.parametrize("count", [16, 32])
def test_of_independent_trials_the_mean_is_right_and_the_interval_holds(count: int) -> None:
    """The mean where WERs fall off exponentially, the interval where there is a lowest WER besides."""
    source, shape = np.random.default_rng(0), (2000, count + MORE)
    held, gain, expected = _held(80 - source.exponential(3, shape), count)
    assert gain == pytest.approx(expected, rel=0.1)
    assert held == pytest.approx({16: 0.8, 32: 0.86}[count], abs=0.02)  # the mean spacing is not known well
    for wers in (40 + source.lognormal(3, 0.5, shape), 60 + source.gamma(2, 5, shape)):
        held, gain, expected = _held(wers, count)
        assert 0.88 < held < 0.92
        assert gain < expected < 2.5 * gain


def _held(wers: np.ndarray, count: int) -> tuple[float, float, float]:
    """How often the interval held, the mean gain, and the mean of what was expected, where there was an estimate."""
    estimates = [more_trials(trials_of(*before)) for before in wers[:, :count]]
    known = [
        (before.min() - every.min(), estimate)
        for before, every, estimate in zip(wers[:, :count], wers, estimates, strict=True)
        if estimate is not None
    ]
    assert len(known) > 0.9 * len(wers)
    held = np.mean([gain <= estimate.upper_end for gain, estimate in known])
    gain, expected = np.mean([(gain, estimate.gain) for gain, estimate in known], axis=0)
    return float(held), float(gain), float(expected)


def test_trials_that_were_stopped_count_and_those_that_were_paused_do_not() -> None:
    completed = trials_of(10.0, 10.2, 10.3)
    few, many = more_trials([*completed, *STOPPED[:13]]), more_trials([*completed, *STOPPED])
    assert few is not None
    assert many is not None
    assert many.gain < few.gain
    assert many.upper_end < few.upper_end
    assert few.seconds == MORE * 60.0
    paused = Trial("paused", {}, best_value=5.0, seconds=1.0)
    closed = Trial("closed", {}, status="interrupted", best_value=5.0, seconds=1.0)
    assert more_trials([*completed, *STOPPED, paused, closed]) == many


@pytest.mark.parametrize(
    "trials",
    [
        trials_of(10.0, 10.2, 10.3),
        [*trials_of(10.0, 10.2), *STOPPED],
        [*trials_of(10.0, 10.2, 10.3), *STOPPED, *trials_of(9.9, outcome="diverged")],
        [*trials_of(10.0, 20.0, 50.0), *STOPPED],
        [*trials_of(10.0, 10.0, 10.0), *STOPPED],
        [*trials_of(10.0, 10.2, 10.3), *STOPPED * 4],
    ],
    ids=["few trials", "two completed", "the best diverged", "far apart", "equal", "no gain is likely"],
)
def test_where_there_is_no_estimate(trials: list[Trial]) -> None:
    assert more_trials(trials) is None
