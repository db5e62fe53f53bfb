"""What the readers of all formats share; and a part of a file as a file of its own, with a header that is right."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

_LOUDEST = 1e6
"""No sample is larger, with full scale as 1; integers in files of floating point are 32768 at most."""


class UndecodableError(Exception):
    """A file cannot be decoded; the message is one line."""


def checked(samples: np.ndarray) -> np.ndarray:
    """The samples, which are numbers of audio.

    Raises:
        UndecodableError: they are not.
    """
    if not max(samples.max(), -samples.min()) <= _LOUDEST:  # nor is what is no number
        raise UndecodableError("has samples that are not finite, or far beyond full scale")
    return samples


@dataclasses.dataclass(frozen=True)
class Part:
    """What one decoder reads: some bytes of a file."""

    start: int
    end: int
    """The byte after its last."""
    head: bytes = b""
    """What is to be put before it."""
    patch: tuple[int, bytes] | None = None
    """Offset in the file and what is to stand there: a length that is right."""
    samples: int | None = None
    """What it announces, samples a channel, where the decoder is not to know it; 0: it does not say."""
    share: float = 1.0
    """How much there is of the data that it announces."""
    missing: int = 0
    """How many samples a channel are missing of what it announces, where that is known by itself."""
    torn: bool = False
    """Whether it ends inside a unit that cannot be decoded without its end."""


@dataclasses.dataclass(frozen=True)
class Track:
    """The sound of a file, by its headers."""

    kind: str
    """Format and coding: `FLAC PCM_16`."""
    rate: int
    channels: int
    seconds: float | None
    """Length; None where none is announced."""
    parts: tuple[Part, ...] = ()
    """Those that were joined to the file, where libsndfile reads it."""


class PartFile(io.RawIOBase):
    """One part as a file of its own."""

    def __init__(self, file: BinaryIO, part: Part) -> None:
        super().__init__()
        self._file, self._part, self._place = file, part, 0
        self.failure: OSError | None = None
        """Of reading: what is raised in a callback of the decoder, nobody catches."""
        self._size = len(part.head) + part.end - part.start

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes before the next one."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer as far as there is something."""
        try:
            content = self._content(min(len(buffer), max(0, self._size - self._place)))
        except OSError as error:
            self.failure = error
            return 0
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def _content(self, wanted: int) -> bytes:
        head = self._part.head
        if self._place < len(head):
            return head[self._place : self._place + wanted]
        first = self._part.start + self._place - len(head)
        return self._patched(first, read_at(self._file, first, wanted))

    def _patched(self, first: int, content: bytes) -> bytes:
        if self._part.patch is None:
            return content
        place, new = self._part.patch
        start, end = max(place, first), min(place + len(new), first + len(content))
        if start >= end:
            return content
        return content[: start - first] + new[start - place : end - place] + content[end - first :]


def read_at(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)


def skip_id3(file: BinaryIO, place: int) -> int:
    """The byte after all ID3v2 tags that are at a place."""
    while (tag := read_at(file, place, 10))[:3] == b"ID3" and len(tag) == 10:
        size = sum((byte & 0x7F) << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        place += 10 + size + (10 if tag[5] & 0x10 else 0)
    return place


def find_bytes(file: BinaryIO, wanted: bytes, place: int, end: int) -> int:
    """Where some bytes come next, or -1."""
    block = 1 << 20
    while place < end:
        content = read_at(file, place, min(block + len(wanted) - 1, end - place))
        if (found := content.find(wanted)) >= 0:
            return place + found
        place += block
    return -1
