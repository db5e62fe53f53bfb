"""One MLflow store, spoken to synchronously and quietly; every error is one line that shows no password."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tune.errors import TrackingError
from tune.mlflow_store import hide_password, is_server, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
Metric = tuple[str, float, int, int]
"""Key, value, timestamp in ms, step."""

METRICS_PER_BATCH = 1000
PAIRS_PER_BATCH = 100
"""Params, and tags, in one `log_batch`; the REST API refuses more."""
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 8000

_REFUSED = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE")
"""MLflow's error codes for a record that it will not take at any later time either."""


class RecordRefusedError(TrackingError):
    """The store was reached and will never take this record; sending it again cannot help."""


class TrackingStore:
    """One experiment in one store, untouched before `connect`; any method may raise `TrackingError`."""

    def __init__(self, tracking_uri: str, experiment: str, artifact_root: Path | None) -> None:
        self.uri = tracking_uri
        self.experiment = experiment
        self.experiment_id = ""
        self._artifact_root = artifact_root

    def connect(self) -> None:
        """Open the store, which makes a SQLite file and its tables, and find or create the experiment.

        Raises:
            TrackingError: the store cannot be reached or refuses, or the experiment of this name was deleted.
        """
        quiet_mlflow()
        self._check_database()
        found = self.find_experiment()
        if found is None:
            location = self._artifact_root.absolute().as_uri() if self._artifact_root else None
            with self._translated("create an experiment in"):
                kind = {
                    "mlflow.experimentKind": "custom_model_development"
                }  # the UI is about prompts otherwise
                found = self._client.create_experiment(self.experiment, location, tags=kind)
        self.experiment_id = found

    def find_experiment(self) -> str | None:
        """The id of the experiment; None if the store has none of this name.

        Raises:
            TrackingError: the store cannot be reached, or the experiment was deleted.
        """
        quiet_mlflow()
        from mlflow import MlflowClient

        with self._translated("open"):
            self._client: MlflowClient = MlflowClient(tracking_uri=self.uri)
            found = self._client.get_experiment_by_name(self.experiment)
        if found is not None and found.lifecycle_stage == "deleted":
            raise TrackingError(
                f"MLflow store {hide_password(self.uri)}: its experiment {self.experiment!r} was deleted; "
                f"choose another name or run `mlflow experiments restore -x {found.experiment_id}`"
            )
        return str(found.experiment_id) if found else None

    def tag_experiment(self, key: str, value: str) -> None:
        """Set a tag of the experiment."""
        with self._translated("tag an experiment in"):
            self._client.set_experiment_tag(self.experiment_id, key, value)

    def create_run(self, name: str, tags: Mapping[str, str], start_ms: int) -> str:
        """Create a run in the state RUNNING and return its id."""
        with self._translated("create a run in"):
            run = self._client.create_run(self.experiment_id, start_ms, dict(tags), run_name=name)
            return str(run.info.run_id)

    def find_run(self, parent_id: str, trial_id: str) -> str | None:
        """The child run of a trial, if an earlier `create_run` got through though its answer was lost."""
        query = f"tags.`mlflow.parentRunId` = '{parent_id}' and tags.trial_id = '{trial_id}'"
        with self._translated("search"):
            runs = self._client.search_runs([self.experiment_id], filter_string=query, max_results=1)
            return str(runs[0].info.run_id) if runs else None

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Sequence[tuple[str, str]] = (),
        tags: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Write one batch within the limits above; what was written before is not written twice."""
        from mlflow import entities

        with self._translated("write to"):
            self._client.log_batch(
                run_id,
                [entities.Metric(*metric) for metric in metrics],
                [entities.Param(*param) for param in params],
                [entities.RunTag(*tag) for tag in tags],
            )

    def end_run(self, run_id: str, status: RunStatus, end_ms: int) -> None:
        """Set the final status of a run."""
        with self._translated("end a run in"):
            self._client.set_terminated(run_id, status, end_ms)

    def delete_run(self, run_id: str) -> None:
        """Take back a run that was created a moment ago."""
        with self._translated("delete a run in"):
            self._client.delete_run(run_id)

    def upload(self, run_id: str, path: Path) -> None:
        """Store one file as an artifact of the run, by its own name."""
        with self._translated(f"store {path.name} in"):
            self._client.log_artifact(run_id, str(path))

    def upload_json(self, run_id: str, name: str, content: Mapping[str, Any]) -> None:
        """Store a mapping as the artifact `name`."""
        with self._translated(f"store {name} in"):
            self._client.log_dict(run_id, dict(content), name)

    def run_url(self, run_id: str) -> str | None:
        """The page of a run on a tracking server; None for a database, which has no page of its own."""
        if not is_server(self.uri):
            return None
        return f"{without_password(self.uri)}/#/experiments/{self.experiment_id}/runs/{run_id}"

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Turn whatever MLflow and its artifact clients raise into one line that names the store.

        `Exception` is caught because artifact stores raise the classes of their cloud's client (botocore,
        Azure, Google), which share no base. Nothing is lost: the cause stays attached.
        """
        from mlflow.exceptions import MlflowException

        try:
            yield
        except Exception as error:
            refused = isinstance(error, MlflowException) and error.error_code in _REFUSED
            kind = RecordRefusedError if refused else TrackingError
            raise kind(
                f"MLflow store {hide_password(self.uri)}: cannot {action} it: {_reason(error)}"
            ) from error

    def _check_database(self) -> None:
        """Try a database once: MLflow itself tries ten times, over 100 seconds, before it says a word."""
        if not re.match(r"(sqlite|postgresql|mysql|mssql)\b", self.uri):
            return
        import sqlalchemy

        try:
            sqlalchemy.create_engine(self.uri).connect().close()
        except (
            sqlalchemy.exc.SQLAlchemyError,
            ImportError,
        ) as error:  # ImportError: the database has no driver
            shown = hide_password(self.uri)
            raise TrackingError(f"MLflow store {shown}: cannot open it: {_reason(error)}") from error


def quiet_mlflow() -> None:
    """Import MLflow (1 to 2 s) without telemetry, log lines and printed links; variables that are set stay.

    HTTP calls are tried once and for 10 s, not 7 times and for 120 s: the recorder has its own patience.
    """
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401  (importing it sets the levels that are changed below)

    if "MLFLOW_LOGGING_LEVEL" not in os.environ:
        # MLflow logs a database error with its traceback and then raises it: what it raises we report.
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def param_pairs(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as params, written as in YAML: `null`, `true`, numbers that read back exactly (`3e-05`)."""
    words = {None: "null", True: "true", False: "false"}
    return [
        (
            key,
            _clip(
                words[value] if value is None or isinstance(value, bool) else str(value), _MAX_PARAM_LENGTH
            ),
        )
        for key, value in params.items()
    ]


def tag_pairs(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Tags as the store takes them."""
    return [(key, _clip(str(value), _MAX_TAG_LENGTH)) for key, value in tags.items()]


def metric_points(metrics: Mapping[str, float], step: int, timestamp: float) -> list[Metric]:
    """Metrics of one moment; `timestamp` in seconds since the epoch."""
    return [(key, float(value), int(timestamp * 1000), int(step)) for key, value in metrics.items()]


def _clip(text: str, length: int) -> str:
    """`text` shortened to what MLflow stores, with a note that says so."""
    note = f"... ({len(text)} characters)"
    return text if len(text) <= length else text[: length - len(note)] + note


def _reason(error: BaseException) -> str:
    """What went wrong, in a few words: HTTP libraries and drivers wrap it in pages."""
    text = hide_password(str(error)).strip() or type(error).__name__
    for pattern, words in (
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
