"""The public face: the same options, checks and errors as the command, and results as typed values."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tune.cli import main
from tune.commands.search import search_parser
from tune.commands.train import train_parser
from tune_whisper import ConfigError, ExperimentError, SpaceError, search, train


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'ray', 'transformers', 'mlflow', 'optuna', 'datasets', 'numpy'}"
    code = f"import sys, tune_whisper; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("function", "parser", "command_only", "named_otherwise"),
    [
        (search, search_parser, {"dry_run", "measure"}, {}),
        (train, train_parser, set(), {"origin": "from_experiment"}),
    ],
)
def test_every_option_is_a_keyword(
    function: Callable[..., Any], parser: Any, command_only: set[str], named_otherwise: dict[str, str]
) -> None:
    options = {
        action.dest for action in parser()._actions if action.dest not in ("help", "version")
    } - command_only
    renamed = {"set": "settings", **named_otherwise}
    keywords = set(inspect.signature(function).parameters) - {"quiet"}
    assert keywords == {renamed.get(name, name) for name in options}


@pytest.mark.parametrize(
    ("function", "options", "words", "kind"),
    [
        (search, {"space": "lr_bach"}, ["--space", "lr_bach"], SpaceError),
        (
            search,
            {"space": "lr_batch", "settings": {"max_steps": None, "spec_augment": True, "dropout": 2}},
            ["--space", "lr_batch", "--set=max_steps=null", "--set=spec_augment=true", "--set=dropout=2"],
            ConfigError,
        ),
        (search, {"space": "lr_batch", "trials": "many"}, ["--space=lr_batch", "--trials=many"], ConfigError),
        (search, {"resume": "nothing"}, ["--resume", "nothing"], ExperimentError),
        (train, {"trial": "001"}, ["train", "--trial", "001"], ConfigError),
        (
            train,
            {"from_experiment": "x", "track": ["mlflow", "tensorboard"], "trial": "001"},
            ["train", "--from", "x", "--track", "mlflow", "tensorboard", "--trial", "001"],
            ExperimentError,
        ),
    ],
)
def test_mistakes_are_raised_with_the_line_that_the_command_prints(
    function: Callable[..., Any],
    options: dict[str, Any],
    words: list[str],
    kind: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr().err
    with pytest.raises(kind) as error:
        function(**options)
    assert "".join(f"error: {line}\n" for line in str(error.value).splitlines()) == printed
    assert type(error.value) is kind


def test_a_space_of_other_than_plain_values() -> None:
    with pytest.raises(SpaceError, match="space: must hold plain numbers"):
        search({"learning_rate": {"type": "choice", "values": list(np.array([1e-5, 1e-4]))}})
