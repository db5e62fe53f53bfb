"""What is tried and sampled from a search space: `auto` as numbers, points to try first, Optuna's distributions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from space_files import LR, Load, space_loader

from tune.space.parameters import ChoiceParameter, FloatParameter
from tune.util.errors import SpaceError


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return space_loader(tmp_path)


# --- auto


def test_resolve_puts_numbers_in_place_of_auto(load: Load) -> None:
    space = load("learning_rate: {type: float, low: auto, high: auto, log: true}\ntry_first: [{}]")
    assert space.describe() == [("learning_rate", "a tenth to ten times the model's default, log scale")]
    with pytest.raises(ValueError, match=r"resolve\(\)"):
        space.to_optuna()
    resolved = space.resolve(6.25e-6)
    assert resolved.parameters == {"learning_rate": FloatParameter(6.25e-7, 6.25e-5, log=True)}
    assert resolved.try_first == [{"learning_rate": 6.25e-6}]
    assert resolved.resolve(1.0) == resolved
    assert load(LR + "try_first: [{}, {learning_rate: 1e-4}]").resolve(1e-4).try_first == [
        {"learning_rate": 1e-4}
    ]
    choice = load("learning_rate: {type: choice, values: [auto, 1e-4]}").resolve(2e-5)
    assert choice.parameters["learning_rate"] == ChoiceParameter((2e-5, 1e-4))
    fixed = load("learning_rate: auto\ndropout: {type: float, low: 0, high: 0.1}").resolve(2e-5)
    assert fixed.fixed == {"learning_rate": 2e-5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            LR + "try_first: [{learning_rate: auto}]",
            "point 1: learning_rate: auto is 2 here, outside the searched",
        ),
        (
            "learning_rate: {type: float, low: auto, high: 1e-4}",
            "learning_rate: low=0.2 is above high=0.0001",
        ),
        ("learning_rate: {type: choice, values: [auto, 2]}", "learning_rate: values holds 2 more than once"),
    ],
)
def test_what_only_the_model_shows_to_be_wrong(load: Load, text: str, message: str) -> None:
    space = load(text)
    with pytest.raises(SpaceError) as error:
        space.resolve(2.0)
    assert message in str(error.value)
    assert "s.yaml: " in str(error.value)


def test_the_usual_settings_are_tried_after_the_points_given(load: Load) -> None:
    text = "train_batch_size: {type: choice, values: [6, 32]}\nwarmup_ratio: {type: float, low: 0.2, high: 0.3}\n"
    text += "group_by_length: {type: choice, values: [true, false]}\n"
    text += "learning_rate: {type: float, low: auto, high: auto, log: true}\n"
    first = {"train_batch_size": 32, "warmup_ratio": 0.25, "group_by_length": True, "learning_rate": 1e-5}
    usual = {"train_batch_size": 6, "warmup_ratio": 0.2, "group_by_length": False, "learning_rate": 2e-5}
    space = load(text + f"try_first: [{json.dumps(first)}]").resolve(2e-5)
    assert space.try_first == [first]
    assert space.with_recipe(2e-5).try_first == [first, usual]
    assert space.with_recipe(2e-5).with_recipe(2e-5).try_first == [first, usual]


# --- Optuna


def test_whole_numbers_reach_both_ends_on_a_log_scale(load: Load) -> None:
    import optuna

    distributions = load("warmup_steps: {type: int, low: 2, high: 5, log: true}").to_optuna()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert {study.ask(distributions).params["warmup_steps"] for _ in range(200)} == {2, 3, 4, 5}
