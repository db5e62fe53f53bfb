"""What ends a search before all its trials, and what does not."""

import time
from typing import Any

import pytest

from trainer.errors import ConfigError
from tune.search.budgets import (
    Budgets,
    End,
    Spent,
    describe_duration,
    final_round_cost,
    parse_duration,
    reached,
)
from tune.search.records import Records, Trial, TrialOutcome


class Search:
    """Records, and budgets that look at them."""

    def __init__(self, *, gpus: float = 1.0, spent: float = 0.0, **budgets: Any) -> None:
        self.records = Records()
        self.repeats = Records()
        self.budgets = Budgets(**budgets)
        self.spent: dict[str, Any] = {"seconds": spent, "gpus_per_trial": gpus}
        self._ends = time.time()

    def trial(
        self, wer: float | None, outcome: TrialOutcome | None = "completed", hours: float = 1.0
    ) -> Trial:
        """One more trial, which ended after those before it, or runs."""
        record = self.records.start(f"{len(self.records.all()) + 1:03d}", {})
        record.best_value = wer
        record.started -= hours * 3600
        if outcome is not None:
            record.end(outcome)
            self._ends += 1.0
            record.ended, record.session = self._ends, 1
        return record

    @property
    def end(self) -> End | None:
        return reached(self.budgets, Spent(**self.spent), self.records, self.repeats)

    @property
    def reason(self) -> str | None:
        return self.end.reason if self.end else None

    def reserve(self, *how: Any) -> None:
        """Keep back what the final round takes."""
        seconds, hours = final_round_cost(self.records, *how)
        self.spent |= {"reserved_seconds": seconds, "reserved_hours": hours}


def test_the_time_budget_counts_all_sessions() -> None:
    assert Search(spent=1e9).reason is None, "there is none"
    assert Search(seconds=3600.0, spent=3500.0).reason is None
    search = Search(seconds=3600.0, spent=3601.0)
    assert (search.end.reason, search.end.text) == ("time_budget", "the time budget of 1h is spent")


def test_the_target_is_reached_by_a_trial_that_can_be_a_finalist() -> None:
    search = Search(target_wer=10.0)
    for outcome in (None, "early_stopped", "diverged"):
        search.trial(4.0, outcome)
        known = Spent(**search.spent)
        assert reached(search.budgets, known, search.records, search.repeats, upper_end=9.0) is None
    search.trial(8.0)
    end = reached(search.budgets, known, search.records, search.repeats, upper_end=9.0)
    assert end.text == "trial 004 has 8.00 % (95 % interval up to 9.00), below the target of 10 %"


def test_gpu_hours_are_those_of_all_trials_also_of_running_ones() -> None:
    search = Search(gpus=2.0, gpu_hours=9.0)
    search.trial(40.0, hours=2.0)
    search.trial(30.0, hours=1.0)
    assert search.reason is None
    search.trial(None, None, hours=1.6)
    assert (search.end.reason, search.end.text) == ("gpu_hours", "the budget of 9 GPU-hours is spent")


@pytest.mark.parametrize(
    ("wers", "points", "ends"),
    [
        ([50, 40, 41, 42], 0.1, False),
        ([50, 40, 41, 42, 43], 0.1, True),
        ([50, 40, 41, 42, 39], 0.1, False),
        ([50, 40, 41, 42, 39.95], 0.1, True),  # no better by more than a tenth of a point
        ([50, 40, None, None, None], 0.1, False),  # nothing is known of them
        ([50, 40, 41, None, 41, None, 41], 0.1, True),
        ([50, 40, 38.5, 38.2, 38.1], 2.0, True),
    ],
)
def test_a_plateau(wers: list[float | None], points: float, ends: bool) -> None:
    search = Search(plateau_trials=3, plateau_points=points)
    for wer in wers:
        search.trial(wer, "early_stopped" if wer else "diverged")
    search.trial(45.0, None)
    end = search.end
    assert (end is not None) == ends
    if end:
        assert end.reason == "plateau"
        assert end.text == f"3 trials in a row did not improve on 40.00 % by more than {points:g} points"


def test_failures_in_a_row() -> None:
    search = Search()
    for outcome in ("failed", "failed", "diverged", "failed", "failed"):
        search.trial(None, outcome)  # type: ignore[arg-type]
        assert search.reason is None
    search.trial(None, "failed")
    assert (search.end.reason, search.end.text) == ("failures", "3 trials in a row failed")


