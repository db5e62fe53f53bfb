"""Conditions and priors: what is searched where, what options change in it, and that files survive being written."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from plans import LR, Load

from tune.search.proposals import propose
from tune.search.searcher import EarlierTrial, optuna_trial
from tune.space.parameters import FloatParameter
from tune.util.errors import SpaceError

SPACE = """\
learning_rate:
  - {type: float, low: 1e-6, high: 1e-4, log: true, when: {group_by_length: false}, prior: auto}
  - {type: float, low: 1e-5, high: 1e-3, log: true, prior: {center: 1e-4, spread: 3}}
mask_time_prob: {type: float, low: 0.02, high: 0.2, when: {spec_augment: true, train_batch_size: [8, 16]}}
spec_augment: {type: choice, values: [false, true], when: {group_by_length: false}}
group_by_length: {type: choice, values: [false, true]}
train_batch_size: {type: int, low: 4, high: 16, step: 4}
"""
FULL = {"learning_rate": 1e-5, "group_by_length": False, "spec_augment": False, "train_batch_size": 8}
FROZEN = {"learning_rate": 1e-5, "group_by_length": True, "train_batch_size": 8}
AUGMENTED = {**FULL, "spec_augment": True, "mask_time_prob": 0.05}


@pytest.mark.parametrize(
    "point", [FULL, FROZEN, AUGMENTED, {**FULL, "spec_augment": True, "train_batch_size": 4}]
)
def test_a_point_has_what_is_searched_there(load: Load, point: dict[str, Any]) -> None:
    space = load(f"{SPACE}try_first: [{yaml.safe_dump(point, default_flow_style=True)}]").resolve(1e-5)
    assert space.try_first == [point]
    assert space.outside(point) == []
    assert space.draw(lambda name, parameter: point.get(name, parameter.nearest(0.05))) == point


def test_the_usual_settings_take_what_holds_for_them(load: Load) -> None:
    assert load(SPACE).resolve(1e-5).with_recipe(1e-5).try_first == [FULL]
    missing = load(SPACE + "try_first: [{spec_augment: true, learning_rate: 2e-5}]")
    assert missing.try_first == [{**AUGMENTED, "learning_rate": 2e-5}]


def test_it_is_described_and_named(load: Load) -> None:
    space = load(SPACE).resolve(1e-5)
    assert dict(space.describe()) == {
        "learning_rate": "1e-06 to 0.0001, log scale, most likely near 1e-05, where group_by_length is false; "
        "1e-05 to 0.001, log scale, most likely near 0.0001 (within a factor of 3)",
        "mask_time_prob": "0.02 to 0.2, where spec_augment is true and train_batch_size is 8 or 16",
        "spec_augment": "one of false, true, where group_by_length is false",
        "group_by_length": "one of false, true",
        "train_batch_size": "4 to 16, whole, in steps of 4",
    }
    names = {
        "learning_rate@group_by_length=false": 1e-5,
        "spec_augment@group_by_length=false": True,
        "mask_time_prob@spec_augment=true,train_batch_size=8|16": 0.05,
    }
    assert space.named(AUGMENTED) == {**names, "group_by_length": False, "train_batch_size": 8}
    assert space.named(FROZEN) == FROZEN
    assert set(space.to_optuna()) == {*names, "learning_rate", "group_by_length", "train_batch_size"}
    assert space.parameters["learning_rate"] == FloatParameter(1e-6, 1e-3, log=True)


@pytest.mark.parametrize(
    ("overrides", "searched", "first"),
    [
        ({"group_by_length": True}, ["learning_rate", "train_batch_size"], {**FROZEN, "learning_rate": 2e-5}),
        ({"spec_augment": False}, ["learning_rate", "group_by_length", "train_batch_size"], None),
        ({"train_batch_size": 4}, ["learning_rate", "spec_augment", "group_by_length"], None),
    ],
)
def test_an_option_takes_out_what_depends_on_it(
    load: Load, overrides: dict[str, Any], searched: list[str], first: Mapping[str, Any] | None
) -> None:
    text = SPACE + "try_first: [{spec_augment: true, mask_time_prob: 0.1, learning_rate: 2e-5}]"
    space = load(text, overrides)
    assert list(space.ranges) == searched
    (point,) = space.try_first
    expected = first or {**FULL, "spec_augment": True, "learning_rate": 2e-5}
    assert point == {name: value for name, value in expected.items() if name not in overrides}


def test_a_condition_that_an_option_fulfils_is_none(load: Load) -> None:
    space = load(SPACE, {"group_by_length": False, "spec_augment": True})
    assert space.named({"learning_rate": 1e-5, "train_batch_size": 8, "mask_time_prob": 0.1}) == {
        **{"learning_rate": 1e-5, "train_batch_size": 8},
        "mask_time_prob@train_batch_size=8|16": 0.1,
    }
    text = "mask_time_prob: {type: float, low: 0, high: 1, when: {spec_augment: true}}\n"
    assert load(LR + text, {"spec_augment": True}).parameters["mask_time_prob"] == FloatParameter(0.0, 1.0)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_point_of_a_branch_that_an_option_cuts_off_is_none(load: Load, frozen: bool) -> None:
    text = (
        SPACE
        + "try_first: [{group_by_length: true, learning_rate: 1e-3}, {group_by_length: false, learning_rate: 3e-6}]"
    )
    rates = [point["learning_rate"] for point in load(text, {"group_by_length": frozen}).try_first]
    assert rates == [1e-3 if frozen else 3e-6]
    with pytest.raises(SpaceError, match=r"point 1: learning_rate=0\.001: outside"):
        load(
            SPACE + "try_first: [{spec_augment: true, learning_rate: 1e-3}]",
            {"spec_augment": True, "dropout": 0},
        )


def test_a_condition_on_a_grid_of_real_numbers(load: Load) -> None:
    """Its points are sums, and 3 x 0.05 is not 0.15."""
    space = load(
        "dropout: {type: float, low: 0, high: 0.3, step: 0.05}\n"
        "weight_decay: {type: float, low: 0, high: 0.1, when: {dropout: 0.15}}\n"
    )
    parameter = space.ranges["dropout"][0]
    searched = [
        space.searched_in({"dropout": value}, "weight_decay") is not None
        for value in parameter.points() or ()
    ]
    assert searched == [False, False, False, True, False, False, False]
    assert space.searched_in({"dropout": 0.15}, "weight_decay") is not None


def test_warmup_in_steps_or_as_a_share(load: Load) -> None:
    """Together one of them has no effect; under conditions that exclude each other each has its own."""
    text = (
        "lowercase: {type: choice, values: [false, true]}\n"
        "warmup_ratio: {type: float, low: 0, high: 0.3, when: {lowercase: false}}\n"
        "warmup_steps: {type: int, low: 1, high: 100, log: true, when: {lowercase: true}}\n"
    )
    assert len(load(text).ranges) == 3
    text = (
        "warmup_steps: {type: choice, values: [null, 100]}\n"
        "warmup_ratio: {type: float, low: 0, high: 0.3, when: {warmup_steps: %s}}\n"
    )
    assert len(load(text % "null").ranges) == 2
    with pytest.raises(SpaceError, match="warmup_ratio: is searched without effect"):
        load(text % "100")


def test_random_proposals_are_drawn_from_the_prior(load: Load) -> None:
    space = load(
        "learning_rate: {type: float, low: 1e-6, high: 1e-2, log: true, prior: 1e-4}\n"
        "warmup_steps: {type: int, low: 0, high: 100, step: 10, prior: 50}\n"
        "dropout: {type: float, low: 0, high: 0.9}\n"
        "weight_decay: {type: float, low: 1e-4, high: 1, log: true, prior: {center: 1e-2, spread: 2}}\n"
    ).resolve(1e-5)
    points = [propose(space, seed, [], 1) or {} for seed in range(300)]
    rates = [math.log10(point["learning_rate"]) for point in points]
    assert statistics.mean(rates) == pytest.approx(-4, abs=0.15)
    # One decade, a quarter of the range, cut off at two of them.
    assert statistics.stdev(rates) == pytest.approx(0.88, abs=0.1)
    decays = [math.log2(point["weight_decay"]) for point in points]
    assert statistics.mean(decays) == pytest.approx(math.log2(1e-2), abs=0.2)
    assert statistics.stdev(decays) == pytest.approx(1, abs=0.15)
    steps = [point["warmup_steps"] for point in points]
    assert {step % 10 for step in steps} == {0}
    assert statistics.mean(steps) == pytest.approx(50, abs=4)
    assert statistics.stdev(steps) == pytest.approx(24, abs=3)
    assert statistics.mean(point["dropout"] for point in points) == pytest.approx(0.45, abs=0.06)


def test_half_of_the_random_proposals_are_drawn_from_the_whole_range(load: Load) -> None:
    """A prior may be wrong."""
    space = load("dropout: {type: float, low: 0, high: 0.9, prior: {center: 0.8, spread: 0.05}}").resolve(
        1e-5
    )
    for ended, mean in ((4, 0.8), (5, 0.45)):
        earlier = [EarlierTrial({"dropout": 0.1 * number}, [(9, 20.0)], 20.0) for number in range(ended)]
        known = [optuna_trial(trial, space) for trial in earlier]
        points = [propose(space, seed, [], 9, known) or {} for seed in range(300)]
        assert statistics.mean(point["dropout"] for point in points) == pytest.approx(mean, abs=0.05)


def test_a_branch_that_no_trial_had_is_drawn_from_its_prior(load: Load) -> None:
    space = load(
        "method: {type: choice, values: [full, lora]}\n"
        "dropout: {type: float, low: 0, high: 0.9, prior: 0.8, when: {method: lora}}\nsearcher: {startup_trials: 3}\n"
    )
    known = [
        optuna_trial(EarlierTrial({"method": "full"}, [(9, wer)], wer), space) for wer in (40.0, 30.0, 20.0)
    ]
    points = [propose(space, seed, [], 9, known) or {} for seed in range(60)]
    shares = [point["dropout"] for point in points if point["method"] == "lora"]
    assert len(shares) > 3 and statistics.mean(shares) > 0.55


METHODS = """\
method: {type: choice, values: [full, lora]}
learning_rate:
  - {type: float, low: auto, high: auto, log: true, prior: auto, when: {method: lora}}
  - {type: float, low: auto, high: auto, log: true}
