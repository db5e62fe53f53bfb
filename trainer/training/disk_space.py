"""Room on the disk for checkpoints: how much one takes, and one line that says so where it does not fit."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import DiskFullError
from trainer.model.whisper import load_model_config
from trainer.training.distributed import world_size

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import TrainConfig

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OTHER_FILES_BYTES = 16 * 2**20
"""Tokenizer, settings, random states: 5 MB with Whisper's own tokenizer."""
_PROBE_BYTES = 2**20


def estimated_checkpoint_bytes(config: TrainConfig) -> int:
    """What a checkpoint of this training will take on the disk, at most, from the model's configuration alone.

    Raises:
        ModelError: the configuration cannot be loaded.
    """
    import torch
    from transformers import WhisperForConditionalGeneration

    loaded = load_model_config(config)
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(loaded)
    if config.freeze_encoder:
        model.freeze_encoder()
    return checkpoint_bytes(model, deepspeed=config.deepspeed is not None)


def checkpoint_bytes(model: nn.Module, *, deepspeed: bool, share: float = 1.0) -> int:
    """What a checkpoint of `model` takes, at most: float32 weights and Adam's two moments of those that train.

    DeepSpeed writes its own copy of the weights besides, and with the moments the float32 weights that they
    belong to; `share` of those parts is written on this node.
    """
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    everything = 4 * sum(size for size, _ in sizes)
    trained = 4 * sum(size for size, trains in sizes if trains)
    if deepspeed:
        return 2 * everything + round(3 * trained * share) + _OTHER_FILES_BYTES
    return everything + 2 * trained + _OTHER_FILES_BYTES


def has_room(folder: Path, needed: int) -> bool:
    """Whether `needed` bytes are free where `folder` is or will be."""
    return shutil.disk_usage(_existing(folder)).free >= needed


def disk_full(folder: Path, needed: int) -> DiskFullError:
    """The error for a checkpoint of `needed` bytes that does not fit at `folder`."""
    free = shutil.disk_usage(_existing(folder)).free
    return DiskFullError(
        f"{folder}: the disk is full: {free / 1e9:.2f} GB free, a checkpoint takes {needed / 1e9:.2f} GB; "
        "make room, or use a larger disk (TMPDIR for temporary files, output_dir for a run of its own)"
    )


@contextlib.contextmanager
def told_when_full(folder: Path, needed: int) -> Iterator[None]:
    """Turn a full disk or quota while `folder` is written into one line.

    One process by itself also removes the half checkpoint; of several, others may still be writing to it.

    Raises:
        DiskFullError: the disk or the quota was full.
    """
    try:
        yield
    except Exception as error:
        # `tokenizers` raises a plain `Exception` where it cannot write, and each of the other writers a class of
        # its own: what tells a full disk is not the class. Whatever is not one goes on as it is.
        if not _is_full(error, folder):
            raise
        full = disk_full(folder, needed)
        if world_size() == 1:
            shutil.rmtree(folder, ignore_errors=True)
        raise full from error


def _is_full(error: Exception, folder: Path) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if any(f"os error {number}" in str(error) for number in _FULL):  # as safetensors tells it
        return True
    # PyTorch's writer does not pass on the reason for which it failed: ask the disk.
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as failure:
        return failure.errno in _FULL
    return False


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
