"""Features that are being written: after a kill the next run goes on where this one was.

Files only grow. Every few seconds what was written is made safe, and then a piece is put beside it, which says how long
each file is by then and has the rows of the index that came since the piece before. What stands behind that is cut off.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from trainer.files import flush, write_whole

KEEP_SECONDS = 5.0
"""Between two pieces: what a kill costs at most, beside what the processes were just computing."""
_PIECE = ".piece.json"


def is_begun(folder: Path) -> bool:
    """Whether there is something in a folder to go on with."""
    return next(folder.glob(f"*{_PIECE}"), None) is not None


class Waves(Protocol):
    """The waveforms that are written in the same pass."""

    def flush(self) -> int:
        """Make what was added safe, and count it."""

    def cut(self, count: int) -> bool:
        """Forget all but the first ones; whether so many are there."""


class Unfinished:
    """What a folder has of the clips that go into it, in their order."""

    def __init__(self, folder: Path, roles: Sequence[str], waves: Waves | None) -> None:
        """Read what an earlier run left, if that is whole; else begin anew."""
        self._folder, self._pieces, self._kept_at = folder, 0, time.monotonic()
        self.rows: dict[str, list[list[Any]]] = {role: [] for role in roles}
        """Of the index of each split; what its columns are, the caller knows."""
        self.drops: list[dict[str, str]] = []
        self.done = self.cancelled = 0
        """Clips in all, dropped ones included; those whose channels cancel each other."""
        self._new: list[tuple[str, list[Any]]] = []
        self._new_drops = 0
        if not self._read(waves):
            for path in folder.iterdir():
                path.unlink()
            if waves is not None:
                waves.cut(0)
            self.__dict__.update(_pieces=0, rows={role: [] for role in roles}, drops=[], done=0, cancelled=0)

    def _read(self, waves: Waves | None) -> bool:
        sizes, count = dict.fromkeys(self.rows, 0), 0
        try:
            while (path := self._piece(self._pieces)).exists():
                piece = json.loads(path.read_text(encoding="utf-8"))
                for role, row in piece["rows"]:
                    self.rows[role].append(row)
                self.drops += piece["drops"]
                self.done, self.cancelled = piece["done"], piece["cancelled"]
                sizes, count = piece["sizes"], piece["waves"]
                self._pieces += 1
            if not self._pieces or (waves is not None and (count is None or not waves.cut(count))):
                return False
            for role, size in sizes.items():
                if (file := self._folder / f"{role}.f16").stat().st_size < size:
                    return False
                os.truncate(file, size)
        except (OSError, ValueError, KeyError, TypeError):  # damaged: all of it is made anew
            return False
        return True

    def _piece(self, number: int) -> Path:
        return self._folder / f"{number:06}{_PIECE}"

    def add(self, role: str, row: list[Any], *, cancels: bool) -> None:
        """One clip whose features were written."""
        self.rows[role].append(row)
        self._new.append((role, row))
        self.done += 1
        self.cancelled += cancels

    def drop(self, drop: dict[str, str]) -> None:
        """One clip without features."""
        self.drops.append(drop)
        self.done += 1

    def keep(self, files: Mapping[str, BinaryIO], waves: Waves | None) -> None:
        """Make it safe, if that is a while ago."""
        if time.monotonic() - self._kept_at < KEEP_SECONDS:
            return
        for role, file in files.items():
            file.flush()
            flush(self._folder / f"{role}.f16")
        piece = {
            "rows": self._new,
            "drops": self.drops[self._new_drops :],
            "done": self.done,
            "cancelled": self.cancelled,
            "sizes": {role: file.tell() for role, file in files.items()},
            "waves": None if waves is None else waves.flush(),
        }
        write_whole(self._piece(self._pieces), json.dumps(piece), sync=True)
        self._pieces += 1
        self._new, self._new_drops, self._kept_at = [], len(self.drops), time.monotonic()

    def finish(self) -> None:
        """All is written: remove the pieces."""
        for number in range(self._pieces):
            self._piece(number).unlink()
