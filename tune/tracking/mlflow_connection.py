"""One MLflow store, spoken to synchronously and quietly; every error is one line that shows no password."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import logging
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tune.experiments.mlflow_store import sqlite_path
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import TrackingError
from tune.util.files import take_lock
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
_REFUSED = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE")
"""MLflow's error codes for a record that it will not take at any later time either."""

_DELETED_RUN = "must be in the 'active' state"
"""How MLflow tells that a run was deleted: as INVALID_PARAMETER_VALUE, like a bad record."""
_PAGE = 1000
"""Runs that one search returns."""
_LOCK_SECONDS = 60
"""How long a SQLite store that another process keeps locked, MLflow's UI for instance, is waited for."""


class RecordRefusedError(TrackingError):
    """The store was reached and will never take this record; sending it again cannot help."""


class RunGoneError(RecordRefusedError):
    """The store was reached and has no such run any more; no record of it will ever be taken."""


@dataclasses.dataclass
class FoundRun:
    """A run of a store, as far as it is known."""

    run_id: str
    status: str
    """As MLflow says it: RUNNING, FINISHED, ..."""
    start_ms: int
    deleted: bool
    tags: dict[str, str]
    end_ms: int | None = None


class TrackingStore:
    """One experiment in one store, untouched before `find`; any method may raise `TrackingError`."""

    def __init__(self, tracking_uri: str, experiment: str, artifact_root: Path | None) -> None:
        self.uri = tracking_uri
        self.experiment = experiment
        self.experiment_id = ""
        self._artifact_root = artifact_root

    def find(self) -> str | None:
        """Open the store, which makes a SQLite file and its tables; the experiment's id, None if there is none.

        Raises:
            TrackingError: the store cannot be reached or refuses, or the experiment of this name was deleted.
        """
        quiet_mlflow()
        from mlflow import MlflowClient

        with _alone_with(sqlite_path(self.uri)), self._translated("open"):
            self._check_database()
            self._client: MlflowClient = MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
        if found is not None and found.lifecycle_stage == "deleted":
            raise TrackingError(
                f"MLflow store {hide_password(self.uri)}: its experiment {self.experiment!r} was deleted; "
                f"choose another name or run `mlflow experiments restore -x {found.experiment_id}`"
            )
        self.experiment_id = str(found.experiment_id) if found else ""
        return self.experiment_id or None

    def connect(self) -> None:
        """Find the experiment or create it; raises as `find` does."""
        if self.find() is not None:
            return
        location = self._artifact_root.absolute().as_uri() if self._artifact_root else None
        kind = {"mlflow.experimentKind": "custom_model_development"}  # the UI is about prompts otherwise
        with self._translated("create an experiment in"):
            self.experiment_id = self._client.create_experiment(self.experiment, location, tags=kind)

    def tag_experiment(self, key: str, value: str) -> None:
        """Set a tag of the experiment."""
        with self._translated("tag an experiment in"):
            self._client.set_experiment_tag(self.experiment_id, key, value)

    def create_run(self, name: str, tags: Mapping[str, str], start_ms: int) -> FoundRun:
        """Create a run in the state RUNNING."""
        with self._translated("create a run in"):
            run = self._client.create_run(self.experiment_id, start_ms, dict(tags), run_name=name)
        return FoundRun(str(run.info.run_id), "RUNNING", start_ms, False, dict(tags))

    def find_runs(self, **tags: str) -> list[FoundRun]:
        """The experiment's runs with all of these tags, deleted ones too; the latest first."""
        from mlflow.entities import ViewType

        query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found: list[Any] = []
        token: str | None = ""
        with self._translated("search"):
            while token is not None:
                page = self._client.search_runs(
                    [self.experiment_id], query, ViewType.ALL, _PAGE, page_token=token or None
                )
                found += page
                token = page.token or None
        return [
            FoundRun(
                str(run.info.run_id),
                str(run.info.status),
                int(run.info.start_time),
                str(run.info.lifecycle_stage) != "active",
                dict(run.data.tags),
                run.info.end_time,
            )
            for run in found
        ]

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Sequence[Any]] = (),
        params: Sequence[Sequence[str]] = (),
        tags: Sequence[Sequence[str]] = (),
    ) -> None:
        """Write records, in as many calls as the store needs; what was written before is not written twice."""
        from mlflow import entities

        with self._translated("write to"):
            self._client.log_batch(
                run_id,
                [entities.Metric(*metric) for metric in metrics],
                [entities.Param(*param) for param in params],
                [entities.RunTag(*tag) for tag in tags],
            )

    def set_status(self, run_id: str, status: RunStatus, end_ms: int | None = None) -> None:
        """Set the status of a run, and when it ended."""
        with self._translated("set the status of a run in"):
            if end_ms is None:
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, end_ms)

    def delete_run(self, run_id: str) -> None:
        """Take back a run that was created a moment ago."""
        with self._translated("delete a run in"):
            self._client.delete_run(run_id)

    def artifact_folder(self, run_id: str) -> Path | None:
        """Where the run's artifacts lie, which may be gone; None where a server or an object store has them."""
        with self._translated("read"):
            place = urllib.parse.urlsplit(str(self._client.get_run(run_id).info.artifact_uri))
        return Path(urllib.parse.unquote(place.path)) if place.scheme in ("", "file") else None

    def upload(self, run_id: str, path: Path, place: str | None = None) -> None:
        """Store one file as an artifact of the run, by its own name, below `place`; one that is gone is refused."""
        if not path.is_file():
            raise RecordRefusedError(
                f"MLflow store {hide_password(self.uri)}: cannot store {path.name} in it: the file {path} is gone"
            )
        with self._translated(f"store {path.name} in"):
            self._client.log_artifact(run_id, str(path), place)

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Turn what MLflow and its artifact clients raise because of the store into one line that names it.

        MLflow wraps what databases and servers answer, not what the clients of artifact stores raise.
        `ImportError` is a client that is not installed, `ValueError` an address that one cannot use.
        """
        from mlflow.exceptions import MlflowException

        try:
            yield
        except cloud_errors(MlflowException, ImportError, ValueError) as error:
            kind = TrackingError
            if isinstance(error, MlflowException) and error.error_code in _REFUSED:
                gone = error.error_code == "RESOURCE_DOES_NOT_EXIST" or _DELETED_RUN in str(error)
                kind = RunGoneError if gone else RecordRefusedError
            raise kind(
                f"MLflow store {hide_password(self.uri)}: cannot {action} it: {_reason(error)}"
            ) from error

    def _check_database(self) -> None:
        """Try a database once: MLflow itself tries ten times, over 100 seconds, before it says a word."""
        if re.match(r"(sqlite|postgresql|mysql|mssql)\b", self.uri):
            import sqlalchemy

            file = sqlite_path(self.uri)
            wait = {"timeout": 1.0} if file is not None else {}
            engine = sqlalchemy.create_engine(self.uri, connect_args=wait)
            for second in range(_LOCK_SECONDS):  # in short waits, which Ctrl-C can end
                try:
                    with engine.connect() as connection:
                        if file is not None and file.exists():
                            connection.exec_driver_sql("BEGIN IMMEDIATE")
                        return
                except sqlalchemy.exc.OperationalError as error:
                    if "database is locked" not in str(error) or second + 1 == _LOCK_SECONDS:
                        raise


@contextmanager
def _alone_with(file: Path | None) -> Iterator[None]:
    """Keep two processes here from making the tables of one new SQLite file: MLflow's migrations would collide."""
    if file is None:
        yield
        return
    name = hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"tune-whisper-{os.getuid()}-{name}.lock").open("a") as lock:
        take_lock(lock)
        yield


def quiet_mlflow() -> None:
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


def system_tags() -> dict[str, str]:
    """Who ran what, for MLflow's own columns."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container often has no name
        user = str(os.getuid())
    return {"mlflow.user": user, "mlflow.source.name": "tune-whisper", "mlflow.source.type": "LOCAL"}


def milliseconds(seconds: float) -> int:
    """A time as MLflow notes it, from seconds since the epoch."""
    return int(seconds * 1000)
