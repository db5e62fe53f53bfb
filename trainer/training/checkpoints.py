"""Whether a checkpoint is whole, and what in it only going on with the training needs.

A killed process, a full disk or a broken copy leaves folders that look like checkpoints. So `manifest.json` is
written last, under its name only when it is complete, and lists every other file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from pathlib import Path, PurePosixPath

from trainer.errors import CheckpointError

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


def seal(folder: Path) -> None:
    """Write the manifest of a complete checkpoint: bytes and CRC-32 of every file; a new one if there is one.

    The CRC-32 of a file of 64 MiB and more is that of its first and its last MiB. All files are on the disk before
    the manifest takes its name.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {
        name: {"bytes": (folder / name).stat().st_size, "crc32": _crc32(folder / name)}
        for name in names
        if name not in (MANIFEST, f".{MANIFEST}")
    }
    aside = folder / f".{MANIFEST}"
    aside.write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")
    flush(folder)
    aside.replace(folder / MANIFEST)
    _flush_entry(folder)


def flush(folder: Path) -> None:
    """Return once all that a folder holds is on the disk, its entries too.

    Raises:
        OSError: the disk is full or fails.
    """
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            _flush_entry(path)


def _flush_entry(path: Path) -> None:
    """Bring a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Buckets mounted as folders know no such thing, and have nothing to lose by it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def unseal(folder: Path) -> None:
    """Take the manifest away, before anything in the checkpoint is written anew."""
    (folder / MANIFEST).unlink(missing_ok=True)


def problem_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in one line; `None` where all that its manifest lists is there.

    Files that are not in the manifest do not count.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        told = [(str(name), int(file["bytes"]), int(file["crc32"])) for name, file in files.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing" if folder.is_dir() else "the folder is missing"
    except OSError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    problems = (_problem_of_file(folder, *file) for file in told)
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
