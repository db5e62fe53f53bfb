"""The best trials once more: which, with which seeds, also after an interruption, and what comes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tune.experiments.plan import SearchRequest, make_plan
from tune.finalists import (
    choose_finalists,
    describe_repeats,
    make_repeater,
    repeat_settings,
)
from tune.scheduler import TRIAL_ID
from tune.search.names import role_of
from tune.search.records import Outcome, Records
from tune.storage import Storage

RATE = "learning_rate"


def trials(*ends: tuple[float | None, Outcome | None]) -> Records:
    records = Records()
    for number, (wer, outcome) in enumerate(ends, 1):
        record = records.start(f"{number:03d}", {RATE: number / 1000})
        record.best_wer = wer
        if outcome:
            record.end(outcome)
    return records


def test_the_best_of_those_with_the_whole_budget() -> None:
    records = trials(
        (12.0, "completed"),
        (5.0, "early_stopped"),  # good, but not known to be so to the end
        (9.0, "completed"),
        (4.0, "failed"),
        (3.0, "diverged"),
        (9.0, "completed"),
        (1.0, None),
    )
    assert [found.trial_id for found in choose_finalists(records, 2)] == ["003", "006"]
    assert [found.trial_id for found in choose_finalists(records, 9)] == ["003", "006", "001"]
    assert choose_finalists(records, 0) == []
    assert choose_finalists(trials((None, "failed")), 2) == []


def test_names_and_seeds() -> None:
    """All finalists with the same seeds, none of them the search's, one of each before the second of any."""
    records = trials((12.0, "completed"), (9.0, "completed"))
    settings = repeat_settings(choose_finalists(records, 2), 2, seed=40)
    assert settings == {
        "002-r1": {RATE: 0.002, "seed": 41},
        "001-r1": {RATE: 0.001, "seed": 41},
        "002-r2": {RATE: 0.002, "seed": 42},
        "001-r2": {RATE: 0.001, "seed": 42},
    }
    assert list(settings) == ["002-r1", "001-r1", "002-r2", "001-r2"]
    assert describe_repeats(settings) == (
        "finalists: trials 002, 001 once more at full budget, with 2 new seeds each"
    )
    assert records["002"].config == {RATE: 0.002}
    assert repeat_settings([], 2, seed=40) == {}
    assert [role_of(name) for name in ("002", "002-r1")] == ["trial", "repeat"]


def test_no_repeat_has_a_seed_that_a_finalist_was_trained_with() -> None:
    """A searched seed is a trial's own, and goes before the one that all share."""
    records = trials((12.0, "completed"), (9.0, "completed"), (10.0, "completed"))
    records["001"].config["seed"], records["002"].config["seed"] = 41, 43
    settings = repeat_settings(choose_finalists(records, 3), 2, seed=40)
    assert {name: config["seed"] for name, config in settings.items()} == {
        **{"002-r1": 42, "003-r1": 42, "001-r1": 42},
        **{"002-r2": 44, "003-r2": 44, "001-r2": 44},
    }
    last = repeat_settings(choose_finalists(records, 1), 2, seed=2**32 - 1)
    assert [config["seed"] for config in last.values()] == [0, 1], "no seed is above what a training takes"


@pytest.mark.parametrize("space_seed", [None, 0, 1, 7])
def test_a_seed_fixed_by_the_space_file_is_no_repeats(tmp_path: Path, space_seed: int | None) -> None:
    """It goes before `--seed` in every training, so that `--seed` is not what repeats have to differ from."""
    path = tmp_path / "space.yaml"
    fixed = "" if space_seed is None else f"seed: {space_seed}\n"
    path.write_text(f"{RATE}: {{type: float, low: 1.0e-4, high: 1.0e-2, log: true}}\n{fixed}")
    storage = Storage.parse(str(tmp_path / "experiments"))
    plan = make_plan(SearchRequest(space=str(path), trials=8, storage=storage, seed=6))
    trained_with = 6 if space_seed is None else space_seed
    assert plan.base.seed == trained_with
    best = choose_finalists(trials(*[(9.0 + n, "completed") for n in range(8)]), 2)
    settings = repeat_settings(best, 2, plan.base.seed)
    assert list(settings) == ["001-r1", "002-r1", "001-r2", "002-r2"]
    assert trained_with not in {plan.base.replace(**config).seed for config in settings.values()}


@pytest.mark.parametrize(
    ("trials", "asked", "expected"), [(7, None, 0), (8, None, 2), (64, None, 2), (8, 0, 0), (3, 1, 1)]
)
def test_finalists_by_default_from_eight_trials_on(trials: int, asked: int | None, expected: int) -> None:
    request = SearchRequest(space="lr_batch", trials=trials, storage=Storage.parse("x"), finalists=asked)
    assert request.n_finalists == expected


def suggested(repeater: Any, *ray_ids: str) -> list[Any]:
    found = []
    for ray_id in ray_ids:
        config = repeater.suggest(ray_id)
        found.append(config[TRIAL_ID] if isinstance(config, dict) else config)
    return found


def test_repeats_are_handed_out_as_there_is_room() -> None:
    settings = repeat_settings(
        choose_finalists(trials((12.0, "completed"), (9.0, "completed")), 2), 2, seed=0
    )
    repeater = make_repeater(settings, Records(), lambda: 2)
    first = repeater.suggest("a")
    assert first == {RATE: 0.002, "seed": 1, TRIAL_ID: "002-r1"}
    assert suggested(repeater, "b", "c") == ["001-r1", None]
    repeater.on_trial_complete("a")
    assert suggested(repeater, "c", "d") == ["002-r2", None]
    repeater.on_trial_complete("b", error=True)
    repeater.on_trial_complete("c")
    assert suggested(repeater, "d", "e") == ["001-r2", repeater.FINISHED]


def test_resumed_half_way() -> None:
    """One had ended and one failed for good; the one that ran goes on under its name, the last is yet to begin."""
    settings = repeat_settings(
        choose_finalists(trials((12.0, "completed"), (9.0, "completed")), 2), 2, seed=0
    )
    repeats = Records()
    repeats.start("002-r1", settings["002-r1"]).end("completed")
    repeats.start("001-r1", settings["001-r1"])
    repeats.start("002-r2", settings["002-r2"]).end("failed")
    repeater = make_repeater(settings, repeats, lambda: 4)
    assert suggested(repeater, "a", "b", "c") == ["001-r1", "001-r2", repeater.FINISHED]
