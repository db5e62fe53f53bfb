"""What `evaluate` takes for a model: a folder, a hub id, a short name, or an experiment and so its winner."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.errors import ConfigError, ModelError
from trainer.files import write_whole
from trainer.model.adapters import ADAPTER_WEIGHTS
from trainer.model.pretrained import find_model
from tune.experiments.experiment import Experiment, Find
from tune.experiments.folder import EXPERIMENT_FILE, SPLITS_FILE
from tune.experiments.storage import Storage
from tune.util.files import read_object

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", ADAPTER_WEIGHTS)


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """A model that can be loaded, and what is known of the training that made it."""

    shown: str
    """Its name for people: a folder's own name, all else as it was given."""
    source: str
    """As `TrainConfig.model` takes it."""
    settings: Mapping[str, Any]
    """Of its training; of another model at most the language."""


@contextlib.contextmanager
def open_model(word: str, storage: Storage, find: Find) -> Iterator[NamedModel]:
    """Find a model; a checkpoint in an object store is here until the block ends.

    Raises:
        ModelError: there is no such model, or its folder has no weights.
        ExperimentError: the experiment has no winner whose weights are there.
        StorageError: the object store cannot be read.
    """
    path = Path(word).expanduser()
    if word in MODEL_SHORT_NAMES:
        yield NamedModel(word, word, {})
    elif (path / EXPERIMENT_FILE).is_file():
        with _winner(type(storage).parse(path.absolute().parent), path.absolute().name, find) as found:
            yield found
    elif path.is_dir():
        yield _folder(word, path)
    elif _is_name(word) and word in storage.names():
        with _winner(storage, word, find) as found:
            yield found
    elif _is_hub_id(word):
        yield NamedModel(word, word, {})
    else:
        raise _unknown(word, storage)


def _is_name(word: str) -> bool:
    return bool(word) and "/" not in word and "\\" not in word


def _is_hub_id(word: str) -> bool:
    owner, _, name = word.partition("/")
    return bool(owner and name) and "/" not in name and "\\" not in word and not word.startswith((".", "~"))


def _unknown(word: str, storage: Storage) -> ModelError:
    names = [*MODEL_SHORT_NAMES, *storage.names()] if _is_name(word) else []
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return ModelError(
        f"model {word!r}: is not a folder, an experiment in {storage.text}, a hub id such as openai/whisper-small or "
        f"a short name such as small{hint}"
    )


@contextlib.contextmanager
def _winner(storage: Storage, experiment: str, find: Find) -> Iterator[NamedModel]:
    saved = Experiment.read(find(experiment, storage))
    with saved.checkpoint(saved.best) as checkpoint:
        yield NamedModel(experiment, str(checkpoint), saved.config(saved.best).to_dict())


def _folder(word: str, path: Path) -> NamedModel:
    if not (path / "config.json").is_file():
        there = ", ".join(sorted(entry.name for entry in path.iterdir())[:6]) or "nothing"
        raise ModelError(
            f"model {word!r}: the folder has no config.json; give a Hugging Face model folder, as "
            f"tune-whisper export writes it (it has {there})"
        )
    find_model(str(path))  # which refuses what must not be loaded
    if not any((path / name).is_file() for name in _WEIGHTS):
        converted = [entry.name for entry in path.iterdir() if entry.suffix in (".bin", ".ggml")]
        which = f"; {converted[0]} is in another format" if converted else ""
        raise ModelError(
            f"model {word!r}: the folder has no weights (model.safetensors){which}; give a "
            "Hugging Face model folder with them"
        )
    return NamedModel(path.absolute().name, str(path.absolute()), _settings(path))


SETTINGS_FILE = "train_config.json"


def exported_settings(folder: Path) -> dict[str, Any]:
    """The settings that `export` wrote beside a model, with the splits beside them; empty where it wrote none.

    Raises:
        ModelError: the file cannot be read.
    """
    settings, splits = read_object(folder / SETTINGS_FILE), folder / SPLITS_FILE
    kept = {"splits": str(splits.absolute()) if splits.is_file() else None}
    return settings | kept if settings else {}


def write_exported_settings(config: TrainConfig, folder: Path) -> None:
    """Write them, with a copy of the splits, so that a model is not measured on clips that it was trained on."""
    if config.splits is not None:
        shutil.copyfile(config.splits, folder / SPLITS_FILE)
    content = config.replace(splits=None).to_dict()
    write_whole(folder / SETTINGS_FILE, json.dumps(content, indent=2) + "\n")


def _settings(folder: Path) -> dict[str, Any]:
    """The settings that `export` wrote beside the model; of other folders the language that they decode in."""
    with contextlib.suppress(ConfigError, ModelError):  # of a later version, or of another program
        if settings := exported_settings(folder):
            return TrainConfig.from_dict(settings).to_dict()
    generation = read_object(folder / "generation_config.json")
    language, task = generation.get("language"), generation.get("task")
    found = {}
    if isinstance(language, str):
        with contextlib.suppress(ConfigError):
            found["language"] = TrainConfig(language=language.strip("<|>")).language
    if task in ("transcribe", "translate"):
        found["task"] = task
    return found
