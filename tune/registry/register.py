"""A Hugging Face folder into MLflow: logged onto a run, and a version of a registered model with an alias."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tune.experiments.mlflow_store import (
    absolute_tracking_uri,
    check_store,
    default_artifact_root,
    is_server,
)
from tune.experiments.results import run_ids
from tune.experiments.saved import Find, find_experiment
from tune.experiments.settings import read_tracking_uri
from tune.registry.facts import ModelFacts
from tune.registry.model_store import ModelStore
from tune.util.console import say
from tune.util.errors import ConfigError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from rich.console import Console

    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.storage import Storage

_LONGEST_NAME = 256
_LONGEST_ALIAS = 255
_UPLOAD_SECONDS = "600"
"""For one answer of a tracking server: it gives it when a file of gigabytes has reached the server's own store."""


@dataclasses.dataclass(frozen=True)
class Registered:
    """A version of a registered model."""

    name: str
    version: str
    alias: str | None
    run_id: str
    """The run that it was logged onto."""
    model_id: str
    headline: str
    """WER before and after in words; empty where that is not known."""

    @property
    def uri(self) -> str:
        """What MLflow's own functions and commands take."""
        return f"models:/{self.name}@{self.alias}" if self.alias else f"models:/{self.name}/{self.version}"


def check_names(name: str, alias: str | None, *, name_option: str = "--name") -> None:
    """Check both against the rules of MLflow's registry.

    Raises:
        ConfigError: one of them is not allowed.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or re.search(r"[/:]", name) or name in (".", ".."):
        raise ConfigError(
            f"{name_option} {name!r}: must have 1 to {_LONGEST_NAME} characters, no / and no :; "
            "a name such as whisper-be"
        )
    if alias is None:
        return
    if not re.fullmatch(r"[\w\-]+", alias) or len(alias) > _LONGEST_ALIAS:
        raise ConfigError(
            f"--alias {alias!r}: must have letters, digits, _ and - only; a name such as champion"
        )
    if alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise ConfigError(
            f"--alias {alias}: MLflow keeps 'latest' and v1, v2, ... to itself; a name such as champion"
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
) -> Registered:
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
        ConfigError: name or alias is not allowed, or no store is known.
        ModelError: the folder holds no Whisper model.
        StorageError: the object store that holds the experiment cannot be read or written.
        TrackingError: the MLflow store cannot be reached, or refuses.
    """
    facts = ModelFacts.read(model)
    folder = None
    if facts.experiment is not None and facts.experiment in storage.names():
        folder = find(facts.experiment, storage)
    uri = _tracking_uri(tracking_uri, folder, facts, storage)
    with console.status(f"registering {name} ..."):
        done = register_model(
            model,
            tracking_uri=uri,
            name=name,
            alias=alias,
            run_id=None if folder is None else _run_of(folder, facts),
            artifact_root=None if folder is None or is_server(uri) else default_artifact_root(folder.path),
        )
        if folder is not None:
            folder.upload()
    for line in describe(done, uri):
        say(console, line)
    return done


def _tracking_uri(
    given: str | None, folder: ExperimentFolder | None, facts: ModelFacts, storage: Storage
) -> str:
    if given is None and folder is not None:
        return read_tracking_uri(folder)
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        missing = "names no experiment"
        if facts.experiment:
            missing = f"is of experiment {facts.experiment!r}, which is not in {storage.text}"
        raise ConfigError(f"--tracking-uri: is missing: the model {missing}; give an MLflow store")
    return absolute_tracking_uri(uri)


def _run_of(folder: ExperimentFolder, facts: ModelFacts) -> str | None:
    """The MLflow run of the model's trial."""
    return run_ids(folder.path).get(str(facts.trial))


def register_model(
    folder: Path,
    *,
    tracking_uri: str,
    name: str,
    alias: str | None = None,
    run_id: str | None = None,
    artifact_root: Path | None = None,
) -> Registered:
    """Log a model folder with MLflow's transformers flavour and register it.

    Where the store knows no run `run_id`, the model gets a run of its own. Nothing is left behind on failure.

    Args:
        folder: what `tune-whisper export` wrote, or any Whisper folder with a generation config.
        tracking_uri: the MLflow store; the registry is the same one, unless MLFLOW_REGISTRY_URI names another.
        name: of the registered model, which is made where there is none.
        alias: moved to the new version from whichever had it.
        run_id: the run to log onto, the winner's.
        artifact_root: where the artifacts go of the MLflow experiment of a run of its own, if a database has none yet.

    Raises:
        ConfigError: name or alias is not allowed.
        ModelError: the folder holds no Whisper model.
        TrackingError: the store cannot be reached, or refuses.
    """
    check_names(name, alias)
    facts = ModelFacts.read(folder)
    check_store(tracking_uri)
    store = ModelStore(tracking_uri, facts.experiment or "registered models", artifact_root)
    with _patience(), store.current():
        store.open(run_id)
        run = run_id if run_id and store.has_live_run(run_id) else store.own_run(folder.name)
        try:
            version, model_id = store.log_and_register(folder, run, name, alias, facts)
        except BaseException:
            if run != run_id:
                store.delete_run(run)
            raise
    return Registered(name, version, alias, run, model_id, facts.headline())


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Wait longer for a server than while a search goes on, unless the user has said how long."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    given = os.environ.get(name)
    if given in (None, "60"):  # 60 is what our own recorder sets
        os.environ[name] = _UPLOAD_SECONDS
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = given


def describe(registered: Registered, tracking_uri: str) -> list[str]:
    """What to say once a model is registered, and how it is loaded and served."""
    shown = hide_password(tracking_uri)
    alias = f" @{registered.alias}" if registered.alias else ""
    figures = f": {registered.headline}" if registered.headline else ""
    return [
        f"registered {registered.name} version {registered.version}{alias} in {shown}{figures}",
        f'load     mlflow.pyfunc.load_model("{registered.uri}")',
        f"serve    MLFLOW_TRACKING_URI={shlex.quote(shown)} mlflow models serve -m {shlex.quote(registered.uri)} "
        "--env-manager local",
    ]
