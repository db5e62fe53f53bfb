"""An exported model into MLflow: logged onto the run of its trial, and a version of a registered model."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.kept_splits import SPLITS_FILE
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from tune.experiments.mlflow_store import (
    absolute_tracking_uri,
    default_artifact_root,
    is_server,
)
from tune.experiments.models import SETTINGS_FILE
from tune.experiments.results import run_ids
from tune.experiments.saved import Find, find_experiment
from tune.experiments.settings import read_tracking_uri
from tune.tracking.mlflow_connection import make_experiment, open_store
from tune.util.cloud_errors import cloud_errors
from tune.util.console import say, short_source
from tune.util.errors import ConfigError, ModelError, TrackingError, first_line
from tune.util.files import read_object
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from rich.console import Console

    from tune.experiments.storage import Storage

_LOADER = "tune_whisper_speech"
_REQUIREMENTS = ("mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers")
"""What the loader imports."""
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"


def check_names(name: str, alias: str | None, *, name_option: str = "--name") -> None:
    """Check both against the rules of MLflow's registry.

    Raises:
        ConfigError: one of them is not allowed.
    """
    if not re.fullmatch(r"[^/:]{1,256}", name) or not name.strip(". "):
        raise ConfigError(
            f"{name_option} {name!r}: must have 1 to 256 characters, no / and no :; a name such as whisper-be"
        )
    if alias is not None and not re.fullmatch(r"(?!(?i:latest|v\d+)$)[\w\-]{1,255}", alias):
        raise ConfigError(
            f"--alias {alias!r}: must have letters, digits, _ and - only, and not be latest or v1, v2, ...; "
            "a name such as champion"
        )


def register_from(
    model: Path,
    storage: Storage,
    name: str,
    alias: str | None,
    console: Console,
    *,
    tracking_uri: str | None = None,
    find: Find = find_experiment,
) -> None:
    """Register an exported model in the store of its experiment, or another, and say how it is loaded and served.

    Args:
        model: the folder that was exported.
        storage: where its experiment may be.
        name: of the registered model; `check_names` checks it before anything is exported.
        alias: that the new version takes over.
        console: where it is said.
        tracking_uri: the MLflow store; by default the experiment's, else MLFLOW_TRACKING_URI.
        find: finds the experiment.

    Raises:
        ConfigError: no store is known.
        ModelError: the folder holds no Whisper model.
        StorageError: the object store that holds the experiment cannot be read or written.
        TrackingError: the MLflow store cannot be reached, or refuses.
    """
    evaluation = read_object(model / "evaluation.json")
    experiment, run_id, root = evaluation.get("experiment"), None, None
    folder = find(experiment, storage) if experiment in storage.names() else None
    if folder is not None:
        tracking_uri = tracking_uri or read_tracking_uri(folder)
        run_id = run_ids(folder.path).get(str(evaluation.get("trial_id")))
        root = None if is_server(tracking_uri) else default_artifact_root(folder.path)
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ConfigError(
            f"--tracking-uri: is missing: the model's experiment, {experiment!r}, is not in {storage.text}; "
            "give an MLflow store"
        )
    uri = absolute_tracking_uri(uri)
    with console.status(f"registering {name} ..."):
        address = register_model(
            model, tracking_uri=uri, name=name, alias=alias, run_id=run_id, artifact_root=root
        )
        if folder is not None:
            folder.upload()
    shown = hide_password(uri)
    say(console, f"registered {address} in {shown}")
    say(console, f'load     mlflow.pyfunc.load_model("{address}")')
    serve = f"mlflow models serve -m {shlex.quote(address)} --env-manager local"
    say(console, f"serve    MLFLOW_TRACKING_URI={shlex.quote(shown)} {serve}")


def register_model(
    folder: Path,
    *,
    tracking_uri: str,
    name: str,
    alias: str | None = None,
    run_id: str | None = None,
    artifact_root: Path | None = None,
) -> str:
    """Log a model folder as a pyfunc that takes audio files, and register it; returns its `models:/` address.

    Args:
        folder: what `tune-whisper export` wrote, or any Whisper folder with a generation config.
        tracking_uri: the MLflow store.
        name: of the registered model, which is made where there is none.
        alias: moved to the new version from whichever had it.
        run_id: the run to log onto; the model gets a run of its own where the store has none of this id.
        artifact_root: where artifacts go of an experiment that is made, if a database has none of the model's yet.

    Raises:
        ModelError: the folder holds no Whisper model.
        TrackingError: the store cannot be reached, or refuses.
    """
    _check_model(folder)
    tags = _tags(folder)
    experiment = tags.get("experiment", "registered models")
    opened, experiment_id = open_store(tracking_uri, experiment)
    if experiment_id is None:
        experiment_id = make_experiment(opened, tracking_uri, experiment, artifact_root)
    from mlflow import MlflowClient, pyfunc
    from mlflow.exceptions import MlflowException

    try:
        with _current_store(tracking_uri), _run(run_id, experiment_id, folder.name) as run:
            with _files(folder) as files, warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # the signature is checked by tests, not by an example that is kept
                logged = pyfunc.log_model(
                    name=re.sub(r"[/:.%\"']", "-", name),
                    loader_module=_LOADER,
                    code_paths=[str(Path(__file__).with_name(f"{_LOADER}.py"))],
                    data_path=str(files),
                    signature=_signature(),
                    # Without a local part such as +cpu, which package indexes do not have.
                    pip_requirements=[
                        f"{each}=={importlib.metadata.version(each).split('+')[0]}" for each in _REQUIREMENTS
                    ],
                    tags=tags,
                )
            client: Any = MlflowClient()
            with contextlib.suppress(
                MlflowException
            ):  # there is one already; else the next call says what is wrong
                client.create_registered_model(name)
            version = client.create_model_version(
                name, f"models:/{logged.model_id}", run_id=run, tags=tags, model_id=logged.model_id
            ).version
            if alias:
                client.set_registered_model_alias(name, alias, version)
    except cloud_errors(MlflowException) as error:
        reason = hide_password(first_line(error))
        raise TrackingError(
            f"MLflow store {hide_password(tracking_uri)}: cannot register {name} in it: {reason}"
        ) from error
    return f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"


def _check_model(folder: Path) -> None:
    """Raise `ModelError` unless a Whisper can be loaded from the folder, with the settings that it decodes by."""
    generation = read_object(folder / "generation_config.json")
    if not generation:
        raise ModelError(
            f"{folder}: has no generation_config.json; give a folder that tune-whisper export wrote"
        )
    config = TrainConfig(model=str(folder.absolute()), language=generation.get("language"))
    load_model(config, load_processor(config))


def _tags(folder: Path) -> dict[str, str]:
    """What the model is and its error rates, in percent: `validation_wer`, `test_baseline_cer`, ..."""
    generation = read_object(folder / "generation_config.json")
    evaluation = read_object(folder / "evaluation.json")
    tags: dict[str, Any] = {
        "language": generation.get("language"),
        "task": generation.get("task"),
        "base_model": short_source(read_object(folder / SETTINGS_FILE).get("model", "")),
        "experiment": evaluation.get("experiment"),
        "trial": evaluation.get("trial_id"),
    }
    for split, pair in evaluation.get("evaluations", {}).items():
        for when, word in (("before", "baseline_"), ("after", "")):
            rates = {rate: value for rate, value in pair[when].items() if isinstance(value, float)}
            tags |= {f"{split}_{word}{rate}": f"{value:.2f}" for rate, value in rates.items()}
    return {name: tag for name, tag in tags.items() if tag}


def _signature() -> Any:
    """Audio files in, texts out; without names, so that `predict` takes a file's content as it is."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema

    return ModelSignature(Schema([ColSpec(DataType.binary)]), Schema([ColSpec(DataType.string)]))


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[Path]:
    """The model's own files, without other formats, and without the texts and paths that it was trained on."""
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        links = Path(scratch) / "model"
        links.mkdir()
        for path in folder.absolute().iterdir():
            if path.is_file() and path.name not in (SETTINGS_FILE, SPLITS_FILE):
                (links / path.name).symlink_to(path)
        yield links


@contextlib.contextmanager
def _current_store(uri: str) -> Iterator[None]:
    """Make this MLflow's current store, with patience for large files."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    timeout = os.environ.get(_TIMEOUT, "60")
    mlflow.set_tracking_uri(uri)
    # A server answers when a file of gigabytes has reached its own store.
    os.environ[_TIMEOUT] = str(max(600, int(timeout)))
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None takes it back
        os.environ[_TIMEOUT] = timeout


@contextlib.contextmanager
def _run(run_id: str | None, experiment_id: str, name: str) -> Iterator[str]:
    """The run that is logged onto, active; a finished one stays as long as it was."""
    import mlflow
    from mlflow.exceptions import MlflowException

    client, before = mlflow.MlflowClient(), None
    if run_id is not None:
        with contextlib.suppress(MlflowException):  # not in this store
            before = client.get_run(run_id).info
    if before is None or before.lifecycle_stage != "active":
        with mlflow.start_run(experiment_id=experiment_id, run_name=name, tags={"role": "model"}) as run:
            yield run.info.run_id
        return
    try:
        with mlflow.start_run(run_id=run_id):
            yield before.run_id
    finally:
        client.set_terminated(before.run_id, before.status, before.end_time)
