"""Files that are whole at any time, locks (also where the disk knows none, as some network disks do), JSON objects."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from tune.util.errors import ModelError, first_line

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def write_whole(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write a file whole or not at all; whoever reads it meanwhile sees the one before.

    Args:
        path: of the file.
        content: text is written as UTF-8, its line ends as they are.
        sync: bring it to the disk before it takes its name.

    Raises:
        OSError: it cannot be written. Nothing is left of it: on a disk that is full other files have the room.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # what is told is why it could not be written
            partial.unlink(missing_ok=True)
        raise


def take_lock(file: IO[str] | int) -> bool:
    """Wait for the lock on an open file, held until it is closed; false where the disk knows no locks."""
    return _lock(file, fcntl.LOCK_EX) is not None


def try_lock(file: IO[str] | int, *, shared: bool = False) -> bool | None:
    """Take the lock on an open file, held until it is closed, if it is free.

    Args:
        file: open, or its descriptor.
        shared: take it beside others who do so.

    Returns:
        False where somebody holds it, None where the disk knows no locks.
    """
    try:
        return _lock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False


def is_locked(path: Path) -> bool | None:
    """Whether a process of this machine, or of one that shares the folder, holds the lock of a file.

    None where nobody can tell: the disk knows no locks, or the file is somebody else's.
    """
    try:
        with path.open() as file:
            free = try_lock(file, shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return None if free is None else not free


def _lock(file: IO[str] | int, how: int) -> bool | None:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model's folder; empty where there is no such file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return content
