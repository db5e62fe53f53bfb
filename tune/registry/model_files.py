"""A Whisper folder as an MLflow model: the transformers flavour, and a pyfunc that takes audio files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from tune.errors import ModelError
from tune.trainable import find_model

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature

TASK = "automatic-speech-recognition"
CODE_PACKAGE = "tune_whisper_speech"
"""What `speech_model.py` and its helpers are called inside a model: a name that hides no installed package."""
_CODE = {
    "tune.registry.speech_model": "__init__.py",
    "trainer.audio": "audio.py",
    "trainer.transcription.pauses": "pauses.py",
}
"""Modules that travel with a model, and their files there."""
_REQUIREMENTS = ("mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers")


def save_model(
    folder: Path, target: Path, model: Model, *, metadata: Mapping[str, Any], base_model: str, gap: str
) -> None:
    """Write the MLflow model of a Hugging Face folder.

    MLflow 3.17's way to save such a folder without loading it fails with transformers 5.23 (`pipelines.check_task`
    has become lazy), so the model is loaded. Its generation config is then copied as it is: language, task and
    greedy decoding must not depend on what two libraries leave out as a default.

    Args:
        folder: weights, processor and generation config.
        target: the folder to write.
        model: the `mlflow.models.Model` to fill in.
        metadata: what `MLmodel` shall say of the model.
        base_model: what it was fine-tuned from, for the record.
        gap: what stands between pieces of a long transcript.

    Raises:
        ModelError: the folder holds no Whisper that can be loaded.
    """
    import mlflow
    from mlflow import pyfunc

    pipeline = _load_pipeline(folder)
    model.metadata = dict(metadata)
    with tempfile.TemporaryDirectory(prefix="model-code-") as scratch:
        mlflow.transformers.save_model(
            pipeline,
            str(target),
            task=TASK,
            mlflow_model=model,
            signature=_signature(),
            model_card=_model_card(folder),
            code_paths=[str(_copy_code(Path(scratch) / CODE_PACKAGE))],
            pip_requirements=[f"{name}=={_plain_version(name)}" for name in _REQUIREMENTS],
        )
    shutil.copyfile(folder / "generation_config.json", target / "model" / "generation_config.json")
    # Without a repository on the hub MLflow writes a "license" that only says so, with the path of our folder in it.
    (target / "LICENSE.txt").unlink(missing_ok=True)
    model.flavors["transformers"]["source_model_name"] = base_model
    ours = model.flavors[pyfunc.FLAVOR_NAME]
    ours[pyfunc.MAIN] = CODE_PACKAGE
    ours[pyfunc.MODEL_CONFIG] = {"gap": gap}
    model.save(str(target / "MLmodel"))


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
            TASK, str(folder.absolute()), device="cpu", model_kwargs={"use_safetensors": True}
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{folder}: cannot be loaded as a Whisper model: {first}") from error


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


def _copy_code(package: Path) -> Path:
    """The modules that travel along, in a package of their own, importing each other from there."""
    package.mkdir()
    for module, name in _CODE.items():
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            raise RuntimeError(f"{module} is not installed")
        text = Path(found.origin).read_text(encoding="utf-8")
        for other, file in _CODE.items():
            text = text.replace(f"from {other} import", f"from {CODE_PACKAGE}.{Path(file).stem} import")
        (package / name).write_text(text, encoding="utf-8")
    return package


def _plain_version(name: str) -> str:
    """The installed version without a local part such as `+cpu`, which package indexes do not have."""
    return importlib.metadata.version(name).split("+")[0]
