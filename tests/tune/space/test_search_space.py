"""The search space: what a file may say, where it is looked for, and what options change in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import LR, Load

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from tune.space.parameters import NOT_SEARCHABLE, SET_BY_SEARCH, ChoiceParameter, FloatParameter, IntParameter
from tune.space.reader import parse_set
from tune.space.settings import SchedulerSettings, SearcherSettings
from tune.space.space import load_space, packaged_spaces
from tune.util.errors import SpaceError

FLAT = """\
learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}
warmup_ratio: {type: float, low: 0.0, high: 0.3, step: 0.1}
train_batch_size: {type: choice, values: [4, 8, 16]}
gradient_accumulation_steps: {type: int, low: 1, high: 4}
weight_decay: 1e-2
try_first:
  - {learning_rate: 1e-4, warmup_ratio: 0.1, train_batch_size: 8, gradient_accumulation_steps: 1}
scheduler: {reduction_factor: 2, rungs: 4, min_trials_per_rung: 2}
searcher: {startup_trials: 5}
"""
SECTIONS = """\
fixed: {weight_decay: "1e-2"}
searcher: {startup_trials: 5}
try_first:
  - {train_batch_size: 8, warmup_ratio: 0.1, learning_rate: "1e-4", gradient_accumulation_steps: 1}
scheduler: {reduction_factor: 2, rungs: 4, min_trials_per_rung: 2}
parameters:
  learning_rate: {type: float, low: "1e-5", high: "1e-3", log: true}
  warmup_ratio: {type: float, low: 0, high: 0.3, step: 0.1}
  train_batch_size: {type: choice, values: [4, "8", 16.0]}
  gradient_accumulation_steps: {type: int, low: 1, high: 4}
