"""What Ray Tune is told: of an evaluation, of settings that are left, and when all is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tune.experiments.events import TrialsOver
from tune.runs.ray_tune import RaySearcher, RayStopper
from tune.search.records import Records
from tune.search.searcher import Repeater


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