lora_rank: {type: choice, values: [8, 32], when: {method: lora}}
try_first: [{method: lora, learning_rate: auto, lora_rank: 8}]
"""
RATES = {"full": 1e-5, "lora": 2e-4}


def test_auto_is_the_rate_of_the_method_under_which_it_is_searched(load: Load) -> None:
    space = load(METHODS).resolve(1e-5, RATES).with_recipe(1e-5, RATES)
    adapters: Any
    all_weights: Any
    adapters, all_weights = space.ranges["learning_rate"]
    assert (adapters.low, adapters.high, adapters.prior) == (2e-5, 2e-3, 2e-4)
    assert (all_weights.low, all_weights.high) == (1e-6, 1e-4)
    assert space.try_first == [
        {"method": "full", "learning_rate": 1e-5},
        {"method": "lora", "learning_rate": 2e-4, "lora_rank": 8},
    ]
    assert set(space.to_optuna()) == {
        *("method", "learning_rate", "learning_rate@method=lora", "lora_rank@method=lora")
    }
    assert space.resolve(1e-5, RATES).ranges == space.ranges


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "learning_rate: {type: float, low: auto, high: 1e-2, log: true}",
            "learning_rate: auto is 1e-05 where method is full and 0.0002 where method is lora",
        ),
        (
            "warmup_ratio: {type: float, low: 0, high: 0.2}",
            "learning_rate: its usual value is 1e-05 where method is full and 0.0002 where method is lora",
        ),
    ],
)
def test_one_auto_for_several_methods_is_refused(load: Load, text: str, told: str) -> None:
    with pytest.raises(SpaceError) as caught:
        load(f"method: {{type: choice, values: [full, lora]}}\n{text}").resolve(1e-5, RATES)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_rate_that_is_searched_for_one_method_only(load: Load) -> None:
    text = "method: {type: choice, values: [decoder, lora]}\n"
    text += "learning_rate: {type: float, low: auto, high: auto, log: true, when: {method: decoder}}"
    for space in (load(text), load(text.replace("low: auto, high: auto", "low: 1e-6, high: 1e-4"))):
        assert space.unsearched_rate(1e-5, RATES) == 2e-4
        rates: Any
        (rates,) = space.resolve(1e-5, RATES).ranges["learning_rate"]
        assert (rates.low, rates.high) == (1e-6, 1e-4)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (
            "spec_augment: {type: choice, values: [false, true]}\n"
            "method: {type: choice, values: [lora], when: {spec_augment: true}}\n"
            "learning_rate: {type: float, low: 1e-6, high: 1e-2, log: true}\n",
            [{"spec_augment": False, "learning_rate": 1e-5}],
        ),
        (
            "method: {type: choice, values: [full, lora]}\n"
            "learning_rate: {type: float, low: 1e-6, high: 1e-2, log: true}\n",
            [{"method": "full", "learning_rate": 1e-5}, {"method": "lora", "learning_rate": 2e-4}],
        ),
    ],
)
def test_the_usual_settings_have_the_rate_of_the_method_that_they_come_to(
    text: str, points: list[dict[str, Any]], load: Load
) -> None:
    assert load(text).resolve(1e-5, RATES).with_recipe(1e-5, RATES).try_first == points


def test_a_range_of_billions_of_whole_numbers_takes_no_memory(load: Load) -> None:
    space = load("seed: {type: int, low: 0, high: 4294967295}\n")
    points = space.all_points()
    assert [next(points) for _ in range(2)] == [{"seed": 0}, {"seed": 1}]
