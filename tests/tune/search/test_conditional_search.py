"""Searches of spaces with conditions: each trial has what is searched there, and each branch is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from simulation import Simulation, our_search

from tune.search.records import Records
from tune.search.searcher import Searcher
from tune.space.space import SearchSpace, load_space

RUNGS = (100, 300, 900)
SPACE = """\
learning_rate:
  - {type: float, low: 1.0e-6, high: 1.0e-3, log: true, when: {group_by_length: false}}
  - {type: float, low: 1.0e-5, high: 1.0e-2, log: true, when: {group_by_length: true}}
group_by_length: {type: choice, values: [false, true]}
mask_time_prob: {type: float, low: 0.02, high: 0.2, when: {spec_augment: true}}
spec_augment: {type: choice, values: [false, true], when: {group_by_length: false}}
searcher: {startup_trials: 6, gp_trials: 20}
"""
BEST = {False: 2e-5, True: 1e-3}
"""Of the learning rate, by `group_by_length`."""


def space_of(folder: Path, text: str = SPACE) -> SearchSpace:
    path = folder / "space.yaml"
    path.write_text(text)
    return load_space(str(path)).resolve(1e-5).with_recipe(1e-5)


def valley(config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
    """Each branch has a best learning rate of its own; masks are worth something where there are any."""
    off = math.log10(config["learning_rate"] / BEST[config["group_by_length"]])
    masks = 0.0 if "mask_time_prob" not in config else 20 * abs(config["mask_time_prob"] - 0.1) - 1
    wer = 20 + 5 * config["group_by_length"] + 8 * off**2 + masks + 10 * (1 - samples_seen / RUNGS[-1])
    return {"wer": wer, "cer": wer / 3, "eval_loss": wer / 50}


def run(space: SearchSpace, trials: int, **options: Any) -> Simulation:
    return our_search(space, valley, RUNGS, trials=trials, seed=3, baseline=60.0, **options)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    return space_of(tmp_path_factory.mktemp("conditions"))


@pytest.fixture(scope="module")
def search(space: SearchSpace) -> Simulation:
    return run(space, 32)


def test_each_trial_has_what_is_searched_there(space: SearchSpace, search: Simulation) -> None:
    records = search.records.all()
    assert len(records) == len({repr(record.config) for record in records}) == 32
    kinds = {frozenset(record.config) for record in records}
    both = {"learning_rate", "group_by_length"}
    assert kinds == {frozenset(both), frozenset(both | {"spec_augment"}),
                     frozenset(both | {"spec_augment", "mask_time_prob"})}  # fmt: skip
    for record in records:
        frozen = record.config["group_by_length"]
        assert space.outside(record.config) == []
        assert ("spec_augment" in record.config) is not frozen
        assert ("mask_time_prob" in record.config) is record.config.get("spec_augment", False)


def test_a_branch_of_few_points_ends_no_search(tmp_path: Path) -> None:
    """All that is easy to hit was tried soon; a range of real numbers below a rare value is never at its end."""
    text = (
        "train_batch_size: {type: int, low: 4, high: 20}\n"
        "group_by_length: {type: choice, values: [false, true], when: {train_batch_size: 8}}\n"
        "learning_rate: {type: float, low: 1.0e-6, high: 1.0e-3, log: true, when: {group_by_length: true}}\n"
    )
    space = space_of(tmp_path, text)
    searcher = Searcher(space, seed=0, records=Records())
    points = [searcher.suggest(str(number)) for number in range(40)]
    assert not searcher.exhausted
    assert sum(point is not None and "learning_rate" in point for point in points) >= 40 - 18
    assert all(space.outside(point) == [] for point in points if point is not None)