def test_failures_of_the_session_before_may_have_been_mended() -> None:
    search = Search()
    for _ in range(3):
        search.trial(None, "failed")
    search.spent["session"] = 2
    assert search.reason is None
    for _ in range(2):
        search.trial(None, "failed").session = 2
    assert search.reason is None
    search.trial(None, "failed").session = 2
    assert search.reason == "failures"


def test_a_plateau_that_was_found_in_an_earlier_session_is_no_reason_in_the_next() -> None:
    search = Search(plateau_trials=2)
    for wer in (30.0, 31.0, 32.0):
        last = search.trial(wer)
    assert search.reason == "plateau"
    search.spent["plateau_since"] = last.ended
    assert search.reason is None, "more trials were wanted"
    search.trial(33.0)
    assert search.reason is None
    search.trial(34.0)
    assert search.reason == "plateau"


def test_what_the_finalists_need_is_kept() -> None:
    """Four repeats, two at a time: two hours of wall time and eight GPU-hours."""
    search = Search(gpus=2.0, seconds=4 * 3600.0, spent=1.9 * 3600)
    search.trial(30.0, hours=1.0)
    search.trial(60.0, "early_stopped", hours=0.1)  # says nothing of the whole budget
    assert final_round_cost(search.records, 4, 2, 1.0) == pytest.approx((7200.0, 4.0), rel=1e-3)
    search.reserve(4, 2, 1.0)
    assert search.reason is None
    late = Search(gpus=2.0, seconds=4 * 3600.0, spent=2.1 * 3600)
    late.trial(30.0, hours=1.0)
    late.reserve(4, 2, 1.0)
    assert late.end.text == "the time budget of 4h is spent, apart from what the finalists will need"
    hours = Search(gpus=2.0, gpu_hours=9.9)
    hours.trial(30.0, hours=1.0)
    assert hours.reason is None
    hours.reserve(4, 2, 1.0)
    assert hours.reason == "gpu_hours"


def test_what_is_measured_after_the_repeats_is_kept_too_and_counts_for_the_gpu_hours() -> None:
    """Of an hour 40 minutes were training, the other 20 two evaluations."""
    search = Search(gpus=2.0, gpu_hours=3.0)
    trial = search.trial(30.0)
    trial.train_seconds, trial.evaluations = 2400.0, [(100, 40.0), (200, 30.0)]
    trainings, all_ = (final_round_cost(search.records, 4, 2, 3.0, measured) for measured in (0, 5))
    assert all_[0] - trainings[0] == pytest.approx(5 * 1800.0, rel=1e-3), "one after the other"
    assert all_[1] - trainings[1] == pytest.approx(5 * 0.5, rel=1e-3)
    trial.evaluations = [(200, 30.0)]
    once = final_round_cost(search.records, 4, 2, 3.0, 5)
    assert once[0] - trainings[0] == pytest.approx(5 * 3600.0, rel=1e-3), "the 20 minutes were one evaluation"
    assert search.reason is None
    search.spent["measured_hours"] = 0.6
    assert search.reason == "gpu_hours"


def test_repeats_count_for_the_gpu_hours_and_their_failures_end_the_final_round() -> None:
    search = Search(gpu_hours=3.0)
    search.trial(30.0)
    search.trial(31.0)
    assert search.reason is None
    search.repeats.start("001-r1", {}).started -= 3601
    assert search.reason == "gpu_hours"
    failing = Search()
    failing.trial(30.0)
    for number in range(3):
        failing.repeats.start(f"001-r{number}", {}).end("failed", time.time() + number)
        failing.repeats[f"001-r{number}"].session = 1
    assert failing.reason is None, "trials that were added are no repeats"
    spent = Spent(**failing.spent)
    found = reached(failing.budgets, spent, failing.records, failing.repeats, final_round=True)
    assert found.reason == "failures"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
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


def test_sixty_seconds_are_a_minute() -> None:
    assert describe_duration(3599.97) == "1h"


@pytest.mark.parametrize("text", ["", "8", "h", "8 h", "-1h", "0s", "8hours", "1h-30m", "1e3s", "8h!"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--time-budget '.*': must be a duration such as 8h, 90m"):
        parse_duration("--time-budget", text)


def test_repeats_are_measured_on_whole_windows_and_take_longer() -> None:
    """Of an hour 40 minutes were training: with windows three times as long a repeat takes 1:40."""
    search = Search()
    search.trial(30.0).train_seconds = 2400.0
    seconds, hours = final_round_cost(search.records, 4, 2, 3.0)
    assert seconds == pytest.approx(2 * 6000.0, rel=1e-3)
    assert hours == pytest.approx(4 * 6000.0 / 3600, rel=1e-3)
