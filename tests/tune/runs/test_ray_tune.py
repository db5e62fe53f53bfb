"""What Ray Tune is told: of an evaluation, of settings that are left, and when all is over."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tune.runs.ray_tune import RayScheduler, RaySearcher
from tune.search.records import Records
from tune.search.searcher import Repeater


@pytest.mark.parametrize(("ends", "answer"), [(True, "STOP"), (False, "CONTINUE")])
def test_ray_is_told_what_was_decided_with_the_trials_own_number(ends: bool, answer: str) -> None:
    heard: list[tuple[str, dict[str, Any]]] = []

    def evaluated(trial_id: str, result: dict[str, Any]) -> bool:
        heard.append((trial_id, result))
        return ends

    trial = SimpleNamespace(trial_id="8f3a2_00004", config={"trial_id": "007", "dropout": 0.1})
    result = {"samples_seen": 100, "wer": 20.0}
    assert RayScheduler(evaluated).on_trial_result(None, trial, result) == answer
    assert heard == [("007", result)]


def test_ray_is_told_what_is_left_and_pickles_no_log() -> None:
    searcher = RaySearcher(Repeater({"001-r1": {"seed": 1}, "001-r2": {"seed": 2}}, Records(), lambda: 1))
    assert searcher.suggest("a") == {"seed": 1, "trial_id": "001-r1"}
    assert searcher.suggest("b") is None, "no room"
    searcher.on_trial_complete("a")
    assert searcher.suggest("b") == {"seed": 2, "trial_id": "001-r2"}
    assert searcher.suggest("c") == searcher.FINISHED
    assert pickle.loads(pickle.dumps(searcher)) == "see events.jsonl"
