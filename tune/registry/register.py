"""A Hugging Face folder into MLflow: logged onto a run, and a version of a registered model with an alias."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from tune.mlflow_store import check_store
from tune.registry.facts import ModelFacts
from tune.registry.model_store import ModelStore
from tune.registry.names import check_names
from tune.util.redact import hide_password

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


def register_model(
    folder: Path,
    *,
    tracking_uri: str,
    name: str,
    alias: str | None = None,
    run_id: str | None = None,
    experiment: str | None = None,
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
        experiment: MLflow experiment of a run of its own; that of the folder, else `registered models`.
        artifact_root: where that experiment's artifacts go, if it has to be made in a database.

    Raises:
        ConfigError: name or alias is not allowed.
        ModelError: the folder holds no Whisper model.
        TrackingError: the store cannot be reached, or refuses.
    """
    check_names(name, alias)
    facts = ModelFacts.read(folder)
    check_store(tracking_uri)
    store = ModelStore(tracking_uri, experiment or facts.experiment or "registered models", artifact_root)
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
