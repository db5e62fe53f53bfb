"""An exported model into MLflow: logged onto the run of its trial, and a version of a registered model."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.errors import ConfigError, ModelError
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from tune.experiments.experiment import Experiment, Find, find_experiment
from tune.experiments.folder import SPLITS_FILE
from tune.experiments.mlflow_store import absolute_tracking_uri, default_artifact_root, is_server
from tune.experiments.models import SETTINGS_FILE
from tune.experiments.results import run_ids
from tune.tracking.mlflow_connection import make_experiment, open_store
from tune.tracking.mlflow_runs import PARENT
from tune.util.cloud_errors import cloud_errors
from tune.util.console import doing, say, short_source
from tune.util.errors import TrackingError, first_line
from tune.util.files import read_object
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from rich.console import Console

    from tune.experiments.storage import Storage

_LOADER = "tune_whisper_speech"
_REQUIREMENTS = ("mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers")


def register(
    model: Path,
    storage: Storage,
    name: str,
    alias: str | None,
    console: Console,
    *,
    tracking_uri: str | None = None,
    find: Find = find_experiment,
) -> None:
    """Log an exported model as a pyfunc that takes audio files, register it, and say how it is loaded and served.

    It belongs to the run of its trial, where the store has that. By default the store is the experiment's, else
    MLFLOW_TRACKING_URI; it is that of this process from then on. An alias moves to the new version.

    Raises:
        ConfigError: no store is known, or the registry allows no such name or alias.
        ModelError: the folder holds no Whisper model.
        TrackingError: the MLflow store cannot be reached, or refuses.
    """
    _check_names(name, alias)
    generation, evaluation = (
        read_object(model / f"{name}.json") for name in ("generation_config", "evaluation")
    )
    if not generation:
        raise ModelError(
            f"{model}: has no generation_config.json; give a folder that tune-whisper export wrote"
        )
    experiment, run_id, root = evaluation.get("experiment"), None, None
    folder = find(experiment, storage) if experiment in storage.names() else None
    if folder is not None:
        tracking_uri = tracking_uri or Experiment.read(folder).tracking_uri
        run_id = run_ids(folder.path).get(str(evaluation.get("trial_id")))
        root = None if is_server(tracking_uri) else default_artifact_root(folder.mlflow_home, folder.name)
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ConfigError(
            f"--tracking-uri: is missing: the model's experiment, {experiment!r}, is not in {storage.text}; "
            "give an MLflow store"
        )
    uri = absolute_tracking_uri(uri)
    shown = hide_password(uri)
    config = TrainConfig(model=str(model.absolute()), language=generation.get("language"))
    load_model(config, load_processor(config))  # which raises where it is none
    tags = _tags(generation, evaluation, str(read_object(model / SETTINGS_FILE).get("model", "")))
    with doing(console, f"registering {name}"):
        holder = experiment or "registered models"
        client, experiment_id = open_store(uri, holder)
        if experiment_id is None:
            experiment_id = make_experiment(client, uri, holder, root)
        import mlflow

        mlflow.set_tracking_uri(uri)
        # A server answers when a file of gigabytes has reached its own store.
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "600"
        try:
            address = _log(client, model, name, alias, tags, experiment_id, run_id)
        except cloud_errors(mlflow.MlflowException) as error:
            reason = hide_password(first_line(error))
            raise TrackingError(f"MLflow store {shown}: cannot register {name} in it: {reason}") from error
        if folder is not None:
            folder.upload()
    say(console, f"registered {address} in {shown}")
    say(console, f'load     mlflow.pyfunc.load_model("{address}")')
    serve = f"mlflow models serve -m {shlex.quote(address)} --env-manager local"
    say(console, f"serve    MLFLOW_TRACKING_URI={shlex.quote(shown)} {serve}")


def _check_names(name: str, alias: str | None) -> None:
    """Check both by the rules of MLflow, which would refuse them only after it has taken all files."""
    if not re.fullmatch(r"[^/:]{1,256}", name) or not name.strip(". "):
        raise ConfigError(
            f"--name {name!r}: must have 1 to 256 characters, no / and no :; a name such as whisper-be"
        )
    if alias is not None and not re.fullmatch(r"(?!(?i:latest|v\d+)$)[\w\-]{1,255}", alias):
        raise ConfigError(
            f"--alias {alias!r}: must have letters, digits, _ and - only, and not be latest or v1, v2, ...; "
            "a name such as champion"
        )


def _log(
    client: MlflowClient,
    folder: Path,
    name: str,
    alias: str | None,
    tags: dict[str, str],
    experiment_id: str,
    run_id: str | None,
) -> str:
    """Log a model of a run, if the store has it, and register it; returns its `models:/` address."""
    import mlflow
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema

    run = None
    with contextlib.suppress(mlflow.MlflowException):  # another store than the experiment's
        run = client.get_run(run_id) if run_id else None
    if run and run.info.experiment_id != experiment_id:  # a copy's, which is not in the store yet
        run = None
    logged = client.create_logged_model(
        experiment_id,
        re.sub(r"[/:.%\"']", "-", name),
        run.info.run_id if run else None,
        tags,
        run.data.params if run else None,
    )
    with _files(folder) as files, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the signature is checked by tests, not by an example that is kept
        mlflow.pyfunc.log_model(
            model_id=logged.model_id,
            loader_module=_LOADER,
            code_paths=[str(Path(__file__).with_name(f"{_LOADER}.py"))],
            data_path=str(files),
            # Without names, so that `predict` takes a file's content as it is.
            signature=ModelSignature(Schema([ColSpec(DataType.binary)]), Schema([ColSpec(DataType.string)])),
            # Without a local part such as +cpu, which package indexes do not have.
            pip_requirements=[
                f"{each}=={importlib.metadata.version(each).split('+')[0]}" for each in _REQUIREMENTS
            ],
        )
    if run:
        for linked in {run.info.run_id, run.data.tags.get(PARENT, run.info.run_id)}:
            client.log_outputs(linked, [LoggedModelOutput(logged.model_id, step=0)])
    with contextlib.redirect_stderr(io.StringIO()):  # it prints what we say ourselves
        version = mlflow.register_model(f"models:/{logged.model_id}", name, tags=tags).version
    if alias is None:
        return f"models:/{name}/{version}"
    client.set_registered_model_alias(name, alias, version)
    return f"models:/{name}@{alias}"


def _tags(generation: dict[str, Any], evaluation: dict[str, Any], base: str) -> dict[str, str]:
    """What the model is and its error rates, in percent: `validation_wer`, `test_baseline_cer`, ..."""
    tags: dict[str, Any] = {
        "language": generation.get("language"),
        "task": generation.get("task"),
        "base_model": short_source(base),
        "experiment": evaluation.get("experiment"),
        "trial": evaluation.get("trial_id"),
    }
    for split, pair in evaluation.get("evaluations", {}).items():
        for when, word in (("before", "baseline_"), ("after", "")):
            rates = {rate: value for rate, value in pair[when].items() if isinstance(value, float)}
            tags |= {f"{split}_{word}{rate}": f"{value:.2f}" for rate, value in rates.items()}
    return {name: tag for name, tag in tags.items() if tag}


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
