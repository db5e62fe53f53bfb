"""`from_pretrained` of the hub, a folder or the embedded demo, with failures told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.errors import ModelError
from trainer.memory import is_out_of_memory
from trainer.model.hub_models import fetch_model
from trainer.pickles import refuse_pickles

DEMO_MODEL = Path(__file__).resolve().parents[1] / "demo" / "model"


def model_path(config: TrainConfig) -> str:
    """What `from_pretrained` takes: a hub id or a folder.

    Raises:
        ModelError: the text is neither a short name, a hub id nor an existing folder, or its weights are pickles.
    """
    source = config.model_source
    if source == "demo":
        return str(DEMO_MODEL)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model={config.model!r}: the folder has no config.json; give a Hugging Face model folder"
            )
        refuse_pickles(config.model, folder)
        return str(folder)
    if "\\" in source or source.startswith(("/", ".", "~")) or source.count("/") != 1:
        names = ", ".join(MODEL_SHORT_NAMES)
        raise ModelError(
            f"model={config.model!r}: no such folder; give a folder, a hub id such as openai/whisper-small, "
            f"or one of {names}"
        )
    return source


def find_model(config: TrainConfig) -> Path:
    """The folder that has the model's settings, fetched from the hub where it is not here.

    Raises:
        ModelError: there is no such model, or its weights are pickles.
    """
    path = model_path(config)
    return Path(path) if Path(path).is_dir() else Path(fetch_model(path, weights=False))


def load_pretrained(loader: Any, config: TrainConfig, what: str, **kwargs: Any) -> Any:
    """`loader.from_pretrained`, with failures told in one line."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Bars of a second's length, once a trial, would bury what the search prints.
    logging.disable_progress_bar()
    path = model_path(config)
    # PyTorch tells of damaged files with RuntimeError; elsewhere that would be a fault of the program.
    damaged = (SafetensorError, RuntimeError) if what == "weights" else ()
    if what == "weights":
        kwargs["use_safetensors"] = True
    try:
        if not Path(path).is_dir():
            path = fetch_model(path, weights=what == "weights")
        return loader.from_pretrained(path, **kwargs)
    except (OSError, ValueError, KeyError, StrictDataclassError, *damaged) as error:
        if is_out_of_memory(error):
            raise
        reason = _reason(error)
        if isinstance(error, damaged):
            reason += "; the file is damaged or not this model's: copy or download it again"
        raise ModelError(f"model={config.model!r}: cannot load the {what} from {path!r}: {reason}") from error


def _reason(error: BaseException) -> str:
    """The first line of an error's text, with the next one where it only announces that."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])
