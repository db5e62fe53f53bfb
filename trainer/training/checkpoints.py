"""Checkpoints: what is in one, what of it only going on with the training needs, and room for it on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainer.errors import CheckpointError, DiskFullError
from trainer.files import FULL, nearest_folder
from trainer.manifest import problem_of
from trainer.model.adapters import is_adapted
from trainer.model.pretrained import load_model_config
from trainer.model.whisper import limit_training
from trainer.optimizers import optimizer_bytes
from trainer.training.distributed import world_size
from trainer.training.report import Kept

if TYPE_CHECKING:
    from torch import nn

    from trainer.config import TrainConfig
    from trainer.scoring.alignment import ClipErrors

CONFIG_FILE = "train_config.json"
AVERAGE_FILE = "weight_average.safetensors"
"""Beside a model that is a mean of the weights: what else going on with the training needs."""
UTTERANCES_FILE = "utterances.json"
"""`word_errors` and `words` of each validation clip in the split's order, and `texts` of a few, of the checkpoint's own
evaluation."""
_SAMPLES = 10
"""Clips whose texts are kept, evenly spaced in the split."""

_MIB = 2**20
_RESUME_NAMES = re.compile(
    r"optimizer\.pt|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth|trainer_state\.json|training_args\.bin"
    r"|global_step\d+|latest|zero_to_\w+\.py"
    rf"|{re.escape(AVERAGE_FILE)}"
)
"""Files of transformers' trainer, then those of DeepSpeed's engine, then our own."""
_OTHER_FILES_BYTES = 16 * _MIB
"""Tokenizer, settings, random states: 5 MB with Whisper's own tokenizer."""


def write_errors(folder: Path, config: TrainConfig, utterances: ClipErrors) -> None:
    """Write a checkpoint's settings, errors of each clip in its own evaluation and a few texts; the folder is made."""
    texts = utterances.texts
    kept = [texts[row] for row in sorted({len(texts) * n // _SAMPLES for n in range(_SAMPLES)}) if texts]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config.to_dict(), indent=2) + "\n")
    (folder / UTTERANCES_FILE).write_text(dataclasses.replace(utterances, texts=kept).to_json())


def is_only_for_resume(name: str) -> bool:
    """Whether a file of a checkpoint (its path within, with `/`) serves only to go on with the training.

    All else is the model as people use it, or tells of the training. A checkpoint without these files must be
    sealed again.
    """
    return _RESUME_NAMES.fullmatch(PurePosixPath(name).parts[0]) is not None


def check_resumable(folder: Path) -> None:
    """Raise unless a training can go on from this checkpoint exactly.

    Raises:
        CheckpointError: it is not whole, or was kept without its optimiser. The stock trainer would take some
            of those and start with a fresh optimiser, without a word.
    """
    problem = problem_of(folder)
    if problem is None:
        plain = ("optimizer.pt", "scheduler.pt", "trainer_state.json")
        engine = ("latest", "trainer_state.json")
        if not any(all((folder / name).is_file() for name in names) for names in (plain, engine)):
            problem = "it was kept for export only, without its optimiser"
    if problem is not None:
        raise CheckpointError(
            f"checkpoint {folder}: {problem}; training cannot go on from it, use an earlier one"
        )


def estimated_checkpoint_bytes(config: TrainConfig, keep: Kept = "all") -> int:
    """What a checkpoint of this training will take on the disk, at most, from the model's configuration alone.

    Raises:
        ModelError: the configuration cannot be loaded.
    """
    import torch
    from transformers import WhisperForConditionalGeneration

    loaded = load_model_config(config.model)
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(loaded)
    limit_training(model, config)
    return checkpoint_bytes(config, model, keep)


def checkpoint_bytes(config: TrainConfig, model: nn.Module, keep: Kept = "all", share: float = 1.0) -> int:
    """What a checkpoint of `model` takes, at most: float32 weights, and what the optimiser keeps of those that train.

    Without the latter where only the weights are kept; of a model with adapters these alone. Beside the moments are the
    last weights, of which the model is a mean. DeepSpeed writes its own copy of all weights, and with the moments the
    float32 weights that they belong to; `share` of those parts is written on this node.
    """
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    everything = 4 * sum(size for size, _ in sizes)
    trained = 4 * sum(size for size, trains in sizes if trains)
    if is_adapted(model):
        everything = trained
    if keep != "all":
        return _OTHER_FILES_BYTES + (everything if keep == "weights" else 0)
    if config.deepspeed is not None:
        return 2 * everything + trained + round(3 * trained * share) + _OTHER_FILES_BYTES
    return everything + trained + optimizer_bytes(config.optimizer, model) + _OTHER_FILES_BYTES


def disk_full(folder: Path, needed: int) -> DiskFullError:
    """The error for a checkpoint of `needed` bytes that does not fit at `folder`."""
    free = shutil.disk_usage(nearest_folder(folder)).free
    return DiskFullError(
        f"{folder}: the disk is full: {free / 1e9:.2f} GB free, a checkpoint takes {needed / 1e9:.2f} GB; "
        "make room, or use a larger disk (TMPDIR for temporary files, output_dir for a run of its own)"
    )


@contextlib.contextmanager
def full_disk_errors(folder: Path, needed: int) -> Iterator[None]:
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
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    if any(f"os error {number}" in str(error) for number in FULL):  # as safetensors tells it
        return True
    # PyTorch's writer does not pass on the reason for which it failed: ask the disk.
    try:
        with tempfile.TemporaryFile(dir=nearest_folder(folder)) as probe:
            probe.write(bytes(_MIB))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as failure:
        return failure.errno in FULL
    return False