"""


@pytest.mark.parametrize("text", [FLAT, SECTIONS])
def test_both_forms_give_the_same_space(load: Load, text: str) -> None:
    space = load(text)
    assert space.parameters == {
        "learning_rate": FloatParameter(1e-5, 1e-3, log=True),
        "warmup_ratio": FloatParameter(0.0, 0.3, step=0.1),
        "train_batch_size": ChoiceParameter((4, 8, 16)),
        "gradient_accumulation_steps": IntParameter(1, 4),
    }
    assert [type(value) for value in space.parameters["train_batch_size"].values] == [int] * 3  # type: ignore[union-attr]
    assert space.fixed == {"weight_decay": 0.01}
    point = {
        **{"learning_rate": 1e-4, "warmup_ratio": 0.1},
        **{"train_batch_size": 8, "gradient_accumulation_steps": 1},
    }
    assert space.try_first == [point]
    assert space.scheduler == SchedulerSettings(2, 4, 2)
    assert space.searcher == SearcherSettings(5)
    assert space.source_text == text
    assert space.path.name == "s.yaml"


@pytest.mark.parametrize("name", packaged_spaces())
def test_packaged_spaces_load_and_survive_being_written(name: str, load: Load) -> None:
    space = load_space(name)
    assert space.path.read_text(encoding="utf-8").startswith("# ")
    for default in (1e-4, 1.25e-5):  # the embedded demo, whisper-small
        for point in [*space.resolve(default).try_first]:
            TrainConfig.from_dict({**space.fixed, **point})
    for version in (space, space.resolve(1.25e-5), space.resolve(1.25e-5).with_recipe(1.25e-5)):
        again = load(yaml.safe_dump(version.to_dict(), sort_keys=False))
        assert again.to_dict() == version.to_dict()
        assert again.ranges == version.ranges


def test_a_path_goes_before_a_packaged_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr_batch").mkdir()  # a folder of that name is not in the way
    assert len(load_space("lr_batch").parameters) == 4
    Path("lr_batch.yaml").write_text(LR, encoding="utf-8")
    assert len(load_space("lr_batch.yaml").parameters) == 1
    Path("sub").mkdir()
    Path("sub/mine.yaml").write_text(LR, encoding="utf-8")
    assert len(load_space("sub/mine").parameters) == 1


def test_files_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(SpaceError, match="cannot be read: not UTF-8 text"):
        load_space(str(tmp_path / "s.yaml"))


def test_every_field_is_either_searchable_or_has_a_reason(load: Load) -> None:
    fields = set(TrainConfig.__dataclass_fields__)
    assert set(NOT_SEARCHABLE) | set(SET_BY_SEARCH) <= fields
    for name in sorted(fields - set(NOT_SEARCHABLE) - set(SET_BY_SEARCH)):
        if (
            name.startswith(("mask_", "augment_", "lora_")) or name == "decay_ratio"
        ):  # of no effect where another setting is off
            continue
        default = getattr(TrainConfig, name)
        written = yaml.safe_dump({"type": "choice", "values": [default]}, default_flow_style=True)
        assert load(f"{name}: {written}").parameters[name] == ChoiceParameter((default,))
    for name in sorted(fields - set(SET_BY_SEARCH)):
        value = yaml.safe_dump({name: getattr(TrainConfig, name)})
        assert name == "learning_rate" or load(LR + value).fixed == {name: getattr(TrainConfig, name)}


def test_text_fields_take_what_is_written(load: Load) -> None:
    space = load(LR + "language: no\ndata_config: 11\ndata: on\nrow_filter: 2024-01-01\n")
    assert space.fixed == {"language": "no", "data_config": "11", "data": "on", "row_filter": "2024-01-01"}


def test_an_override_takes_a_parameter_out_of_the_search(load: Load) -> None:
    text = FLAT.replace("scheduler:", "  - {learning_rate: 2e-4, warmup_ratio: 0.1}\nscheduler:")
    assert len(load(text).try_first) == 2
    space = load(text, {"learning_rate": "3e-4", "weight_decay": 0.5, "seed": 4})
    assert "learning_rate" not in space.parameters
    assert space.fixed == {"weight_decay": 0.5, "learning_rate": 3e-4, "seed": 4}
    assert space.try_first == [{"warmup_ratio": 0.1, "train_batch_size": 8, "gradient_accumulation_steps": 1}]


def test_one_budget_replaces_the_other(load: Load) -> None:
    assert load(LR + "max_steps: 5", {"epochs": 2}).fixed == {"epochs": 2.0}
    assert load(LR + "epochs: 5", {"max_steps": 2}).fixed == {"max_steps": 2}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"learning_rate": 1e-4}, "s.yaml:1: every searched parameter is fixed by an option; at least one"),
        ({"lr": 1}, "lr=1: unknown setting 'lr'; did you mean learning_rate?"),
        ({"evaluate_at": "1"}, "evaluate_at: is set by the search; set scheduler"),
        ({"epochs": 1, "max_steps": 1}, "epochs and max_steps: only one budget can be given; remove one"),
    ],
)
def test_wrong_overrides(load: Load, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError) as error:
        load(LR, overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_override_that_switches_a_searched_parameter_off() -> None:
    told = r":\d+: warmup_ratio: is searched without effect: warmup_steps overrides it; remove one, or fix"
    with pytest.raises(SpaceError, match=told):
        load_space("lr_batch", {"warmup_steps": 10})
    space = load_space("lr_batch", {"warmup_steps": 10, "warmup_ratio": 0})
    assert space.fixed == {"warmup_steps": 10, "warmup_ratio": 0.0}


def test_parse_set() -> None:
    items = ["train_batch_size=4", "row_filter=language=en", "warmup_steps=null", "spec_augment=true"]
    assert parse_set([*items, "learning_rate=1e-4", "language=norwegian", "data=x"]) == {
        **{"train_batch_size": 4, "row_filter": "language=en", "warmup_steps": None, "spec_augment": True},
        **{"learning_rate": 1e-4, "language": "no", "data": "x"},
    }
    assert parse_set(["learning_rate=auto"]) == {"learning_rate": None}
    assert parse_set([]) == {}


def test_parse_set_tells_all_mistakes_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse_set(
            ["epochs", "=3", "lr=1", "startup_trials=2", "seed=1", "seed=2", "dropout=null", "max_steps=1.5"]
        )
    assert str(error.value).splitlines() == [
        "--set epochs: must be KEY=VALUE, as in learning_rate=1e-4",
        "--set =3: must be KEY=VALUE, as in learning_rate=1e-4",
        "--set seed=2: seed is given twice; remove one",
        "--set lr=1: unknown setting 'lr'; did you mean learning_rate?",
        "--set startup_trials=2: is a setting of a search; write it in a space file, under searcher:",
        "--set dropout='null': must be a number from 0 to 0.9",
        "--set max_steps='1.5': must be a whole number of at least 1 or null",
    ]


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


def test_the_usual_settings_are_tried_before_the_points_given(load: Load) -> None:
    text = "train_batch_size: {type: choice, values: [6, 32]}\nwarmup_ratio: {type: float, low: 0.2, high: 0.3}\n"
    text += "group_by_length: {type: choice, values: [true, false]}\n"
    text += "learning_rate: {type: float, low: auto, high: auto, log: true}\n"
    first = {"train_batch_size": 32, "warmup_ratio": 0.25, "group_by_length": True, "learning_rate": 1e-5}
    usual = {"train_batch_size": 6, "warmup_ratio": 0.2, "group_by_length": False, "learning_rate": 2e-5}
    space = load(text + f"try_first: [{json.dumps(first)}]").resolve(2e-5)
    assert space.try_first == [first]
    assert space.with_recipe(2e-5).try_first == [usual, first]
    assert space.with_recipe(2e-5).with_recipe(2e-5).try_first == [usual, first]
    again = load(text + f"try_first: [{json.dumps(first)}, {json.dumps(usual)}]").resolve(2e-5)
    assert again.with_recipe(2e-5).try_first == [usual, first]
