"""Folders that appear whole or not at all: built beside, written to disk, then renamed into place.

Whatever is cut off half-way stays under another name and is never taken for a finished folder. The next build of the
same folder is given it.
"""

from __future__ import annotations

import errno
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from trainer.errors import DataError
from trainer.files import FULL, flush, locked
from trainer.manifest import problem_of, seal

_WHOLE_BYTES = 2**21
"""Reading gigabytes at every start would cost more than it finds: larger files are checked at both ends."""
_FORGOTTEN_SECONDS = 7 * 86400


def found_or_built(folder: Path, build: Callable[[Path], None], *, needs: str | None = None) -> bool:
    """Have a complete `folder`, built where it is missing or damaged; true where it was there.

    Several processes may ask for one folder at once: one builds, the others wait and take what it built.

    Args:
        folder: where the result shall be; its parent is made.
        build: fills the folder that it is given. What an earlier one had written there when it was interrupted is
            still there: it goes on with that or writes over it.
        needs: a file without which the folder is not complete.

    Raises:
        DataError: the disk is full or the place cannot be written.
    """
    if is_complete(folder, needs):
        return True
    try:
        with locked(folder.parent / f".{folder.name}.lock") as alone:
            if is_complete(folder, needs):
                return True
            _remove_forgotten(folder.parent)
            # Where the disk knows no locks, others may be building the same.
            own = "" if alone else f".{uuid.uuid4().hex[:8]}"
            partial = folder.parent / f".{folder.name}{own}.unfinished"
            partial.mkdir(exist_ok=True)
            build(partial)
            seal(partial, _WHOLE_BYTES)
            # Without locks another process may have finished first.
            if not is_complete(folder, needs):
                shutil.rmtree(folder, ignore_errors=True)  # damaged, or without what is needed
                partial.replace(folder)
                flush(folder.parent)
            shutil.rmtree(partial, ignore_errors=True)
            return False
    except OSError as error:
        setting = f"cache_dir={str(folder.parent)!r}:"
        if error.errno in FULL:
            raise DataError(
                f"{setting} there is no room for the features ({error.strerror}); free some space and run again, which "
                "goes on where it stopped, or set cache_dir to another disk"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise DataError(
                f"{setting} cannot be written ({error.strerror}); set cache_dir to a folder of your own"
            ) from error
        raise


def is_complete(folder: Path, needs: str | None = None) -> bool:
    """Whether a folder is whole, with the file `needs`."""
    return problem_of(folder, _WHOLE_BYTES) is None and (needs is None or (folder / needs).is_file())


def _remove_forgotten(cache: Path) -> None:
    """What nobody went on with for a week, as of data that was changed since: who builds writes every few seconds."""
    for path in cache.glob(".*.unfinished"):
        times = [file.stat().st_mtime for file in path.glob("*")] or [path.stat().st_mtime]
        if time.time() - max(times) > _FORGOTTEN_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
