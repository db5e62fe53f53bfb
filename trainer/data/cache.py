"""Folders that appear whole or not at all: built beside, written to disk, then renamed into place.

Whatever is cut off half-way stays under another name and is never taken for a finished folder. The next build of the
same folder is given it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.errors import DataError
from trainer.files import FULL, flush, locked

MANIFEST = "manifest.json"
_FORGOTTEN_SECONDS = 7 * 86400


def found_or_built(
    folder: Path, build: Callable[[Path], dict[str, Any]], *, needs: str | None = None
) -> tuple[dict[str, Any], bool]:
    """The manifest of a complete `folder`, built where it is missing or damaged, and whether it was there.

    Several processes may ask for one folder at once: one builds, the others wait and take what it built.

    Args:
        folder: where the result shall be; its parent is made.
        build: fills the folder that it is given and returns a manifest (plain values). What an earlier one had
            written there when it was interrupted is still there: it goes on with that or writes over it.
        needs: a file without which the folder is not complete.

    Raises:
        DataError: the disk is full or the place cannot be written.
    """
    manifest = read_complete(folder, needs)
    if manifest is not None:
        return manifest, True
    try:
        with locked(folder.parent / f".{folder.name}.lock") as alone:
            manifest = read_complete(folder, needs)
            if manifest is not None:
                return manifest, True
            _remove_forgotten(folder.parent)
            # Where the disk knows no locks, others may be building the same.
            partial = unfinished(
                folder if alone else folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}")
            )
            return _build(folder, partial, build, needs), False
    except OSError as error:
        told = f"cache_dir={str(folder.parent)!r}:"
        if error.errno in FULL:
            raise DataError(
                f"{told} the features do not fit ({error.strerror}); free some space, or set cache_dir to another disk"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DataError(
                f"{told} cannot be written ({error.strerror}); set cache_dir to a folder of your own"
            ) from error
        raise


def read_complete(folder: Path, needs: str | None = None) -> dict[str, Any] | None:
    """The manifest of a folder that is whole: every file has its size, small ones also their checksum."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, told in manifest["files"].items():
            if (folder / name).stat().st_size != told["size"]:
                return None
            if told["sha256"] is not None and _checksum(folder / name) != told["sha256"]:
                return None
        return dict(manifest) if needs is None or needs in manifest["files"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def unfinished(folder: Path) -> Path:
    """Where a folder is built."""
    return folder.parent / f".{folder.name}.unfinished"


def _build(
    folder: Path, partial: Path, build: Callable[[Path], dict[str, Any]], needs: str | None
) -> dict[str, Any]:
    try:
        partial.mkdir(exist_ok=True)
        manifest = build(partial)
        manifest["files"] = {path.name: _sealed(path) for path in sorted(partial.iterdir())}
        target = partial / MANIFEST
        target.write_text(json.dumps(manifest, ensure_ascii=False, indent=1), encoding="utf-8")
        flush(target)
        flush(partial)
        # Without locks another process may have finished first.
        if read_complete(folder, needs) is None:
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or without what is needed
            partial.replace(folder)
            flush(folder.parent)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk has no use for half of it
        raise
    shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _sealed(path: Path) -> dict[str, Any]:
    """Size of a file that is safely on the disk, and the checksum of a small one."""
    flush(path)
    # Reading gigabytes at every start would cost more than it finds; their size tells a file that was cut off.
    small = path.suffix not in (".f16", ".i16", ".npy")
    return {"size": path.stat().st_size, "sha256": _checksum(path) if small else None}


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove_forgotten(cache: Path) -> None:
    """What nobody went on with for a week, as of data that was changed since: who builds writes every few seconds."""
    for path in cache.glob(".*.unfinished"):
        times = [file.stat().st_mtime for file in path.glob("*")] or [path.stat().st_mtime]
        if time.time() - max(times) > _FORGOTTEN_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
