"""Locks on files, also where the disk knows none, as some network disks do."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import IO

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


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
