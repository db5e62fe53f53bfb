"""MLflow's client of one store, quiet and without patience; every error is one line that shows no password."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.files import take_lock
from tune.experiments.mlflow_store import check_store, relocate_artifacts, sqlite_path
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_store(uri: str, experiment: str) -> tuple[MlflowClient, str | None]:
    """Open a store, which makes a SQLite file and its tables; the experiment's id, None where it has none.

    Raises:
        TrackingError: the store cannot be reached or refuses, or the experiment of this name was deleted.
    """
    check_store(uri)
    _import_mlflow()
    from mlflow import MlflowClient

    database = sqlite_path(uri)
    with store_errors(uri), _alone_with(database):
        _check_database(uri)
        client = MlflowClient(tracking_uri=uri)
        if database is not None:
            client.search_experiments(max_results=1)  # makes the tables
            relocate_artifacts(database)
        known = client.get_experiment_by_name(experiment)
    if known is not None and known.lifecycle_stage == "deleted":
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: its experiment {experiment!r} was deleted; "
            f"choose another name or run `mlflow experiments restore -x {known.experiment_id}`"
        )
    return client, str(known.experiment_id) if known else None


def make_experiment(client: MlflowClient, uri: str, experiment: str, artifact_root: Path | None) -> str:
    """Create an experiment in the store at an address; its id. Without an artifact root the store chooses one.

    Raises:
        TrackingError: the store cannot be reached or refuses.
    """
    location = artifact_root.absolute().as_uri() if artifact_root else None
    if artifact_root is not None:
        artifact_root.mkdir(parents=True, exist_ok=True)  # by which a moved store finds it
    kind = {"mlflow.experimentKind": "custom_model_development"}  # the UI is about prompts otherwise
    with store_errors(uri):
        return str(client.create_experiment(experiment, location, tags=kind))


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn what MLflow and its artifact clients raise because of the store into one line that names it.

    MLflow wraps what databases and servers answer, not what the clients of artifact stores raise. `ImportError` is a
    client that is not installed, `ValueError` an address that one cannot use.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except cloud_errors(MlflowException, ImportError, ValueError) as error:
        raise TrackingError(f"MLflow store {hide_password(uri)}: {_reason(error)}") from error


def _check_database(uri: str) -> None:
    """Try a database once: MLflow itself tries ten times, over 100 seconds, before it says a word."""
    if re.match(r"(sqlite|postgresql|mysql|mssql)\b", uri):
        import sqlalchemy

        with sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool).connect() as connection:
            if uri.startswith("sqlite"):
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # raises where another process has locked it


@contextmanager
def _alone_with(file: Path | None) -> Iterator[None]:
    """Keep two processes from making the tables of one new SQLite file: MLflow's migrations would collide."""
    if file is None:
        yield
        return
    with file.with_name(f".{file.name}.lock").open("a") as lock:
        take_lock(lock)
        yield


def _import_mlflow() -> None:
    """Import MLflow (1 to 2 s) without telemetry, log lines and printed links; variables that are set stay.

    HTTP calls are tried once and for 15 s, not 7 times and for 120 s: whatever failed is synced again later.
    """
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401  (importing it sets the levels that are changed below)

    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        # MLflow logs a database error with its traceback and then raises it: what it raises we report.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _reason(error: BaseException) -> str:
    """What went wrong, in a few words: HTTP libraries and drivers wrap it in pages."""
    text = hide_password(str(error)).strip() or type(error).__name__
    for pattern, words in (
        (r"database is locked", "the database is locked by another process"),
        (r"Connection refused", "connection refused"),
        (r"Connection aborted|Connection reset|RemoteDisconnected", "connection lost"),
        (r"Name or service not known|name resolution|NameResolutionError", "unknown host"),
        (
            r"unsupported URI",
            "no such kind of store; give https://..., sqlite:///..., postgresql://... or mysql://...",
        ),
        (r"timed out|timeout exception", "no answer in time"),
        (r"error code 401\b|UNAUTHENTICATED", "not authorised; set MLFLOW_TRACKING_USERNAME and _PASSWORD"),
        (r"error code 403\b|PERMISSION_DENIED", "permission denied"),
        (r"error code (404|405|501)\b|not in a valid JSON", "no MLflow tracking server answers there"),
    ):
        if re.search(pattern, text):
            return words
    line = text.splitlines()[0]
    return line if len(line) <= 300 else line[:297] + "..."
