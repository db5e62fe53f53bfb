"""The search space: what a file may say, what each mistake is answered with, and what Optuna then samples."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.config import TrainConfig
from tune.errors import ConfigError, SpaceError
from tune.parameters import NOT_SEARCHABLE, SET_BY_SEARCH
from tune.search_space import (
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    SchedulerSettings,
    SearcherSettings,
    SearchSpace,
    load_space,
    packaged_spaces,
    parse_set,
)

LR = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
FLAT = """\
learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}
warmup_ratio: {type: float, low: 0.0, high: 0.3, step: 0.1}
train_batch_size: {type: choice, values: [4, 8, 16]}
gradient_accumulation_steps: {type: int, low: 1, high: 4}
weight_decay: 1e-2
try_first:
  - {learning_rate: 1e-4, warmup_ratio: 0.1, train_batch_size: 8, gradient_accumulation_steps: 1}
scheduler: {reduction_factor: 2, rungs: 4, min_trials_per_rung: 2}
searcher: {startup_trials: 5, multivariate: false, constant_liar: false, ei_candidates: 12}
"""
SECTIONS = """\
fixed: {weight_decay: "1e-2"}
searcher: {startup_trials: 5, multivariate: false, constant_liar: false, ei_candidates: 12}
points_to_try:
  - {train_batch_size: 8, warmup_ratio: 0.1, learning_rate: "1e-4", gradient_accumulation_steps: 1}
scheduler: {reduction_factor: 2, rungs: 4, min_trials_per_rung: 2}
space:
  learning_rate: {type: float, low: "1e-5", high: "1e-3", log: true}
  warmup_ratio: {type: float, low: 0, high: 0.3, step: 0.1}
  train_batch_size: {type: choice, values: [4, "8", 16.0]}
  gradient_accumulation_steps: {type: int, low: 1, high: 4}
"""

Load = Callable[..., SearchSpace]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write a space file and load it."""

    def write_and_load(text: str, overrides: dict[str, Any] | None = None) -> SearchSpace:
        path = tmp_path / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return load_space(str(path), overrides)

    return write_and_load


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
    assert space.searcher == SearcherSettings(5, False, False, 12)
    assert space.source_text == text
    assert space.path.name == "s.yaml"


@pytest.mark.parametrize("name", packaged_spaces())
def test_packaged_spaces_load_and_survive_being_written(name: str, load: Load) -> None:
    space = load_space(name)
    assert space.path.read_text(encoding="utf-8").startswith("# ")
    for default in (1e-3, 1.25e-5):  # the embedded demo, whisper-small
        for point in [*space.resolve(default).try_first]:
            TrainConfig.from_dict({**space.fixed, **point})
    for version in (space, space.resolve(1.25e-5)):
        again = load(yaml.safe_dump(version.to_dict(), sort_keys=False))
        assert again.to_dict() == version.to_dict()


def test_packaged_names() -> None:
    assert packaged_spaces() == ["large_model", "lr_batch", "regularisation"]
    assert load_space("lr_batch").path == load_space("lr_batch.yaml").path
    searched = ["learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps"]
    assert list(load_space("lr_batch").parameters) == searched


def test_a_path_goes_before_a_packaged_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr_batch").mkdir()  # a folder of that name is not in the way
    assert len(load_space("lr_batch").parameters) == 4
    Path("lr_batch.yaml").write_text(LR, encoding="utf-8")
    assert len(load_space("lr_batch.yaml").parameters) == 1
    Path("sub").mkdir()
    Path("sub/mine.yaml").write_text(LR, encoding="utf-8")
    assert len(load_space("sub/mine").parameters) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "lr_bach",
            "lr_bach: no such file; did you mean lr_batch? packaged spaces are large_model, lr_batch, ",
        ),
        ("regularization.yaml", "did you mean regularisation?"),
        ("no/such/lr_batch.yaml", "no/such/lr_batch.yaml: no such file; did you mean lr_batch? packaged"),
        ("xyzzy", "xyzzy: no such file; packaged spaces are large_model, lr_batch, regularisation"),
        ("", "no such file|is a folder"),
        ("/", "is a folder, not a file"),
    ],
)
def test_missing_files_name_the_packaged_spaces(name: str, message: str) -> None:
    with pytest.raises(SpaceError) as error:
        load_space(name)
    assert re.search(message.replace("?", r"\?"), str(error.value))
    assert "\n" not in str(error.value)


def test_files_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(SpaceError, match="cannot be read: not text in UTF-8"):
        load_space(str(tmp_path / "s.yaml"))


