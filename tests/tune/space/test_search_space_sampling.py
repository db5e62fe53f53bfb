"""What is tried and sampled from a search space: `auto` as numbers, points to try first, Optuna's distributions."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest
from space_files import LR, Load, space_loader

from trainer.config import TrainConfig
from tune.space.space import ChoiceParameter, FloatParameter
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


SAMPLED = """\
learning_rate: {type: float, low: 1e-6, high: 1e-2, log: true}
weight_decay: {type: float, low: 0.05, high: 0.32, step: 0.1}
warmup_steps: {type: int, low: 1, high: 1000, log: true}
train_batch_size: {type: int, low: 3, high: 8, step: 2}
gradient_accumulation_steps: {type: int, low: 1, high: 3}
max_grad_norm: {type: int, low: 0, high: 2}
group_by_length: {type: choice, values: [true, false]}
scheduler_type: {type: choice, values: [linear, cosine]}
try_first: [{learning_rate: auto, warmup_steps: 1000, train_batch_size: 7, weight_decay: 0.15}]
"""


def test_ray_and_optuna_sample_what_the_file_says(load: Load) -> None:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    space = load(SAMPLED).resolve(1e-4)
    assert dict(space.describe())["weight_decay"] == "0.05 to 0.25, in steps of 0.1"
    assert dict(space.describe())["train_batch_size"] == "3 to 7, whole, in steps of 2"
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error"
        )  # Optuna warns of a grid that misses its end, and of what is deprecated
        distributions = space.to_optuna()
        settings = space.searcher
        sampler = optuna.samplers.TPESampler(
            seed=0,
            n_startup_trials=400,
            n_ei_candidates=settings.ei_candidates,
            multivariate=settings.multivariate,
            constant_liar=settings.constant_liar,
        )
        search = OptunaSearch(
            distributions, metric="wer", mode="min", sampler=sampler, points_to_evaluate=space.try_first
        )
        samples = [search.suggest(str(number)) for number in range(400)]

    usual = {"gradient_accumulation_steps": 1, "max_grad_norm": 1, "group_by_length": False}
    given = {"learning_rate": 1e-4, "warmup_steps": 1000, "train_batch_size": 7, "weight_decay": 0.15}
    assert samples[0] == {**usual, **given, "scheduler_type": "linear"}
    for sample in samples:
        TrainConfig.from_dict(sample)
        assert all(parameter.contains(sample[name]) for name, parameter in space.parameters.items())
        assert type(sample["train_batch_size"]) is int
        assert type(sample["group_by_length"]) is bool
    seen = {name: {sample[name] for sample in samples[1:]} for name in space.parameters}
    assert seen["gradient_accumulation_steps"] == {1, 2, 3}
    assert seen["max_grad_norm"] == {0, 1, 2}
    assert seen["train_batch_size"] == {3, 5, 7}
    assert sorted(seen["weight_decay"]) == pytest.approx([0.05, 0.15, 0.25])
    assert seen["group_by_length"] == {True, False}
    assert seen["scheduler_type"] == {"linear", "cosine"}
    # Half of a log scale lies below its geometric mean; of a linear one, almost nothing.
    below = sum(sample["learning_rate"] < 1e-4 for sample in samples[1:])
    assert 150 < below < 250
    assert 150 < sum(math.log(sample["warmup_steps"]) < math.log(1000) / 2 for sample in samples[1:]) < 250


def test_whole_numbers_reach_both_ends_on_a_log_scale(load: Load) -> None:
    import optuna

    distributions = load("warmup_steps: {type: int, low: 2, high: 5, log: true}").to_optuna()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert {study.ask(distributions).params["warmup_steps"] for _ in range(200)} == {2, 3, 4, 5}
