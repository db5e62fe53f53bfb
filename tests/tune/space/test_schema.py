"""`tune-whisper schema`: packaged spaces and all that the reader takes are valid, its mistakes are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tune.cli import main
from tune.space.space import load_space, packaged_spaces

SPACES = sorted((Path(__file__).resolve().parents[3] / "search_spaces").glob("*.yaml"))


class EditorLoader(yaml.SafeLoader):
    """YAML 1.2 as editors read it: `1e-5` is a number, `no` is a text."""


EditorLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in found if not tag.endswith((":bool", ":float"))]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
EditorLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))
EditorLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("schema") / "space.schema.json"
    assert main(["schema", "--output", str(path)]) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def problems(schema: Any, text: str) -> list[str]:
    return [error.message for error in schema.iter_errors(yaml.load(text, EditorLoader))]


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_packaged_spaces_are_valid(schema: Any, path: Path) -> None:
    assert path.stem in packaged_spaces()
    assert problems(schema, path.read_text(encoding="utf-8")) == []
    assert problems(schema, yaml.safe_dump(load_space(path.stem).to_dict())) == []


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: {type: float, low: auto, high: 1e-3, log: true, prior: auto}",
        "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true, prior: {mean: 1e-4, spread: 3}}",
        "dropout:\n- {type: float, low: 0, high: 0.1, when: {spec_augment: true, train_batch_size: [4, 8]}}\n"
        "- {type: float, low: 0, high: 0.5}",
        "fixed: {language: no, warmup_steps: null}\nspace: {data_config: 11, dropout: {type: choice, values: [0]}}",
        "train_batch_size: {type: int, low: 1, high: 9, step: 2}\ntry_first: [{train_batch_size: 3}]",
        "fixed:\nspace: {learning_rate: null, dropout: {type: choice, values: [0]}}",
        "sources:\n  fleurs: {weight: 0.5}\n  own: {weight: {type: float, low: 0.25, high: 4, log: true}}",
        "audio_window: auto\nscheduler: {rungs: 3}\nsearcher: {multivariate: false, gp_trials: 0}",
    ],
)
def test_the_grammar_is_valid(schema: Any, text: str) -> None:
    assert problems(schema, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "learnin_rate: 1",
        "dropout: 2",
        "dropout: [0, 0.1]",
        "precision: fp8",
        "evaluate_at: [1]",
        "model: {type: choice, values: [tiny, base]}",
        "epochs: 0",
        "dropout: {type: float, low: 0}",
        "dropout: {type: float, low: 0, high: 1.5}",
        "dropout: {type: float, low: 0, high: 0.1, log: true}",
        "dropout: {type: float, low: 0.1, high: 0.2, log: true, step: 0.1}",
        "dropout: {type: float, min: 0, high: 0.1}",
        "dropout: {type: float, low: auto, high: 0.1}",
        "dropout: {type: choice, values: []}",
        "dropout: {type: choice, values: [0.1], prior: 0.1}",
        "dropout: {type: float, low: 0, high: 0.1, prior: {sd: 1}}",
        "dropout: {type: float, low: 0, high: 0.1, when: {spec_augmet: true}}",
        "dropout: {type: float, low: 0, high: 0.1, when: {spec_augment: 1}}",
        "dropout: {type: float, low: 0, high: 0.1, when: {learning_rate: 1e-5}}",
        "dropout: {type: float, low: 0.1, high: 0.2, log: true, prior: {mean: 0.1, spread: 0.5}}",
        "fixed: {dropout: [{type: float, low: 0, high: 0.1}]}",
        "train_batch_size: {type: float, low: 1, high: 9}",
        "spec_augment: {type: int, low: 0, high: 1}",
        "try_first: [{data: demo}]",
        "scheduler: {rungs: 0}",
        "searcher: {startup: 3}",
        "fixed: {dropout: {type: float, low: 0, high: 0.1}}",
        "sources: {fleurs: {weight: -1}}",
        "sources: {fleurs: {data: x}}",
    ],
)
def test_mistakes_are_not(schema: Any, text: str) -> None:
    assert problems(schema, text) != []


def test_it_says_what_each_setting_is(schema: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema.schema
    assert printed["properties"]["weight_decay"]["description"] == "Decoupled weight decay."
    assert printed["properties"]["searcher"]["properties"]["gp_trials"]["maximum"] == 200
