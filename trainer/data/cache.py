"""Folders that appear whole or not at all: built beside, written to disk, then renamed into place.

Whatever is cut off half-way stays under another name and is never taken for a finished folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.errors import DataError
from trainer.files import FULL, flush, locked

MANIFEST = "manifest.json"
_FORGOTTEN_SECONDS = 7 * 86400


@contextlib.contextmanager
def found_or_built(
    folder: Path, build: Callable[[Path], dict[str, Any]], goes_on: Callable[[], bool] | None = None
) -> Iterator[tuple[dict[str, Any], bool]]:
    """The manifest of a complete `folder`, built where it is missing or damaged, and whether it was there.

    Several processes may ask for one folder at once: one builds, the others wait and take what it built.
    Where building fails, or what the `with` block does with what was built, nothing of it is left.

    Args:
        folder: where the result shall be; its parent is made.
        build: fills the folder that it is given and returns a manifest (plain values).
        goes_on: `build` is given what it had written when it was killed, to go on with; told where it is interrupted
            otherwise, whether anything of it is worth keeping.

    Raises:
        DataError: the disk is full or the place cannot be written.
    """
    manifest = read_complete(folder)
    if manifest is not None:
        yield manifest, True
        return
    with contextlib.ExitStack() as stack:
        with _told_of_disk(folder):
            alone = stack.enter_context(_alone(folder))
            manifest = read_complete(folder)
            reused = manifest is not None
            if manifest is None:
                if alone:
                    _remove_partial(folder)
                    _remove_forgotten(folder.parent)
                manifest = _build(folder, build, goes_on if alone else None)
        try:
            yield manifest, reused
        except BaseException:
            # Without a lock another process may be using it already.
            if alone and not reused:
                shutil.rmtree(folder, ignore_errors=True)
            raise


@contextlib.contextmanager
def _told_of_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DataError(
                f"cache_dir={str(folder.parent)!r}: the features do not fit ({error.strerror}); free some "
                "space, or set cache_dir to another disk"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DataError(
                f"cache_dir={str(folder.parent)!r}: cannot be written ({error.strerror}); set cache_dir "
                "to a folder of your own"
            ) from error
        raise


def read_complete(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that is whole: every file has its size, small ones also their checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, told in manifest["files"].items():
            path = folder / name
            if path.stat().st_size != told["size"]:
                return None
            if told["sha256"] is not None and hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return dict(manifest)


def unfinished(folder: Path) -> Path:
    """Where a folder is built that goes on where it was when it was killed."""
    return folder.parent / f".{folder.name}.unfinished"


def _build(
    folder: Path, build: Callable[[Path], dict[str, Any]], goes_on: Callable[[], bool] | None
) -> dict[str, Any]:
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
    if goes_on is not None:
        partial = unfinished(folder)
    partial.mkdir(exist_ok=goes_on is not None)
    keep = False
    try:
        manifest = build(partial)
        manifest["files"] = {path.name: _sealed(path) for path in sorted(partial.iterdir())}
        target = partial / MANIFEST
        target.write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
        flush(target)
        flush(partial)
        _move_into_place(partial, folder)
        flush(folder.parent)
    except BaseException as error:
        # A full disk has no use for half of it; whoever ends the program may come back.
        keep = goes_on is not None and not isinstance(error, OSError) and goes_on()
        raise
    finally:
        # After the rename there is nothing left under this name.
        if not keep:
            shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _sealed(path: Path) -> dict[str, Any]:
    """Size of a file that is safely on the disk, and the checksum of a small one."""
    flush(path)
    size = path.stat().st_size
    # Reading gigabytes at every start would cost more than it finds; their size tells a file that was cut
    # off.
    small = path.suffix not in (".f16", ".i16", ".i32", ".i64")
    return {"size": size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest() if small else None}


def _move_into_place(partial: Path, folder: Path) -> None:
    """Rename onto `folder`, moving a damaged one away first."""
    for _ in range(2):
        try:
            partial.replace(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        # Without a lock (some network disks have none) another process may have finished first.
        if read_complete(folder) is not None:
            return
        damaged = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.partial"
        with contextlib.suppress(FileNotFoundError):
            folder.replace(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    partial.replace(folder)


def _remove_partial(folder: Path) -> None:
    """What processes that were killed left behind. Only with the lock held: else it may be another's work."""
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_forgotten(cache: Path) -> None:
    """What nobody went on with for a week, as of data that was changed since: who builds writes every few seconds."""
    for path in cache.glob(".*.unfinished"):
        times = [file.stat().st_mtime for file in path.glob("*")] or [path.stat().st_mtime]
        if time.time() - max(times) > _FORGOTTEN_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Wait until no other process builds `folder`; false where the disk knows no locks.

    The lock's file stays for the next; only after an error it goes, and the folders that were made for it.
    """
    path = folder.parent / f".{folder.name}.lock"
    missing = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    try:
        with locked(path) as alone:
            try:
                yield alone
            except BaseException:
                if alone:  # those who wait for this very file see that it is gone, and make a new one
                    path.unlink(missing_ok=True)
                raise
    except BaseException:
        with contextlib.suppress(OSError):  # not empty: others have put something there
            for place in missing:
                place.rmdir()
        raise
