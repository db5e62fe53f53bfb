"""`tune-whisper register`: an exported model into MLflow's registry, to be loaded by name and served."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.arguments import Parser, add_storage, add_tracking_uri

if TYPE_CHECKING:
    from rich.console import Console

    from tune.experiment_folder import ExperimentFolder
    from tune.registry.facts import ModelFacts
    from tune.registry.register import Registered
    from tune.storage import Storage

_EPILOG = """\
The model is logged onto the MLflow run of its trial, where the store has that, with the flavours "transformers" and
"python_function"; docs/mlflow.md shows how it is loaded, served and called.

example:
  tune-whisper export EXPERIMENT --output whisper-be
  tune-whisper register whisper-be --name whisper-be --alias champion
"""


def register_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper register`."""
    parser = Parser(
        prog="tune-whisper register",
        description="Log an exported model in MLflow and register it under a name and an alias.",
        epilog=_EPILOG,
    )
    parser.add_argument("model", type=Path, metavar="DIR", help="folder that tune-whisper export wrote")
    parser.add_argument("--name", required=True, metavar="NAME", help="of the registered model")
    parser.add_argument("--alias", metavar="ALIAS", help="name that this version takes over, as champion")
    add_storage(parser)
    add_tracking_uri(
        parser, "MLflow store (default: the one of the model's experiment, else $MLFLOW_TRACKING_URI)"
    )
    return parser


def register(words: list[str]) -> int:
    """Run `tune-whisper register`; returns the exit code.

    Raises:
        ConfigError: name or alias is not allowed, or no store is known.
        ModelError: the folder holds no Whisper model.
        StorageError: the object store that holds the experiment cannot be read or written.
        TrackingError: the MLflow store cannot be reached, or refuses.
    """
    arguments = register_parser().parse_args(words)
    from tune.display import make_console
    from tune.registry.names import check_names

    check_names(arguments.name, arguments.alias)
    register_from(
        arguments.model,
        arguments.storage,
        arguments.name,
        arguments.alias,
        make_console(),
        tracking_uri=arguments.tracking_uri,
    )
    return 0


def register_from(
    model: Path,
    storage: Storage,
    name: str,
    alias: str | None,
    console: Console,
    *,
    tracking_uri: str | None = None,
) -> Registered:
    """Register an exported model in the store of its experiment, or another; raises as `register` does."""
    from tune.registry.facts import ModelFacts

    facts = ModelFacts.read(model)
    folder = _experiment_of(facts, storage)
    uri = _tracking_uri(tracking_uri, folder, facts, storage)
    return register_exported(model, folder, uri, name, alias, console)


def register_exported(
    model: Path, folder: ExperimentFolder | None, uri: str, name: str, alias: str | None, console: Console
) -> Registered:
    """Register an exported model, and say how it is loaded and served.

    Args:
        model: the folder that was exported.
        folder: of its experiment, where that is there.
        uri: the MLflow store; of an experiment it is what `tune.ui.read_tracking_uri` gives.
        name: of the registered model; `tune.registry.names.check_names` checks it before anything is exported.
        alias: that the new version takes over.
        console: where it is said.

    Raises:
        ConfigError, ModelError, StorageError, TrackingError: as `register` does.
    """
    from tune.display import say
    from tune.mlflow_store import default_artifact_root, is_server
    from tune.registry.facts import ModelFacts
    from tune.registry.register import describe, register_model

    with console.status(f"registering {name} ..."):
        done = register_model(
            model,
            tracking_uri=uri,
            name=name,
            alias=alias,
            run_id=None if folder is None else _run_of(folder, ModelFacts.read(model)),
            artifact_root=None if folder is None or is_server(uri) else default_artifact_root(folder.path),
        )
        if folder is not None:
            folder.upload()
    for line in describe(done, uri):
        say(console, line)
    return done


def _experiment_of(facts: ModelFacts, storage: Storage) -> ExperimentFolder | None:
    """The folder of the experiment that the model is from; None where it is not in the storage."""
    from tune.runs.finish import find_finished

    if facts.experiment is None or facts.experiment not in storage.names():
        return None
    return find_finished(facts.experiment, storage)


def _tracking_uri(
    given: str | None, folder: ExperimentFolder | None, facts: ModelFacts, storage: Storage
) -> str:
    from tune.errors import ConfigError
    from tune.mlflow_store import absolute_tracking_uri
    from tune.ui import read_tracking_uri

    if given is None and folder is not None:
        return read_tracking_uri(folder.path)
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        missing = "names no experiment"
        if facts.experiment:
            missing = f"is of experiment {facts.experiment!r}, which is not in {storage.text}"
        raise ConfigError(f"--tracking-uri: is missing: the model {missing}; give an MLflow store")
    return absolute_tracking_uri(uri)


def _run_of(folder: ExperimentFolder, facts: ModelFacts) -> str | None:
    """The MLflow run of the model's trial."""
    import json

    from tune.experiment_folder import RESULTS_FILE

    path = folder.path / RESULTS_FILE
    if not path.is_file():
        return None
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    runs = [*results["trials"], *results.get("repeats", [])]
    found = (run.get("mlflow_run_id") for run in runs if run["trial_id"] == facts.trial)
    return next(found, None)