BAD_FILES = {
    # The file as a whole
    "broken": ("a: [1\nb: 2", "2: not valid YAML: expected ',' or ']', but got ':'"),
    "broken2": ("learning_rate: {type: float", "1: not valid YAML"),
    "tab": (LR + "\tx: 1", "2: not valid YAML: found character '\\t'"),
    "control": (LR + "weight_decay: \x01", r"2: not valid YAML: the character '\x01' is not allowed"),
    "two": (LR + "---\n" + LR, "2: not valid YAML: but found another document"),
    "empty": ("# nothing\n", "1: the file is empty; name at least one parameter"),
    "list": ("- 1\n", "1: the top level must be a mapping"),
    "text": ("hello\n", "1: the top level must be a mapping"),
    "no search": ("weight_decay: 0.1\n", "1: nothing is searched; at least one setting needs a range"),
    "section": ("fixed: 3\n" + LR, "1: fixed: must be a mapping of settings"),
    # Keys
    "unknown": (
        "learnin_rate: {type: float, low: 1e-5, high: 1e-3}",
        "learnin_rate: unknown setting; did you",
    ),
    "unknown2": (LR + "batch_size: 3", "2: batch_size: unknown setting; did you mean train_batch_size?"),
    "unknown3": (LR + "schedular: {rungs: 3}", "2: schedular: unknown setting; did you mean scheduler?"),
    "unknown4": (LR + "xyzzy: 3", "2: xyzzy: unknown setting; see the fields of TrainConfig"),
    "twice": (LR + "dropout: 0.1\n" + LR, "3: learning_rate: given twice, first in line 1; remove one"),
    "twice2": (LR + "fixed: {learning_rate: 1e-3}", "2: learning_rate: given twice, first in line 1"),
    "twice3": ("dropout: {type: float, type: int, low: 0, high: 0.1}", "1: dropout: type: given twice"),
    "key": ("{[1]: 2}", "1: a key must be a name"),
    "list value": (
        LR + "dropout: [0, 0.1]",
        "2: dropout: a list; to choose from it, write {type: choice, values",
    ),
    "fixed range": (LR + "fixed:\n  dropout: {type: float}", "3: fixed: dropout: must be a plain value"),
    "evaluate_at": (LR + "evaluate_at: [1]", "2: evaluate_at: is set by the search; set scheduler: {rungs"),
    # Fixed values
    "fixed type": (LR + "weight_decay: high", "2: weight_decay='high': must be a number of at least 0"),
    "fixed choice": (LR + "precision: fp8", "2: precision='fp8': must be one of auto, fp32, bf16, fp16"),
    "fixed bool": (LR + "spec_augment: 1", "2: spec_augment=1: must be true or false"),
    "fixed range2": (LR + "dropout: 2", "2: dropout=2: must be a number from 0 to 0.9"),
    "fixed null": (LR + "dropout:", "2: dropout=None: must be a number from 0 to 0.9"),
    "huge": (LR + f"seed: 1{'0' * 400}", "must be a whole number from 0 to"),
    "language": (
        LR + "language: belorussian",
        "2: language='belorussian': Whisper does not know this language",
    ),
    "budgets": (LR + "epochs: 3\nmax_steps: 5", "2: epochs and max_steps: only one budget can be given"),
    # Ranges
    "no type": (
        "dropout: {low: 0, high: 0.1}",
        "1: dropout: type is missing; add type: float, int or choice",
    ),
    "type": (
        "dropout: {type: flaot}",
        "1: dropout: type='flaot': must be float, int or choice; did you mean float?",
    ),
    "type2": ("dropout: {type: categorical}", "did you mean choice?"),
    "type3": ("dropout: {type: [float]}", "1: dropout: type=['...']: must be float, int or choice"),
    "sub key": (
        "dropout: {type: float, lo: 0, low: 0, high: 0.1}",
        "1: dropout: unknown key 'lo'; did you mean low?",
    ),
    "sub key2": ("dropout: {type: float, min: 0, high: 0.1}", "unknown key 'min'; did you mean low?"),
    "sub key3": (
        "dropout: {type: choice, values: [0], log: true}",
        "unknown key 'log'; choice has type, values",
    ),
    "no low": ("dropout:\n  type: float\n  high: 0.1", "1: dropout: low is missing; add low: and a number"),
    "no high": ("dropout: {type: float, low: 0}", "1: dropout: high is missing"),
    "null": ("dropout:\n  type: float\n  low:\n  high: 0.1", "3: dropout: low is missing"),
    "bound": (
        "dropout:\n  type: float\n  low: 0\n  high: most",
        "4: dropout: high='most': must be a number from 0",
    ),
    "bound2": (
        "dropout: {type: float, low: 0, high: 1.5}",
        "1: dropout: high=1.5: must be a number from 0 to 0.9",
    ),
    "bound3": ("dropout: {type: float, low: true, high: 0.1}", "1: dropout: low=True: must be a number"),
    "bound4": ("learning_rate: {type: float, low: 0, high: 1e-3}", "low=0: must be a number above 0"),
    "bound5": ("learning_rate: {type: float, low: 1e-5, high: .inf}", "high=inf: must be a number above 0"),
    "bound6": ("dropout: {type: float, low: [0], high: 0.1}", "1: dropout: low=['...']: must be a number"),
    "reversed": (
        "learning_rate: {type: float, low: 1e-3, high: 1e-5}",
        "low=0.001 is above high=1e-05; swap them",
    ),
    "equal": (
        "dropout: {type: float, low: 0.1, high: 0.1}",
        "low and high are both 0.1: nothing to search; write",
    ),
    "log zero": (
        "dropout: {type: float, low: 0, high: 0.1, log: true}",
        "log: true needs low above 0, got low=0",
    ),
    "log zero int": ("warmup_steps: {type: int, low: 0, high: 9, log: true}", "log: true needs low above 0"),
    "log type": (
        "dropout: {type: float, low: 0.1, high: 0.2, log: 10}",
        "1: dropout: log=10: must be true or false",
    ),
    "log step": (
        "dropout: {type: float, low: 0.1, high: 0.2, log: true, step: 0.05}",
        "1: dropout: log and step cannot be combined; remove one of them",
    ),
    "log step int": ("warmup_steps: {type: int, low: 1, high: 9, log: true, step: 2}", "cannot be combined"),
    "step zero": ("dropout: {type: float, low: 0, high: 0.1, step: 0}", "1: dropout: step=0 must be above 0"),
    "step below": ("warmup_steps: {type: int, low: 0, high: 9, step: -1}", "step=-1 must be above 0"),
    "step wide": (
        "dropout: {type: float, low: 0, high: 0.1, step: 1}",
        "step=1 is larger than the range from 0 to",
    ),
    "step text": ("dropout: {type: float, low: 0, high: 0.1, step: x}", "step='x': must be a number above 0"),
    "step huge": (
        f"dropout: {{type: float, low: 0, high: 0.1, step: 1{'0' * 400}}}",
        "must be a number above 0",
    ),
    "step part": (
        "warmup_steps: {type: int, low: 0, high: 9, step: 1.5}",
        "step=1.5: must be a whole number of at",
    ),
    "float for int": (
        "train_batch_size: {type: float, low: 1, high: 9}",
        "write type: int instead of type: float",
    ),
    "part for int": (
        "train_batch_size: {type: int, low: 1.5, high: 9}",
        "low=1.5: must be a whole number of at",
    ),
    "part for int2": (
        "max_grad_norm: {type: int, low: 0.5, high: 2}",
        "low=0.5: type: int takes whole numbers only",
    ),
    "range for bool": ("spec_augment: {type: int, low: 0, high: 1}", "{type: choice, values: [true, false]}"),
    "range for text": (
        "precision: {type: int, low: 0, high: 1}",
        "precision: has no range; write {type: choice",
    ),
    "auto": (
        "dropout: {type: float, low: auto, high: 0.1}",
        "low: auto is known for a learning_rate of type",
    ),
    # Choices
    "no values": ("dropout: {type: choice}", "1: dropout: values is missing; add values: [...]"),
    "empty values": ("dropout: {type: choice, values: []}", "1: dropout: values is empty"),
    "values": ("dropout: {type: choice, values: 0.1}", "1: dropout: values must be a list"),
    "double": ("dropout: {type: choice, values: [0.1, 1e-1, 0.2]}", "values holds 0.1 more than once"),
    "value": (
        "train_batch_size:\n  type: choice\n  values:\n  - 4\n  - x",
        "5: train_batch_size: values: 'x': must",
    ),
    "value2": (
        "scheduler_type: {type: choice, values: [linear, sine]}",
        "values: 'sine': must be one of linear",
    ),
    # Points to try first
    "points": (LR + "try_first: 3", "2: try_first: must be a list of points"),
    "point": (LR + "try_first: [3]", "2: try_first: point 1: must be a mapping"),
    "point key": (
        LR + "try_first:\n- {learning_rat: 1e-4}",
        "learning_rat: is not searched in this file; did you",
    ),
    "point key2": (
        LR + "try_first:\n- {dropout: 0.1}",
        "3: try_first: point 1: dropout: is not searched in this",
    ),
    "point fixed": (
        LR + "dropout: 0\ntry_first: [{dropout: 0.1}]",
        "dropout: is fixed in line 2; remove it here",
    ),
    "point value": (
        LR + "try_first:\n- {learning_rate: high}",
        "learning_rate='high': must be a number above 0",
    ),
    "point outside": (
        LR + "try_first:\n- {}\n- {learning_rate: 1}",
        "4: try_first: point 2: learning_rate=1: outside the searched range (1e-05 to 0.001, log scale)",
    ),
    "point grid": (
        "dropout: {type: float, low: 0, high: 0.2, step: 0.1}\ntry_first: [{dropout: 0.15}]",
        "2: try_first: point 1: dropout=0.15: outside the searched range (0 to 0.2, in steps of 0.1)",
    ),
    "point missing": (
        LR + "train_batch_size: {type: choice, values: [32, 64]}\ntry_first: [{learning_rate: 1e-4}]",
        "3: try_first: point 1: train_batch_size is missing, and the usual 8 is out of range; add train_",
    ),
    "points twice": (LR + "try_first: []\npoints: []", "3: points: points to try first are given twice"),
    # Settings of scheduler and searcher
    "scheduler": (
        LR + "scheduler: asha",
        "2: scheduler: must be a mapping with some of reduction_factor, rungs",
    ),
    "scheduler key": (
        LR + "scheduler: {rung: 3}",
        "2: scheduler: unknown setting 'rung'; did you mean rungs?",
    ),
    "scheduler key2": (LR + "scheduler: {x: 3}", "unknown setting 'x'; settings are reduction_factor, rungs"),
    "factor": (
        LR + "scheduler: {reduction_factor: 1}",
        "reduction_factor=1: must be a number from 1.1 to 100",
    ),
    "rungs": (LR + "scheduler: {rungs: 2.5}", "rungs=2.5: must be a whole number from 1 to 10"),
    "rungs2": (LR + "scheduler: {rungs: many}", "rungs='many': must be a whole number from 1 to 10"),
    "rungs3": (LR + "scheduler: {rungs: [1]}", "rungs=['...']: must be a whole number from 1 to 10"),
    "startup": (LR + "searcher: {startup_trials: 0}", "startup_trials=0: must be a whole number from 1 to"),
    "multivariate": (LR + "searcher: {multivariate: 1}", "multivariate=1: must be true or false"),
    # Settings that do not fit each other
    "warmup": (
        "warmup_ratio: {type: float, low: 0, high: 0.1}\nwarmup_steps: 100",
        "1: warmup_ratio: is searched without effect: warmup_steps goes before it; remove one",
    ),
    "constant": (
        "warmup_ratio: {type: float, low: 0, high: 0.1}\nscheduler_type: constant",
        "1: warmup_ratio: is searched without effect: scheduler_type=constant has no warmup",
    ),
    "mask": (
        LR + "mask_time_prob: {type: float, low: 0, high: 1}",
        "2: mask_time_prob: is searched without effect",
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_each_mistake_gets_one_line(load: Load, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpaceError) as error:
        load(text)
    lines = str(error.value).splitlines()
    assert len(lines) == 1, lines
    assert re.match(rf"{re.escape(str(tmp_path))}/s\.yaml:\d+: \S", lines[0])
    assert message in lines[0].removeprefix(f"{tmp_path}/s.yaml:")


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(load: Load, tmp_path: Path) -> None:
    text = """\
learning_rate: {type: float, low: 1e-3, high: 1e-5, log: ye}
warmup: 0.1
train_batch_size: {type: float, low: 4, high: 8}
dropout: {type: float, lo: 0, high: most}
try_first: [{learning_rate: x, seed: 3}]
weight_decay: -1
"""
    with pytest.raises(SpaceError) as error:
        load(text, {"epoch": 3, "seed": "x"})
    found = [line.removeprefix(f"{tmp_path}/s.yaml:") for line in str(error.value).splitlines()]
    assert [line.split(":")[0] for line in found[:8]] == ["1", "1", "2", "3", "4", "4", "5", "5"]
    assert found[8].startswith("6: weight_decay=-1: must be a number of at least 0")
    assert found[9:] == [
        "epoch=3: unknown setting 'epoch'; did you mean epochs?",
        "seed='x': must be a whole number from 0 to 4294967295",
    ]


@pytest.mark.parametrize("name", sorted({*NOT_SEARCHABLE}))
def test_what_makes_trials_incomparable_cannot_be_searched(load: Load, name: str) -> None:
    with pytest.raises(SpaceError, match=f"s.yaml:2: {name}: can be fixed but not searched: "):
        load(LR + f"{name}: {{type: choice, values: [1, 2]}}")


def test_every_field_is_either_searchable_or_has_a_reason(load: Load) -> None:
    fields = set(TrainConfig.__dataclass_fields__)
    assert set(NOT_SEARCHABLE) | set(SET_BY_SEARCH) <= fields
    for name in sorted(
        fields - set(NOT_SEARCHABLE) - set(SET_BY_SEARCH) - {"mask_time_prob", "mask_feature_prob"}
    ):
        default = getattr(TrainConfig, name)
        written = yaml.safe_dump({"type": "choice", "values": [default]}, default_flow_style=True)
        assert load(f"{name}: {written}").parameters[name] == ChoiceParameter((default,))
    for name in sorted(fields - set(SET_BY_SEARCH)):
        value = yaml.safe_dump({name: getattr(TrainConfig, name)})
        assert name == "learning_rate" or load(LR + value).fixed == {name: getattr(TrainConfig, name)}


def test_text_fields_take_what_is_written(load: Load) -> None:
    space = load(LR + "language: no\ndata_config: 11\ndata: on\nrow_filter: 2024-01-01\n")
    assert space.fixed == {"language": "no", "data_config": "11", "data": "on", "row_filter": "2024-01-01"}


def test_a_value_that_refers_to_itself_is_a_problem_like_any_other(load: Load) -> None:
    with pytest.raises(SpaceError, match="must be a number"):
        load("dropout: {type: choice, values: &a [*a]}")


# --- overrides


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
        (
            {"epochs": 1, "max_steps": 1},
            "epochs and max_steps: only one budget can be given; remove one",
        ),
    ],
)
def test_wrong_overrides(load: Load, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError) as error:
        load(LR, overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_override_that_switches_a_searched_parameter_off(load: Load) -> None:
    with pytest.raises(SpaceError, match="warmup_ratio: is searched without effect"):
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
        parse_set(["epochs", "=3", "lr=1", "seed=1", "seed=2", "dropout=null", "max_steps=1.5"])
    assert str(error.value).splitlines() == [
        "--set epochs: must be KEY=VALUE, as in learning_rate=1e-4",
        "--set =3: must be KEY=VALUE, as in learning_rate=1e-4",
        "--set seed=2: seed is given twice; remove one",
        "--set lr=1: unknown setting 'lr'; did you mean learning_rate?",
        "--set dropout='null': must be a number from 0 to 0.9",
        "--set max_steps='1.5': must be a whole number of at least 1 or null",
    ]


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


# --- Optuna


SAMPLED = """\
learning_rate: {type: float, low: 1e-6, high: 1e-2, log: true}
weight_decay: {type: float, low: 0.05, high: 0.32, step: 0.1}
warmup_steps: {type: int, low: 1, high: 1000, log: true}
train_batch_size: {type: int, low: 3, high: 8, step: 2}
gradient_accumulation_steps: {type: int, low: 1, high: 3}
max_grad_norm: {type: int, low: 0, high: 2}
freeze_encoder: {type: choice, values: [true, false]}
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

    usual = {"gradient_accumulation_steps": 1, "max_grad_norm": 1, "freeze_encoder": False}
    given = {"learning_rate": 1e-4, "warmup_steps": 1000, "train_batch_size": 7, "weight_decay": 0.15}
    assert samples[0] == {**usual, **given, "scheduler_type": "linear"}
    for sample in samples:
        TrainConfig.from_dict(sample)
        assert all(parameter.contains(sample[name]) for name, parameter in space.parameters.items())
        assert type(sample["train_batch_size"]) is int
        assert type(sample["freeze_encoder"]) is bool
    seen = {name: {sample[name] for sample in samples[1:]} for name in space.parameters}
    assert seen["gradient_accumulation_steps"] == {1, 2, 3}
    assert seen["max_grad_norm"] == {0, 1, 2}
    assert seen["train_batch_size"] == {3, 5, 7}
    assert sorted(seen["weight_decay"]) == pytest.approx([0.05, 0.15, 0.25])
    assert seen["freeze_encoder"] == {True, False}
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


def test_defaults_of_the_searcher_are_the_ones_described() -> None:
    assert SearcherSettings() == SearcherSettings(10, True, True, 24)
    assert SchedulerSettings() == SchedulerSettings(3.0, 3, 3)
