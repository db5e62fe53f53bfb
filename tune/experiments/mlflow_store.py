"""Which MLflow store a search writes to, and the versions noted in it."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sqlite3
import urllib.parse
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

from tune.util.errors import TrackingError
from tune.util.redact import hide_password, without_password

DATABASE = "mlflow.db"
"""The SQLite store: one for all experiments of a folder; an experiment of a bucket has its own, which goes with it."""
ARTIFACTS = "mlartifacts"
TRIALS_VIEW = "trials"
TRIALS_VIEW_TAG = f"mlflow.sharedViewState.{TRIALS_VIEW}"
"""Where MLflow keeps a shared view of the list of runs; an older UI that does not know it shows its own."""
_LOCATIONS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
"""Where MLflow's tables (from 3.0 on) name places of artifacts."""


def default_tracking_uri(home: Path) -> str:
    """The SQLite store in a folder.

    Raises:
        TrackingError: the path holds `?` or `%`.
    """
    return absolute_tracking_uri(f"sqlite:///{home.absolute() / DATABASE}")


def default_artifact_root(home: Path, experiment: str) -> Path:
    """Where the artifacts of an experiment lie, unless its store is a server."""
    return home.absolute() / ARTIFACTS / experiment


def relocate_artifacts(database: Path) -> None:
    """Let a SQLite store that was moved or copied with its artifacts look for them beside itself.

    Artifacts have paths, as MLflow reads `mlflow-artifacts:/` through a server alone.
    """
    root = database.parent / ARTIFACTS
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in _LOCATIONS:
            rows = connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
            for row, location in rows:
                before, _, after = f"{location}/".rpartition(f"/{ARTIFACTS}/")
                new = f"{root.as_uri()}/{after}".rstrip("/")
                here = before.startswith("file://") and (root / unquote(after.partition("/")[0])).is_dir()
                if here and location != new:
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, row))


def with_password(uri: str) -> str:
    """An address that was kept without one, with the password that MLFLOW_TRACKING_URI has for it."""
    known = os.environ.get("MLFLOW_TRACKING_URI", "")
    return known if without_password(known) == uri else uri


def absolute_tracking_uri(uri: str) -> str:
    """`uri` with a relative SQLite path made absolute, so that it means the same from any folder.

    Raises:
        TrackingError: a SQLite path holds `?` or `%`, which mean something else in a database address.
    """
    path = sqlite_path(uri)
    if path is None:
        return uri.rstrip("/") if is_server(uri) else uri
    path = path.absolute()
    if re.search(r"[?%]", str(path)):
        raise TrackingError(
            f"MLflow store {path}: a SQLite store's path cannot hold ? or %; choose another folder"
        )
    return f"sqlite:///{path}"


def sqlite_path(uri: str) -> Path | None:
    """The file of a SQLite store; None for any other store."""
    path = uri.removeprefix("sqlite:///")
    return None if path in (uri, "", ":memory:") else Path(path)


def check_store(uri: str) -> None:
    """Find out in seconds whether a store can be there at all; what it says is found out when it is opened.

    Raises:
        TrackingError: nothing listens at a server's address, or it is a folder of files, which MLflow refuses.
    """
    shown = hide_password(uri)
    if is_server(uri):
        try:
            parts = urllib.parse.urlsplit(uri)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise TrackingError(f"MLflow store {shown}: is no address: {error}") from error
        try:
            socket.create_connection((parts.hostname or "", port), timeout=10).close()
        except OSError as error:
            raise TrackingError(
                f"MLflow store {shown}: cannot be reached: {error.strerror or error}; is the server running?"
            ) from error
    elif uri.startswith("file:") or not re.match(r"\w+(\+\w+)?://|sqlite:|databricks|uc:", uri):
        folder = shlex.quote(urllib.parse.unquote(urllib.parse.urlsplit(uri).path))
        raise TrackingError(
            f"MLflow store {shown}: is a file store, which MLflow refuses from 3.13 on; bring it into a database by "
            f"mlflow migrate-filestore --source {folder} --target sqlite:///FILE, and give sqlite:///FILE"
        )


def is_server(uri: str) -> bool:
    """Whether the store is a tracking server, which has a UI of its own."""
    return uri.startswith(("http://", "https://"))


def trials_page(experiment_id: str) -> str:
    """The page of that view, after the address of a server."""
    return (
        f"/#/experiments/{experiment_id}/runs?viewStateShareKey={TRIALS_VIEW}&workflowType=machine_learning"
    )
