"""Error rates of untouched models that were measured before, kept beside the features.

An experiment begins with its base model's rates, and the next one on the same data with the same model would measure
the same again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.columns import PLAIN
from trainer.model.pretrained import fetch_model, model_path
from trainer.model.whisper import load_model_config
from trainer.scoring.alignment import UtteranceErrors
from trainer.training.window import varies, window_frames

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedData
    from trainer.train import Evaluation

CODE_VERSION = 4
"""Part of the name: raise it whenever our own code would come to other rates."""
_SETTINGS = ("language", "task", "normalizer", "precision", "generation_max_length", "generation_num_beams")
_PACKAGES = ("torch", "transformers", "tokenizers", "jiwer")


def recall_rates(
    config: TrainConfig,
    data: PreparedData,
    device: str,
    split: str,
    *,
    as_in_training: bool = False,
    clips: Sequence[int] | None = None,
) -> Evaluation | None:
    """The rates of `config.model` on a split as `keep_rates` wrote them down, without transcripts.

    Args:
        config: the model and what it decodes and is judged with.
        data: the prepared data.
        device: `cpu` or the name of a GPU.
        split: `validation` or `test`.
        as_in_training: whether they are those in the window of a training with these settings.
        clips: the clips that were measured; None for all.
    """
    from trainer.train import Evaluation

    try:
        path = _file(config, data, device, split, as_in_training, clips)
        kept = json.loads(path.read_text(encoding="utf-8"))
        utterances = UtteranceErrors(**kept.pop("utterances"))
        return Evaluation(**kept, utterances=utterances, predictions=[])
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError):  # cut off, or of another version: measured anew
        return None


def keep_rates(
    config: TrainConfig,
    data: PreparedData,
    device: str,
    split: str,
    found: Evaluation,
    *,
    as_in_training: bool = False,
    clips: Sequence[int] | None = None,
) -> None:
    """Write down the rates of `config.model` on a split for `recall_rates`.

    Raises:
        OSError: they cannot be written.
    """
    if found.utterances is None:
        return
    path = _file(config, data, device, split, as_in_training, clips)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    content = {**found.rates(), "sources": found.sources, "utterances": dataclasses.asdict(found.utterances)}
    content |= {"tokens": found.tokens, "token_limit": found.token_limit}
    temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
    temporary.replace(path)


def _file(
    config: TrainConfig,
    data: PreparedData,
    device: str,
    name: str,
    as_in_training: bool,
    chosen: Sequence[int] | None,
) -> Path:
    """Beside the features; named by all that the rates come from."""
    split = data.splits[name]
    clips = [(split.name(clip), split.text(clip), split.labels(clip)) for clip in range(len(split))]
    parts: list[Any] = [CODE_VERSION, device, data.folder.name, clips, _fingerprint(config)]
    parts += [getattr(config, name) for name in _SETTINGS]
    if as_in_training:
        full = 2 * int(load_model_config(config).max_source_positions)
        parts += [window_frames(config, data, full), varies(config)]
    parts += [chosen if chosen is None else list(chosen)]
    packages = (*_PACKAGES, *(["sacrebleu"] if config.task == "translate" else []))
    parts += [importlib.metadata.version(package) for package in packages]
    if (origins := split.origins).kinds != (PLAIN,):
        parts += [config.objective, [origins.kinds[number].source for number in origins.numbers]]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    return data.folder.parent / "baselines" / f"{key}.json"


def _fingerprint(config: TrainConfig) -> list[Any]:
    """What tells a model from another one, or from itself after a change: not the weights, which can be gigabytes.

    Raises:
        ModelError: the model cannot be found.
    """
    path = model_path(config)
    folder = Path(path) if Path(path).is_dir() else Path(fetch_model(path, weights=False))
    found: list[Any] = [str(folder)]
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            stat = file.stat()
            found.append([file.name, stat.st_size, stat.st_mtime_ns])
        elif file.suffix in (".json", ".txt"):
            found.append([file.name, hashlib.sha256(file.read_bytes()).hexdigest()])
    return found
