"""What a frozen encoder makes of each clip, computed once for all epochs, evaluations and trials.

It is kept on disk beside the features, in `encoded`, in a folder for each encoder, precision and machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers.modeling_outputs import BaseModelOutput

from trainer.config import TrainConfig
from trainer.files import has_room
from trainer.model.whisper import resolve_precision
from trainer.training.encoder_store import EncoderStore, remove_old
from trainer.training.window import hear

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration

    from trainer.data.prepared import PreparedSplit
    from trainer.training.collator import WhisperCollator

CODE_VERSION = 2
"""Part of a store's name: raise it whenever the same clip would give other numbers or another layout."""
# Autocast rounds to these before the decoder's first use of the numbers: nothing is lost that it would have used.
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_logger = logging.getLogger(__name__)


def add_stores(
    config: TrainConfig,
    model: WhisperForConditionalGeneration,
    features: Path,
    collators: dict[str, WhisperCollator],
) -> dict[str, WhisperCollator]:
    """The collators of a training by role, with the open stores that they and `encode` are to use.

    Nothing changes where the encoder is trained or anything random comes before its output; and, with a line in
    the log, where the disk has too little room or cannot be written.

    Args:
        config: the training's settings.
        model: with the weights that it is trained from.
        features: folder of the features that the collators read.
        collators: each with its split and window.
    """
    if not _is_fixed(config, model):
        return collators
    encoder, root = _encoder_digest(model), features.parent / "encoded"
    width, dtype = int(model.config.d_model), _DTYPES[resolve_precision(config.precision)]
    found = {}
    for role, collator in collators.items():
        name = _store_name(config, encoder, features.name, role, collator.split)
        store = EncoderStore(root / name, len(collator.split), width, dtype)
        found[role] = dataclasses.replace(collator, store=store)
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_old(root, spare={collator.store.folder.name for collator in found.values() if collator.store})
        return _open_where_room(found, width * dtype.itemsize)
    except OSError as error:
        for collator in found.values():
            if collator.store:
                collator.store.close()
        _logger.warning("encoder_cache: %s; the training goes on without", error)
        return collators


def encode(
    model: WhisperForConditionalGeneration, inputs: dict[str, torch.Tensor], store: EncoderStore | None
) -> BaseModelOutput:
    """The encoder's output for a batch as the collator made it, from the store as far as it is there.

    What is not there is computed and, with a store, kept. Called within the trainer's autocast.
    """
    if store is None:
        return _run_encoder(model, inputs["input_features"])
    states = inputs["encoder_outputs"]
    if "missing" in inputs:
        features, clips = inputs["input_features"], inputs["missing_clips"].tolist()
        found, left = store.read(clips, features.shape[-1])  # some have come since the batch was made
        if left:
            found[left] = _run_encoder(model, features[left]).last_hidden_state.to(found.dtype).cpu()
            store.write([clips[place] for place in left], found[left])
        states[inputs["missing"]] = found.to(states.device)
    return BaseModelOutput(last_hidden_state=states)


def part_of(inputs: dict[str, torch.Tensor], clips: slice) -> dict[str, torch.Tensor]:
    """The inputs for some clips of a batch that the collator made."""
    missing = inputs.get("missing")
    if missing is None:
        return {name: value[clips] for name, value in inputs.items()}
    own = (missing >= clips.start) & (missing < clips.stop)
    of_missing = {name: inputs[name][own] for name in ("missing", "missing_clips", "input_features")}
    found = {name: value[clips] for name, value in inputs.items() if name not in of_missing}
    if not len(of_missing["missing"]):
        return found
    return found | of_missing | {"missing": of_missing["missing"] - clips.start}


def _run_encoder(model: WhisperForConditionalGeneration, features: torch.Tensor) -> BaseModelOutput:
    hear(model, features.shape[-1])
    output: BaseModelOutput = model.get_encoder()(features)
    return output


def _is_fixed(config: TrainConfig, model: WhisperForConditionalGeneration) -> bool:
    """Whether a clip has one encoder output for the whole training, and it is to be kept."""
    drops = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop")
    random = config.spec_augment or config.augments or any(getattr(model.config, name) for name in drops)
    wanted = config.encoder_cache and config.method == "decoder" and not config.streaming
    return wanted and config.deepspeed is None and not random


def _encoder_digest(model: WhisperForConditionalGeneration) -> str:
    """Names an encoder by all that it computes with: a copy of a model shares its stores, wherever it lies."""
    names = ("encoder_attention_heads", "activation_function", "scale_embedding")
    digest = hashlib.sha256(json.dumps([getattr(model.config, name) for name in names]).encode())
    for name, tensor in model.get_encoder().state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _store_name(config: TrainConfig, encoder: str, features: str, role: str, split: PreparedSplit) -> str:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arithmetic = [device, resolve_precision(config.precision), config.tf32]
    parts = [CODE_VERSION, encoder, arithmetic, features, role, _clips_digest(split)]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    # Machines that share a disk do not see each other's writes in the order in which they were made.
    return f"{key}-{re.sub(r'[^A-Za-z0-9.-]', '_', platform.node())}"


def _clips_digest(split: PreparedSplit) -> str:
    """Names which clips of the features a split has: those dropped for their texts differ by settings."""
    digest = hashlib.sha256()
    for clip in range(len(split)):
        told = [split.name(clip), split.text(clip), split.frames(clip), split.fill(clip)]
        digest.update(json.dumps(told).encode())
    return digest.hexdigest()


def _open_where_room(
    collators: dict[str, WhisperCollator], position_bytes: int
) -> dict[str, WhisperCollator]:
    """Open the stores; where the disk has too little room for one, nothing more is kept in it.

    What is free has to hold them twice: others write there too, checkpoints above all.
    """
    found, claimed = dict(collators), 0
    for role, collator in collators.items():
        store = collator.store
        assert store is not None
        positions = sum(collator.window(clip) // 2 for clip in range(len(collator.split)))
        # Among longer ones a clip is heard in their window, too.
        needed = positions * position_bytes * (2 if collator.own_window else 1)
        missing = max(0, needed - store.taken_bytes())
        if missing and not has_room(store.folder, 2 * (claimed + missing)):
            store.full = True
            _logger.warning(
                "encoder_cache: %s has too little room to keep the encoder's outputs (%.2f GB more); the training "
                "computes them each time",
                store.folder.parent,
                missing / 1e9,
            )
            if not store.taken_bytes():
                found[role] = dataclasses.replace(collator, store=None)
                continue
        claimed += missing
        store.open()
    return found
