"""What Optuna is told of the trials."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tune.search_space import load_space
from tune.searcher import TRIAL_ID, make_searcher


@pytest.fixture
def searcher() -> Any:
    return make_searcher(load_space("lr_batch").resolve(1e-3), experiment="exp", seed=5)


def result(samples: int, wer: float, finished: bool = False) -> dict[str, Any]:
    return {"wer": wer, "samples_seen": samples, "training_iteration": 1, "finished": float(finished)}


def test_trials_are_numbered_and_the_first_is_the_recipe(searcher: Any) -> None:
    first, second = searcher.suggest("x"), searcher.suggest("y")
    assert (first.pop(TRIAL_ID), second.pop(TRIAL_ID)) == ("001", "002")
    assert first == {
        "learning_rate": 1e-3,
        "warmup_ratio": 0.1,
        "train_batch_size": 8,
        "gradient_accumulation_steps": 1,
    }
    assert set(second) == set(first)


def test_states_values_and_steps(searcher: Any) -> None:
    for trial in "abcde":
        searcher.suggest(trial)
    searcher.on_trial_result("a", result(100, 30.0))
    searcher.on_trial_result("a", result(900, 12.0))
    searcher.on_trial_complete("a", result(900, 12.0, finished=True))
    searcher.on_trial_complete("b", result(100, 70.0))
    searcher.on_trial_result("c", result(150, math.nan))
    searcher.on_trial_complete("c", result(150, math.nan))
    searcher.on_trial_complete("d", None, error=True)
    study = searcher._ot_study
    assert study.study_name == "exp"
    states = [trial.state for trial in study.trials]
    assert states == [
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
        TrialState.FAIL,
        TrialState.RUNNING,
    ]
    assert study.trials[0].value == 12.0
    assert study.trials[0].intermediate_values == {100: 30.0, 900: 12.0}
    assert study.trials[1].intermediate_values == {100: 70.0}


def test_same_seed_same_proposals() -> None:
    def proposals(seed: int) -> list[Any]:
        searcher = make_searcher(load_space("lr_batch").resolve(1e-3), experiment="exp", seed=seed)
        found = []
        for number in range(8):
            found.append(searcher.suggest(str(number)))
            wer = 100 * found[-1]["learning_rate"] + number % 3
            searcher.on_trial_result(str(number), result(900, wer))
            searcher.on_trial_complete(str(number), result(900, wer, finished=True))
        return found

    assert proposals(1) == proposals(1)
    assert proposals(1) != proposals(2)


def test_ints_reach_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("train_batch_size: {type: int, low: 1, high: 3}\n")
    searcher = make_searcher(load_space(str(path)).resolve(1e-3), experiment="exp", seed=0)
    assert {searcher.suggest(str(number))["train_batch_size"] for number in range(40)} == {1, 2, 3}
