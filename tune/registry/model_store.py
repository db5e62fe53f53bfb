"""One MLflow store with its model registry; what fails half-way is taken back."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.transcription.transcripts import WITHOUT_SPACES
from tune.errors import TrackingError
from tune.registry.model_files import save_model
from tune.tracking.mlflow_connection import (
    RecordRefusedError,
    RunGoneError,
    TrackingStore,
    now_ms,
    quiet_mlflow,
    system_tags,
)

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

    from tune.registry.facts import ModelFacts


class ModelStore(TrackingStore):
    """A tracking store with its model registry; every method may raise `TrackingError`."""

    def open(self, run_id: str | None) -> None:
        """Reach the store; the experiment is made only where a run of its own will need it."""
        self.experiment_id = self.reach() or ""
        if not self.experiment_id and not (run_id and self.has_live_run(run_id)):
            self.connect()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make this MLflow's current store: of databases it asks that for the models behind a new version."""
        quiet_mlflow()
        import mlflow

        before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
        mlflow.set_tracking_uri(self.uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(before)  # type: ignore[arg-type]  # None takes it back

    def has_live_run(self, run_id: str) -> bool:
        """Whether the store has the run, not deleted."""
        try:
            with self._translated("read"):
                return str(self._client.get_run(run_id).info.lifecycle_stage) == "active"
        except RunGoneError:
            return False

    def own_run(self, name: str) -> str:
        """A finished run that stands for nothing but the model."""
        run_id = self.create_run(name, {**system_tags(), "role": "model", "status": "completed"}, now_ms())
        self.end_run(run_id, "FINISHED", now_ms())
        return run_id

    def log_and_register(
        self, folder: Path, run_id: str, name: str, alias: str | None, facts: ModelFacts
    ) -> tuple[str, str]:
        """The number of the new version and the id of the logged model."""
        with tempfile.TemporaryDirectory(prefix="mlflow-model-") as scratch:
            logged = self._announce(run_id, name, facts)
            try:
                self._write(folder, Path(scratch) / "model", logged, facts)
                with self._translated("store the model in"):
                    self._client.log_model_artifacts(logged.model_id, str(Path(scratch) / "model"))
                    self._client.finalize_logged_model(logged.model_id, "READY")
                self._tell_run(run_id, logged.model_id, facts)
                return self._new_version(logged, run_id, name, alias, facts), str(logged.model_id)
            except BaseException:
                with self._undoing():
                    self._client.delete_logged_model(logged.model_id)
                raise

    def _announce(self, run_id: str, name: str, facts: ModelFacts) -> LoggedModel:
        """The model's entry in the store, before its files are there."""
        with self._translated("add a model to"):
            run = self._client.get_run(run_id)
            return self._client.create_logged_model(
                run.info.experiment_id,
                re.sub(r"[/:.%\"']", "-", name),
                source_run_id=run_id,
                tags=facts.tags(),
                params=dict(run.data.params),
            )

    def _write(self, folder: Path, target: Path, logged: LoggedModel, facts: ModelFacts) -> None:
        from mlflow.models import Model

        model = Model(
            artifact_path=logged.artifact_location,
            model_uuid=logged.model_id,
            run_id=logged.source_run_id,
            model_id=logged.model_id,
        )
        save_model(
            folder,
            target,
            model,
            metadata=facts.metadata(),
            base_model=facts.base_model or folder.name,
            gap="" if facts.language in WITHOUT_SPACES else " ",
        )

    def _tell_run(self, run_id: str, model_id: str, facts: ModelFacts) -> None:
        """The run names the model as its output, and both have the figures of the exported model."""
        from mlflow.entities import LoggedModelOutput, Metric

        figures = [
            Metric(key, value, now_ms(), 0, model_id=model_id) for key, value in facts.figures().items()
        ]
        with self._translated("write to"):
            self._client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])
            if figures:
                self._client.log_batch(run_id, metrics=figures)

    def _new_version(
        self, logged: LoggedModel, run_id: str, name: str, alias: str | None, facts: ModelFacts
    ) -> str:
        client: Any = self._client
        new = self._make_registered_model(name, facts)
        version = None
        try:
            with self._translated(f"register {name} in"):
                version = client.create_model_version(
                    name,
                    f"models:/{logged.model_id}",
                    run_id=run_id,
                    tags=facts.tags(),
                    model_id=logged.model_id,
                ).version
                where = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
                client.update_model_version(name, version, facts.description(where))
                if alias:
                    client.set_registered_model_alias(name, alias, version)
        except BaseException:
            with self._undoing():
                if new:
                    client.delete_registered_model(name)
                elif version is not None:
                    client.delete_model_version(name, version)
            raise
        return str(version)

    def _make_registered_model(self, name: str, facts: ModelFacts) -> bool:
        """Whether there was none of this name before."""
        try:
            with self._translated(f"register {name} in"):
                self._client.create_registered_model(name, description=f"{facts.title()}.")
        except RecordRefusedError as error:
            if getattr(error.__cause__, "error_code", "") == "RESOURCE_ALREADY_EXISTS":
                return False
            raise
        return True

    @contextlib.contextmanager
    def _undoing(self) -> Iterator[None]:
        """What cannot be taken back either is not told: the first error is."""
        with contextlib.suppress(TrackingError), self._translated("undo a part in"):
            yield
