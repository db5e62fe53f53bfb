"""What Ray Tune is told: of an evaluation, of settings that are left, and when all is over."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tune.experiments.events import TrialsOver
from tune.runs.ray_tune import RayScheduler, RaySearcher, RayStopper
from tune.search.records import Records
from tune.search.searcher import Repeater


def test_ray_lets_trials_go_on_and_what_a_trial_reported_last_is_taken_in_before_its_end() -> None:
    ends: list[str] = []
    scheduler, trial = RayScheduler(lambda: ends.append("")), SimpleNamespace(config={"trial_id": "007"})
    assert scheduler.on_trial_result(None, trial, {"wer": 20.0}) == "CONTINUE"
    assert not ends
    scheduler.on_trial_complete(None, trial, {})
    scheduler.on_trial_error(None, trial)
    assert len(ends) == 2


def test_a_budgets_end_waits_a_minute_for_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    now, saving, events = [1000.0], [True], []
    monkeypatch.setattr("tune.runs.ray_tune.time.time", lambda: now[0])
    log: Any = SimpleNamespace(state=SimpleNamespace(events=1), problem=None, append=events.append)
    stopper = RayStopper(log, lambda _: TrialsOver(reason="time_budget"), lambda: saving[0])
    assert not stopper.stop_all()
    assert len(events) == 1
    now[0] += 59
    assert not stopper.stop_all()
    saving[0] = False
    assert stopper.stop_all()
    saving[0], now[0] = True, 1061.0
    assert stopper.stop_all()
    assert len(events) == 1


def test_no_trial_begins_while_a_budgets_end_waits() -> None:
    log: Any = SimpleNamespace(state=SimpleNamespace(events=1), problem=None, append=lambda _: None)
    stopper = RayStopper(log, lambda _: TrialsOver(reason="time_budget"), lambda: True)
    source = Repeater({"001-r1": {"seed": 1}, "001-r2": {"seed": 2}}, Records(), lambda: 2)
    searcher = RaySearcher(source, lambda: stopper.over)
    assert searcher.suggest("a") == {"seed": 1, "trial_id": "001-r1"}
    assert not stopper.stop_all()
    assert searcher.suggest("b") is None


def test_ray_is_told_what_is_left_and_pickles_no_log() -> None:
    searcher = RaySearcher(Repeater({"001-r1": {"seed": 1}, "001-r2": {"seed": 2}}, Records(), lambda: 1))
    assert searcher.suggest("a") == {"seed": 1, "trial_id": "001-r1"}
    assert searcher.suggest("b") is None, "no room"
    searcher.on_trial_complete("a")
    assert searcher.suggest("b") == {"seed": 2, "trial_id": "001-r2"}
    assert searcher.suggest("c") == searcher.FINISHED
    assert pickle.loads(pickle.dumps(searcher)) == "see events.jsonl"
