"""Files that are whole at any time, brought to the disk, and locked (also where the disk knows no locks)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a file system's largest file that is full."""
_PROBE = 1 << 16
"""Bytes that are written to find out whether a disk takes any."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def write_whole(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write a file whole or not at all; whoever reads it meanwhile sees the one before.

    Text is written as UTF-8, its line ends as they are. `sync` brings it to the disk before it takes its name.

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


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A path beside a folder, at which it is made whole or not at all: it takes its name when the block has ended.

    Nothing is left of a block that fails, or that removes what it made.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    try:
        yield partial
        if partial.exists():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def flush(path: Path) -> None:
    """Return once a file's content, or a folder's list of names, is on the disk.

    Raises:
        OSError: the disk is full or fails.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Buckets mounted as folders know no such thing, and have nothing to lose by it.
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def has_room(folder: Path, needed: int) -> bool:
    """Whether `needed` bytes are free where `folder` is or will be."""
    return shutil.disk_usage(nearest_folder(folder)).free >= needed


def check_room(folder: Path) -> None:
    """Find out whether a folder, which may be missing yet, takes files.

    Raises:
        OSError: it is a file or lies below one, may not be written, or its disk is full.
    """
    for path in (folder, *folder.absolute().parents):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    with tempfile.TemporaryFile(dir=nearest_folder(folder)) as file:
        file.write(bytes(_PROBE))


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def take_lock(file: IO[str] | int) -> bool:
    """Wait for the lock on an open file, held until it is closed; false where the disk knows no locks.

    The kernel lets go of a lock when a process dies, however it dies, so nobody waits for the dead.
    """
    return _lock(file, fcntl.LOCK_EX) is not None


def try_lock(file: IO[str] | int, *, shared: bool = False) -> bool | None:
    """Take the lock on an open file, held until it is closed, if it is free.

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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file, made with its folder where it is missing; false where the disk knows no locks.

    Who has waited for a file that was removed meanwhile makes a new one, as all who come later do.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("a")
        except FileNotFoundError:  # whoever made the folder has just removed it
            continue
        with file:
            known = take_lock(file)
            if known and not _is_at(file, path):
                continue
            yield known
            return


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: IO[str] | int, how: int) -> bool | None:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True
