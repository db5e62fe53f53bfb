"""What ends a search before all its trials, and what does not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tune.errors import ConfigError
from tune.finalists import finalists_cost
from tune.search.budgets import Budgets, Limits, describe_duration, parse_duration
from tune.search.records import Outcome, Records, TrialRecord


class Search:
    """Records, and limits that look at them."""

    def __init__(self, *, gpus: float = 1.0, spent: float = 0.0, **budgets: Any) -> None:
        self.records = Records()
        self.repeats = Records()
        self.limits = Limits(Budgets(**budgets), (self.records,), gpus_per_trial=gpus, spent_seconds=spent)
        self._ends = time.time()

    def trial(
        self, wer: float | None, outcome: Outcome | None = "completed", hours: float = 1.0
    ) -> TrialRecord:
        """One more trial, which ended after those before it, or runs."""
        record = self.records.start(f"{len(self.records.all()) + 1:03d}", {})
        record.best_wer = wer
        record.started -= hours * 3600
        if outcome is not None:
            record.end(outcome)
            self._ends += 1.0
            record.ended = self._ends
        return record

    @property
    def reason(self) -> str | None:
        end = self.limits.reached()
        return end.reason if end else None


def test_without_budgets_only_failures_end_a_search() -> None:
    search = Search(spent=1e9)
    for _ in range(50):
        search.trial(50.0, hours=1000)
    assert search.reason is None


def test_the_time_budget_counts_all_sessions() -> None:
    assert Search(seconds=3600.0, spent=3500.0).reason is None
    search = Search(seconds=3600.0, spent=3601.0)
    end = search.limits.reached()
    assert end is not None
    assert (end.reason, end.text) == ("time_budget", "the time budget of 1h is spent")
    assert search.limits.seconds == pytest.approx(3601, abs=5)


def test_gpu_hours_are_those_of_all_trials_also_of_running_ones() -> None:
    search = Search(gpus=2.0, gpu_hours=9.0)
    search.trial(40.0, hours=2.0)
    search.trial(30.0, hours=1.0)
    assert search.reason is None
    assert search.limits.gpu_hours == pytest.approx(6.0, abs=0.01)
    search.trial(None, None, hours=1.6)
    end = search.limits.reached()
    assert end is not None
    assert (end.reason, end.text) == ("gpu_hours", "the budget of 9 GPU-hours is spent")


def test_a_share_of_a_gpu_is_counted_as_one() -> None:
    search = Search(gpus=0.25, gpu_hours=1.0)
    search.trial(40.0, hours=3.9)
    assert search.reason is None
    search.trial(40.0, hours=0.2)
    assert search.reason == "gpu_hours"


@pytest.mark.parametrize(
    ("wers", "ends"),
    [
        ([50, 40, 41, 42], False),
        ([50, 40, 41, 42, 43], True),
        ([50, 40, 41, 42, 39], False),
        ([50, 40, 41, 42, 39.95], True),  # no better by more than a tenth of a point
        ([50, 40, None, None, None], False),  # nothing is known of them
        ([50, 40, 41, None, 41, None, 41], True),
        ([40], False),
    ],
)
def test_a_plateau(wers: list[float | None], ends: bool) -> None:
    search = Search(plateau_trials=3)
    for wer in wers:
        search.trial(wer, "early_stopped" if wer else "diverged")
    search.trial(45.0, None)
    end = search.limits.reached()
    assert (end is not None) == ends
    if end:
        assert end.reason == "plateau"
        assert end.text == "3 trials in a row were no better than 40.00 % by more than 0.1 points"


def test_a_plateau_goes_by_the_end_of_the_trials() -> None:
    """Number 1 began first and ends last, with the best."""
    search = Search(plateau_trials=2)
    first = search.trial(None, None)
    for wer in (50.0, 51.0):
        search.trial(wer)
    first.best_wer = 10.0
    assert search.reason is None
    first.end("completed")
    first.ended = time.time() + 100
    assert search.reason is None


def test_a_plateau_of_points() -> None:
    search = Search(plateau_trials=2, plateau_points=2.0)
    for wer in (50.0, 48.5, 48.2):
        search.trial(wer)
    assert search.reason == "plateau"


def test_failures_in_a_row() -> None:
    search = Search()
    for outcome in ("failed", "failed", "diverged", "failed", "failed"):
        search.trial(None, outcome)  # type: ignore[arg-type]
        assert search.reason is None
    search.trial(None, "failed")
    end = search.limits.reached()
    assert end is not None
    assert (end.reason, end.text) == ("failures", "3 trials failed one after the other")
    assert not search.limits.search_is_over(6), "there is nothing to compare"


def test_failures_of_the_session_before_may_have_been_mended() -> None:
    search = Search()
    for _ in range(3):
        search.trial(None, "failed").ended -= 1000
    assert search.reason is None
    for _ in range(2):
        search.trial(None, "failed")
    assert search.reason is None
    search.trial(None, "failed")
    assert search.reason == "failures"


def test_what_the_finalists_need_is_kept() -> None:
    """Four repeats, two at a time: two hours of wall time and eight GPU-hours."""
    search = Search(gpus=2.0, seconds=4 * 3600.0, spent=1.9 * 3600)
    search.trial(30.0, hours=1.0)
    search.trial(60.0, "early_stopped", hours=0.1)
    assert finalists_cost(search.records, 4, 2) == pytest.approx((7200.0, 4.0), rel=1e-3)
    search.limits.reserve = lambda: finalists_cost(search.records, 4, 2)
    assert search.reason is None
    late = Search(gpus=2.0, seconds=4 * 3600.0, spent=2.1 * 3600)
    late.trial(30.0, hours=1.0)
    late.limits.reserve = lambda: finalists_cost(late.records, 4, 2)
    end = late.limits.reached()
    assert end is not None
    assert end.text == "the time budget of 4h is spent, but for what the finalists need"
    hours = Search(gpus=2.0, gpu_hours=9.9)
    hours.trial(30.0, hours=1.0)
    assert hours.reason is None
    hours.limits.reserve = lambda: finalists_cost(hours.records, 4, 2)
    assert hours.reason == "gpu_hours"


def test_nothing_is_kept_before_a_trial_had_its_whole_budget() -> None:
    search = Search()
    search.trial(60.0, "early_stopped")
    assert finalists_cost(search.records, 4, 2) == (0.0, 0.0)


def test_the_finalists_have_what_the_trials_left() -> None:
    """The end of the trials is none of theirs, the budgets are, and a plateau is no matter any more."""
    search = Search(gpu_hours=3.0, plateau_trials=1)
    search.trial(30.0)
    search.trial(31.0)
    assert search.reason == "plateau"
    after = search.limits.after_trials((search.records, search.repeats))
    assert after.reached() is None
    search.repeats.start("001-r1", {}).started -= 3601
    end = after.reached()
    assert end is not None
    assert end.reason == "gpu_hours"
    assert search.reason == "plateau", "what ended the trials stays"


def test_what_was_reached_stays() -> None:
    search = Search(plateau_trials=1)
    search.trial(30.0)
    search.trial(31.0)
    assert search.reason == "plateau"
    search.trial(10.0)
    assert search.reason == "plateau"
    assert search.limits.search_is_over(100)


def test_a_search_is_over_when_all_its_trials_ended() -> None:
    search = Search()
    search.trial(30.0)
    running = search.trial(31.0, None)
    assert not search.limits.search_is_over(2)
    running.end("completed")
    assert search.limits.search_is_over(2)
    assert not search.limits.search_is_over(3)
    search.limits.exhausted()
    assert search.limits.search_is_over(3)
    assert search.reason == "space"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
        ("90m", 5400),
        ("1h30m", 5400),
        ("45s", 45),
        ("2d", 172800),
        ("0.5h", 1800),
        ("1m1.5s", 61.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration("--time-budget", text) == seconds
    assert parse_duration("--time-budget", describe_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "8", "h", "8 h", "-1h", "0s", "8hours", "1h-30m", "1e3s", "8h!"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--time-budget '.*': must be a duration such as 8h, 90m"):
        parse_duration("--time-budget", text)
