"""Checkpoints: whether one is whole, what in it only going on with the training needs, and room for it on the disk.

A killed process, a full disk or a broken copy leaves folders that look like checkpoints. So `manifest.json` is
written last, under its name only when it is complete, and lists every other file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trainer.errors import CheckpointError, DiskFullError
from trainer.files import FULL, flush, nearest_folder, write_whole
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

MANIFEST = "manifest.json"
CONFIG_FILE = "train_config.json"
"""The settings of the training."""
UTTERANCES_FILE = "utterances.json"
"""`word_errors` and `words` of each validation clip in the split's order, of the checkpoint's own evaluation."""

_MIB = 2**20
_WHOLE_BYTES = 64 * _MIB
"""Files below are read whole for their check sum, larger ones only at both ends."""
_RESUME_NAMES = re.compile(
    r"optimizer\.pt|scheduler\.pt|scaler\.pt|rng_state(_\d+)?\.pth|trainer_state\.json|training_args\.bin"
    r"|global_step\d+|latest|zero_to_\w+\.py"
)
"""Files of transformers' trainer, then those of DeepSpeed's engine."""
_OTHER_FILES_BYTES = 16 * _MIB
"""Tokenizer, settings, random states: 5 MB with Whisper's own tokenizer."""


def files_of(folder: Path) -> dict[str, dict[str, int]]:
    """What the manifest says of the files that a folder holds: their `bytes`, and `crc32`.

    The CRC-32 of a file of 64 MiB and more is that of its first and its last MiB.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {
        name: {"bytes": (folder / name).stat().st_size, "crc32": _crc32(folder / name)}
        for name in names
        if name not in (MANIFEST, f".{MANIFEST}.partial")
    }


def manifest_of(files: Mapping[str, Mapping[str, int]]) -> str:
    """The manifest of a complete checkpoint with these files."""
    return json.dumps({"files": files}, indent=2) + "\n"


def seal(folder: Path) -> None:
    """Write the manifest of a complete checkpoint; a new one if there is one.

    All files are on the disk before the manifest takes its name.
    """
    files = files_of(folder)
    flush_all(folder)
    write_whole(folder / MANIFEST, manifest_of(files), sync=True)
    flush(folder)


def flush_all(folder: Path) -> None:
    """Return once all that a folder holds is on the disk, its entries too; raises `OSError` as `flush` does."""
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            flush(path)


def write_errors(folder: Path, config: TrainConfig, utterances: ClipErrors) -> None:
    """Write a checkpoint's settings, and the errors of each clip in its own evaluation; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config.to_dict(), indent=2) + "\n")
    (folder / UTTERANCES_FILE).write_text(utterances.to_json())


def problem_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in one line; `None` where all that its manifest lists is there.

    Files that are not in the manifest do not count.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = [(str(name), int(file["bytes"]), int(file["crc32"])) for name, file in files.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing" if folder.is_dir() else "the folder is missing"
    except OSError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    problems = (_problem_of_file(folder, *file) for file in listed)
    return next((problem for problem in problems if problem is not None), None)


def _problem_of_file(folder: Path, name: str, size: int, crc32: int) -> str | None:
    path = folder / name
    try:
        found = path.stat().st_size
        if found != size:
            return f"{name} has {found:,} of {size:,} bytes"
        return None if _crc32(path) == crc32 else f"{name} is damaged: its check sum is another"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def _crc32(path: Path) -> int:
    size, value = path.stat().st_size, 0
    with path.open("rb") as file:
        if size >= _WHOLE_BYTES:
            value = zlib.crc32(file.read(_MIB))
            file.seek(size - _MIB)
        while piece := file.read(_MIB):
            value = zlib.crc32(piece, value)
    return value


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
            f"checkpoint {folder}: {problem}; no training can go on from it, take an earlier one"
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

    Without the latter where only the weights are kept; of a model with adapters these alone. DeepSpeed writes its own
    copy of the weights besides, and with the moments the float32 weights that they belong to; `share` of those parts is
    written on this node.
    """
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    everything = 4 * sum(size for size, _ in sizes)
    trained = 4 * sum(size for size, trains in sizes if trains)
    if is_adapted(model):
        everything = trained
    if keep != "all":
        return _OTHER_FILES_BYTES + (everything if keep == "weights" else 0)
    if config.deepspeed is not None:
        return 2 * everything + round(3 * trained * share) + _OTHER_FILES_BYTES
    return everything + optimizer_bytes(config.optimizer, model) + _OTHER_FILES_BYTES


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
