"""One MLflow store with its model registry, and the files of a model in it; what fails half-way is taken back."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.languages import WITHOUT_SPACES
from trainer.model.pretrained import find_model
from tune.tracking.mlflow_connection import (
    RecordRefusedError,
    RunGoneError,
    TrackingStore,
    milliseconds,
    quiet_mlflow,
    system_tags,
)
from tune.util.errors import ModelError, TrackingError, first_line

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel
    from mlflow.models import Model, ModelSignature

    from tune.registry.facts import ModelFacts

_TASK = "automatic-speech-recognition"
_LOADER = "tune_whisper_speech"
"""What `speech_model.py` is called inside a model: a name that hides no installed package."""
_REQUIREMENTS = ("mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers")


class ModelStore(TrackingStore):
    """A tracking store with its model registry; every method may raise `TrackingError`."""

    def open(self, run_id: str | None) -> None:
        """Reach the store; the experiment is made only where a run of its own will need it."""
        if self.find() is None and not (run_id and self.has_live_run(run_id)):
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
        tags, now = {**system_tags(), "role": "model", "status": "completed"}, milliseconds(time.time())
        run = self.create_run(name, tags, now)
        self.set_status(run.run_id, "FINISHED", now)
        return run.run_id

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
            metadata=facts.metadata(),
        )
        save_model(folder, target, model, facts)

    def _tell_run(self, run_id: str, model_id: str, facts: ModelFacts) -> None:
        """The run names the model as its output, and both have the figures of the exported model."""
        from mlflow.entities import LoggedModelOutput, Metric

        now = milliseconds(time.time())
        figures = [Metric(key, value, now, 0, model_id=model_id) for key, value in facts.figures().items()]
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


def save_model(folder: Path, target: Path, model: Model, facts: ModelFacts) -> None:
    """Write a Hugging Face folder as an MLflow model: its transformers flavour, and a pyfunc that takes audio files.

    MLflow 3.17's way to save such a folder without loading it fails with transformers 5.23 (`pipelines.check_task`
    has become lazy), so the model is loaded. Its generation config is then copied as it is: language, task and
    greedy decoding must not depend on what two libraries leave out as a default.

    Args:
        folder: weights, processor and generation config.
        target: the folder to write; its parent must have room for both flavours.
        model: the model to fill in.
        facts: of the folder.

    Raises:
        ModelError: the folder holds no Whisper that can be loaded.
    """
    import mlflow

    pipeline = _load_pipeline(folder)
    requirements = [f"{name}=={_plain_version(name)}" for name in _REQUIREMENTS]
    with tempfile.TemporaryDirectory(prefix=".parts-", dir=target.parent) as scratch:
        weights, code = Path(scratch) / "transformers", Path(scratch) / f"{_LOADER}.py"
        mlflow.transformers.save_model(
            pipeline,
            str(weights),
            task=_TASK,
            mlflow_model=model,
            signature=_signature(),
            model_card=_model_card(folder),
            pip_requirements=requirements,
        )
        model.flavors["transformers"]["source_model_name"] = facts.base_model or folder.name
        shutil.copyfile(Path(__file__).with_name("speech_model.py"), code)
        mlflow.pyfunc.save_model(
            target,
            loader_module=_LOADER,
            code_paths=[str(code)],
            mlflow_model=model,
            model_config={"gap": "" if facts.language in WITHOUT_SPACES else " "},
            pip_requirements=requirements,
        )
        # Not its LICENSE.txt: without a repository on the hub it only says so, with the path of our folder in it.
        for name in ("model", "components", "model_card.md", "model_card_data.yaml"):
            if (weights / name).exists():
                (weights / name).rename(target / name)
    shutil.copyfile(folder / "generation_config.json", target / "model" / "generation_config.json")


def _load_pipeline(folder: Path) -> Any:
    """transformers' pipeline, on the CPU and in the precision that the weights have."""
    import transformers
    from safetensors import SafetensorError
    from transformers.utils import logging

    logging.disable_progress_bar()
    _spare_deepspeed()
    find_model(TrainConfig(model=str(folder.absolute())))  # which refuses what must not be loaded
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        if config.model_type != "whisper" or not (folder / "generation_config.json").is_file():
            raise ModelError(
                f"{folder}: holds a {config.model_type} model"
                + ("" if config.model_type != "whisper" else " without generation_config.json")
                + "; give a folder that tune-whisper export wrote"
            )
        return transformers.pipeline(
            _TASK, str(folder.absolute()), device="cpu", model_kwargs={"use_safetensors": True}
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"{folder}: cannot be loaded as a Whisper model: {first_line(error)}") from error


def _spare_deepspeed() -> None:
    """Keep accelerate from importing DeepSpeed, which prints on import, to save a model (see `trainer.deepspeed`)."""
    from accelerate.utils import other

    other.is_deepspeed_available = lambda: "deepspeed" in sys.modules


def _signature() -> ModelSignature:
    """Audio files in, texts out; without names, so that `predict` takes a file's content as it is."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, DataType, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.binary)]), outputs=Schema([ColSpec(DataType.string)])
    )


def _model_card(folder: Path) -> Any:
    """The folder's README.md where its head can be read; MLflow would look on the hub for one."""
    from huggingface_hub import ModelCard

    card = folder / "README.md"
    try:
        return ModelCard(card.read_text(encoding="utf-8"), ignore_metadata_errors=True)
    except (OSError, UnicodeDecodeError, ValueError):
        return ModelCard("")


def _plain_version(name: str) -> str:
    """The installed version without a local part such as `+cpu`, which package indexes do not have."""
    return importlib.metadata.version(name).split("+")[0]
