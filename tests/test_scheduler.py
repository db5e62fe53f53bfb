"""Rungs and ASHA's decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tune.scheduler import make_scheduler, rung_grid
from tune.search_space import SchedulerSettings

CONTINUE, STOP = "CONTINUE", "STOP"


@pytest.mark.parametrize(
    ("budget", "factor", "rungs", "expected"),
    [
        (900, 3, 3, (100, 300, 900)),
        (1000, 3, 3, (111, 333, 1000)),
        (1000, 10, 4, (1, 10, 100, 1000)),
        (3600, 2, 4, (450, 900, 1800, 3600)),
        (5, 3, 3, (1, 3, 5)),
        (1000, 2, 3, (250, 500, 1000)),
        (1, 3, 3, (1,)),
        (600, 3, 1, (600,)),
    ],
)
def test_rungs(budget: int, factor: float, rungs: int, expected: tuple[int, ...]) -> None:
    assert rung_grid(budget, factor, rungs) == expected


@pytest.mark.parametrize(
    ("budget", "multiple", "expected"),
    [
        (3200, 64, (384, 1088, 3200)),
        (640, 64, (64, 192, 640)),
        (240, 64, (27, 80, 240)),
        (640, 5040, (71, 213, 640)),
    ],
)
def test_rungs_on_whole_batches_where_they_are_large_enough(
    budget: int, multiple: int, expected: tuple[int, ...]
) -> None:
    assert rung_grid(budget, 3, 3, multiple) == expected


def decide(scheduler: Any, trial: str, samples: int, wer: float) -> str:
    shown = SimpleNamespace(trial_id=trial)
    if trial not in scheduler._trial_info:
        scheduler.on_trial_add(None, shown)
    return str(scheduler.on_trial_result(None, shown, {"samples_seen": samples, "wer": wer}))


def test_its_rungs_are_the_grid() -> None:
    grid = rung_grid(1000, 10, 4)  # int(log(1000) / log(10)) is 2: Ray's own grid would miss a rung
    scheduler = make_scheduler(SchedulerSettings(reduction_factor=10, rungs=4), grid)
    assert [rung for rung, _ in scheduler._brackets[0]._rungs] == [1000, 100, 10, 1]


def test_a_rung_stops_nobody_before_it_holds_enough_trials() -> None:
    scheduler = make_scheduler(SchedulerSettings(min_trials_per_rung=3), (100, 300, 900))
    assert decide(scheduler, "a", 100, 20.0) == CONTINUE
    assert decide(scheduler, "b", 100, 90.0) == CONTINUE
    assert decide(scheduler, "c", 100, 80.0) == STOP
    assert decide(scheduler, "d", 100, 10.0) == CONTINUE


def test_a_trial_with_nan_is_stopped_and_leaves_no_trace_in_the_rung() -> None:
    scheduler = make_scheduler(SchedulerSettings(min_trials_per_rung=1), (100, 300, 900))
    assert decide(scheduler, "a", 100, float("nan")) == STOP
    scheduler.on_trial_complete(
        None, SimpleNamespace(trial_id="a"), {"samples_seen": 100, "wer": float("nan")}
    )
    assert all(not recorded for _, recorded in scheduler._brackets[0]._rungs)


def test_one_rung_stops_nobody_early() -> None:
    scheduler = make_scheduler(SchedulerSettings(rungs=1), (900,))
    assert [decide(scheduler, trial, 450, wer) for trial, wer in [("a", 1.0), ("b", 99.0)]] == [CONTINUE] * 2
