"""Files in which the encoder's output of each clip is kept; see `encoder_cache`.

A store belongs to one machine. It is filled clip by clip while trainings go along, by any number of processes at
once: they write the same numbers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.files import FULL, locked, try_lock

KEPT_DAYS = 30
"""Stores that nobody has used for so long are removed."""

_USED = "used"
_FLAG_BYTES, _PAGE = 8, 4096
_NOT_REMOVABLE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Removed by another process meanwhile, or another user's."""
_TOUCH_SECONDS = 3600

_logger = logging.getLogger(__name__)


class EncoderStore:
    """Encoder outputs of the clips of one split, (positions, width) each, as far as they are there.

    Each window that clips were heard in has a file of its own, with a flag for every clip in front. It takes the
    room of those clips only that are in it. It is read and written by system calls: a disk that fills up kills a
    process that writes through a memory map. A clip's flag is written after its numbers, and tells which start of the
    machine it was written in: after a crash of the machine the disk may have the flag and not the numbers, so
    earlier ones do not count.
    """

    def __init__(self, folder: Path, n_clips: int, width: int, dtype: torch.dtype) -> None:
        self.folder = folder
        self.full = False
        """Whether nothing more is kept, as there is no room."""
        self._n_clips, self._width, self._dtype = n_clips, width, dtype
        self._mark = _mark_of_this_start()
        self._touched = 0.0
        self._lock = contextlib.ExitStack()
        self._files: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        # File descriptors are this process' own; another one opens the files itself.
        return self.__dict__ | {"_lock": contextlib.ExitStack(), "_files": {}}

    def taken_bytes(self) -> int:
        """What the store takes on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.glob("*.frames"))

    def open(self) -> None:
        """Make the folder where it is missing, and keep others from removing it.

        Raises:
            OSError: the place cannot be written.
        """
        used = self.folder / _USED
        self._lock.enter_context(locked(used, shared=True))
        os.utime(used)

    def close(self) -> None:
        """Give the files back; others may remove them when they are old."""
        while self._files:
            os.close(self._files.popitem()[1])
        self._lock.close()

    def read(self, clips: Sequence[int], frames: int) -> tuple[torch.Tensor, list[int]]:
        """The clips' numbers (B, positions, width), and the places in `clips` of those that are not there.

        Args:
            clips: their positions in the split.
            frames: of the window that they are heard in, two for each of the encoder's positions.

        Raises:
            OSError: a file cannot be read, or is shorter than it was made.
        """
        if time.monotonic() - self._touched > _TOUCH_SECONDS:
            with contextlib.suppress(FileNotFoundError):  # removed by hand: what is open stays readable
                os.utime(self.folder / _USED)
            self._touched = time.monotonic()
        states = torch.empty((len(clips), frames // 2, self._width), dtype=self._dtype)
        file = self._file(frames, create=False)
        if file is None:
            return states, list(range(len(clips)))
        missing = []
        for place, (clip, row) in enumerate(zip(clips, _rows(states), strict=True)):
            if os.pread(file, _FLAG_BYTES, clip * _FLAG_BYTES) == self._mark:
                self._fill(file, row, self._begin(clip, len(row)))
            else:
                missing.append(place)
        return states, missing

    def write(self, clips: Sequence[int], states: torch.Tensor) -> None:
        """Keep the clips' numbers, (B, positions, width) as `read` gives them, until the disk is full."""
        if self.full:
            return
        try:
            file = self._file(2 * states.shape[1], create=True)
            assert file is not None
            for clip, row in zip(clips, _rows(states), strict=True):
                begin, done = self._begin(clip, len(row)), 0
                while done < len(row):
                    done += os.pwrite(file, row[done:], begin + done)
                os.pwrite(file, self._mark, clip * _FLAG_BYTES)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.full = True
            _logger.warning("%s: %s; encoder outputs that are not there yet are not kept", self.folder, error)

    def _file(self, frames: int, *, create: bool) -> int | None:
        """The file of a window; None where it is not there and not to be made."""
        if frames not in self._files:
            try:
                made = os.O_CREAT if create else 0
                file = os.open(self.folder / f"{frames}.frames", os.O_RDWR | made, 0o666)
            except FileNotFoundError:
                if create:
                    raise
                return None
            self._files[frames] = file
        return self._files[frames]

    def _begin(self, clip: int, length: int) -> int:
        """Where the numbers of a clip begin, behind the flags of all."""
        return -(-self._n_clips * _FLAG_BYTES // _PAGE) * _PAGE + clip * length

    def _fill(self, file: int, row: memoryview, begin: int) -> None:
        done = 0
        while done < len(row):
            count = os.preadv(file, [row[done:]], begin + done)
            if not count:
                raise OSError(errno.EIO, "was cut short; remove it", str(self.folder))
            done += count


def remove_old(root: Path, spare: set[str]) -> None:
    """Remove stores that nobody has used for long and nobody uses now."""
    for folder in [path for path in root.iterdir() if path.is_dir() and path.name not in spare]:
        try:
            with (folder / _USED).open("a") as file:
                if try_lock(file) and time.time() - os.fstat(file.fileno()).st_mtime > KEPT_DAYS * 86400:
                    # Renamed first: whoever opens it now finds none, or a new one of its own.
                    shutil.rmtree(folder.rename(root / f".{uuid.uuid4().hex}"))
        except OSError as error:
            if error.errno not in _NOT_REMOVABLE:
                raise


def _mark_of_this_start() -> bytes:
    """Names this start of the machine; where the system does not tell, all starts have one name."""
    path = Path("/proc/sys/kernel/random/boot_id")
    told = path.read_bytes() if path.exists() else b""
    return hashlib.sha256(told).digest()[:_FLAG_BYTES]


def _rows(states: torch.Tensor) -> list[memoryview]:
    """The same memory, clip by clip, as bytes."""
    return [memoryview(row) for row in states.flatten(1).view(torch.uint8).numpy()]
