"""The public face: the same options, checks and errors as the command, and results as typed values."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tune_whisper
from trainer.config import TrainConfig
from tune.cli import main
from tune.commands.search import search_parser
from tune.commands.train import train_parser
from tune_whisper import ConfigError, Experiment, ExperimentError, SpaceError, load_experiment, search, train
from tune_whisper.experiment import option_words

CONDITIONS = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True, "prior": 1e-3},
    "spec_augment": {"type": "choice", "values": [False, True]},
    "mask_time_prob": {"type": "float", "low": 0.02, "high": 0.2, "when": {"spec_augment": True}},
    "try_first": [{"spec_augment": True}],
    "scheduler": {"rungs": 2},
    "searcher": {"startup_trials": 2},
}
QUICK = {"max_train_clips": 48, "max_eval_clips": 12, "generation_max_length": 24}


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'ray', 'transformers', 'mlflow', 'optuna', 'datasets', 'numpy'}"
    code = f"import sys, tune_whisper; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_face_is_what_it_says() -> None:
    assert all(hasattr(tune_whisper, name) for name in tune_whisper.__all__)
    assert (Path(tune_whisper.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    ("function", "parser", "command_only", "named_otherwise"),
    [
        (search, search_parser, {"dry_run"}, {}),
        (train, train_parser, set(), {"origin": "from_experiment"}),
    ],
)
def test_every_option_is_a_keyword(
    function: Callable[..., Any], parser: Any, command_only: set[str], named_otherwise: dict[str, str]
) -> None:
    options = {action.dest for action in parser()._actions if action.dest != "help"} - command_only
    renamed = {"set": "settings", **named_otherwise}
    keywords = set(inspect.signature(function).parameters) - {"quiet"}
    assert keywords == {renamed.get(name, name) for name in options}


def test_keywords_as_words() -> None:
    assert option_words(trials=4, model=None, take_over=False, deepspeed=True, gpus_per_trial=0.5) == [
        "--trials=4", "--deepspeed", "--gpus-per-trial=0.5",
    ]  # fmt: skip
    assert option_words(track="tensorboard") == ["--track", "tensorboard"]
    settings = {"warmup_steps": None, "spec_augment": True, "dropout": 1e-05, "row_filter": "a=b"}
    assert option_words(settings=settings, track=["mlflow", "tensorboard"], from_experiment="x") == [
        *(
            "--set=warmup_steps=null",
            "--set=spec_augment=true",
            "--set=dropout=1e-05",
            "--set=row_filter=a=b",
        ),
        *("--track", "mlflow", "tensorboard", "--from=x"),
    ]


@pytest.mark.parametrize(
    ("function", "options", "words", "kind"),
    [
        (search, {"space": "lr_bach"}, ["--space", "lr_bach"], SpaceError),
        (
            search,
            {"space": "lr_batch", "settings": {"warmup_steps": 10, "dropout": 2}},
            ["--space", "lr_batch", "--set", "warmup_steps=10", "--set", "dropout=2"],
            ConfigError,
        ),
        (search, {"space": "lr_batch", "trials": "many"}, ["--space=lr_batch", "--trials=many"], ConfigError),
        (search, {"resume": "nothing"}, ["--resume", "nothing"], ExperimentError),
        (train, {"trial": "001"}, ["train", "--trial", "001"], ConfigError),
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


def test_an_experiment_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no experiment 'x' in"):
        load_experiment("x", storage=tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("face")


@pytest.fixture(scope="module")
def found(folder: Path) -> Experiment:
    """A search of a space with a condition and a prior, really run."""
    return search(
        CONDITIONS,
        trials=4,
        epochs=2,
        finalists=0,
        experiment="small",
        storage=folder,
        settings=QUICK,
        quiet=True,
    )


@pytest.mark.slow
def test_a_search_and_what_it_found(found: Experiment, folder: Path) -> None:
    assert (found.status, found.name, len(found.trials)) == ("finished", "small", 4)
    assert found.best is not None
    assert found.wer == found.best.wer == min(trial.wer for trial in found.trials if trial.wer is not None)
    assert found.best.checkpoint is not None
    assert Path(found.best.checkpoint).is_dir()
    assert found.report is not None
    assert isinstance(found.config, TrainConfig)
    assert found.config.learning_rate == found.best.config["learning_rate"]
    assert found.config.max_train_clips == 48
    assert load_experiment("small", storage=folder) == found
    for trial in found.trials:
        assert ("mask_time_prob" in trial.config) is trial.config["spec_augment"]
    assert found.trials[0].config["spec_augment"] is True


@pytest.mark.slow
def test_every_store_has_a_setting_only_where_it_was_searched(found: Experiment) -> None:
    import mlflow
    import optuna
    from optuna.storages import JournalStorage, journal

    path = found.folder / "optuna_journal.log"
    study = optuna.load_study(
        study_name="small", storage=JournalStorage(journal.JournalFileBackend(str(path)))
    )
    masks = [trial.config.get("mask_time_prob") for trial in found.trials]
    assert [trial.params.get("mask_time_prob@spec_augment=true") for trial in study.trials] == masks
    runs = mlflow.MlflowClient(f"sqlite:///{found.folder / 'mlflow.db'}")
    for trial, row in zip(found.trials, found.results["trials"], strict=True):
        params = runs.get_run(row["mlflow_run_id"]).data.params
        assert ("mask_time_prob" in params) is ("mask_time_prob" in trial.config)


@pytest.mark.slow
def test_its_model_is_exported_and_trained_again(found: Experiment, folder: Path) -> None:
    model = found.export(folder / "model")
    assert {"config.json", "model.safetensors", "README.md"} <= {path.name for path in model.iterdir()}
    with pytest.raises(ExperimentError, match="exists"):
        found.export(folder / "model")
    again = train(from_experiment="small", storage=folder, name="again", quiet=True)
    assert (again.status, len(again.trials), again.folder) == ("finished", 1, folder / "again")
    assert found.best is not None
    assert again.config.learning_rate == found.best.config["learning_rate"]


def test_errors_are_the_commands_own() -> None:
    for name in tune_whisper.__all__:
        each = getattr(tune_whisper, name)
        if inspect.isclass(each) and issubclass(each, Exception):
            assert getattr(importlib.import_module("tune.util.errors"), name) is each
