"""What files of audio say of themselves: the parts that were joined to one file, and how much each part announces.

libsndfile decodes the first part of joined files only, takes its word for the length of an MP3 (an estimate where no
header has it), and does not tell when a header announces more than there is. So the headers are read here, and the
decoder is given one part at a time, with a header that is right.

Sources: RIFF (Microsoft and IBM, 1991), RF64 (EBU Tech 3306), AIFF (Apple, 1989), CAF (Apple), Wave64 (Sony), Ogg
(RFC 3533), FLAC (RFC 9639); of MPEG audio in `mpeg`.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import BinaryIO

from trainer.data.formats.mpeg import mpeg_parts
from trainer.data.formats.parts import Part, find_bytes, read_at, skip_id3


def find_parts(file: BinaryIO) -> list[Part]:
    """The parts of a file, one after the other; one that is all of it where nothing is known of its kind."""
    size = file.seek(0, os.SEEK_END)
    begin = skip_id3(file, 0)
    magic = read_at(file, begin, 12)
    if magic[:4] == b"fLaC":
        found = _flac_parts(file, begin, size)
    elif magic[:4] == b"OggS":
        found = _ogg_parts(file, begin, size)
    elif kind := _chunk_kind(magic):
        found = _chunk_parts(file, kind, begin, size)
    elif magic[:4] in (b".snd", b"dns."):
        found = _au_parts(file, begin, size)
    elif begin or magic[:1] == b"\xff":
        found = mpeg_parts(file, begin, size)
    else:
        found = []
    return found or [Part(0, size)]


# Chunks: WAV, RF64, AIFF, CAF, Wave64


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """How a kind of file is made of chunks."""

    head: int
    """Bytes before the first chunk."""
    name: int
    """Bytes of a chunk's name."""
    size: str
    """Form of its size."""
    data: bytes
    """Name of the chunk with the samples."""
    skip: int = 0
    """Bytes in it before the samples."""
    align: int = 2
    whole: bool = False
    """Whether sizes count name and size too."""


_WAVE64 = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_KINDS = {
    (b"RIFF", b"WAVE"): _Chunks(12, 4, "<I", b"data"),
    (b"RF64", b"WAVE"): _Chunks(12, 4, "<I", b"data"),
    (b"RIFX", b"WAVE"): _Chunks(12, 4, ">I", b"data"),
    (b"FORM", b"AIFF"): _Chunks(12, 4, ">I", b"SSND", skip=8),
    (b"FORM", b"AIFC"): _Chunks(12, 4, ">I", b"SSND", skip=8),
    (b"caff", b""): _Chunks(8, 4, ">q", b"data", skip=4, align=1),
    (b"riff", b""): _Chunks(40, 16, "<q", b"data" + _WAVE64, align=8, whole=True),
}


def _chunk_kind(magic: bytes) -> _Chunks | None:
    return _KINDS.get((magic[:4], magic[8:12])) or _KINDS.get((magic[:4], b""))


def _unknown(size: int, form: str) -> bool:
    """Whether a size stands for a length that was not known yet: what programs write that write to a pipe."""
    if form[1] == "q":
        return size <= 0
    return size == 0 or 0x7FFFE000 <= size <= 0x80000000 or size >= 0xFFFFE000


def _chunk_parts(file: BinaryIO, kind: _Chunks | None, place: int, end: int) -> list[Part]:
    parts = []
    while kind is not None:
        part = _chunk_part(file, kind, place, end)
        if part is None:
            break
        parts.append(part)
        place = _next_file(file, kind, part.end, end)
        kind = _chunk_kind(read_at(file, place, 12))
    return parts


def _next_file(file: BinaryIO, kind: _Chunks, place: int, end: int) -> int:
    """Where another file begins behind the chunks that follow the samples; the end where none does."""
    while place < end:
        for at in dict.fromkeys((place, place + -place % kind.align)):  # some programs forget to fill up
            name, size = _chunk(file, kind, at)
            if _chunk_kind(read_at(file, at, 12)):
                return at
            if _is_name(name) and size >= 0:
                break
        else:
            return _find_file(file, kind, place + 1, end)
        place = at + _length(kind, size)
    return end


def _find_file(file: BinaryIO, kind: _Chunks, place: int, end: int) -> int:
    """Where a file of the same kind begins behind bytes that are no chunk, as they fill up blocks of a disk."""
    magics = [magic for (magic, _), other in _KINDS.items() if other == kind]
    while True:
        found = [find_bytes(file, magic, place, end) for magic in magics]
        place = min((at for at in found if at >= 0), default=end)
        if place == end or _chunk_kind(read_at(file, place, 12)):
            return place
        place += 1


def _chunk(file: BinaryIO, kind: _Chunks, place: int) -> tuple[bytes, int]:
    """Name of a chunk, and bytes after its head; -1 where there is none."""
    wide = struct.calcsize(kind.size)
    head = read_at(file, place, kind.name + wide)
    if len(head) < kind.name + wide:
        return b"", -1
    size = int(struct.unpack(kind.size, head[kind.name :])[0])
    return head[: kind.name], size - len(head) if kind.whole else size


def _length(kind: _Chunks, size: int) -> int:
    """Bytes of a chunk with its head and what it is filled up with."""
    return kind.name + struct.calcsize(kind.size) + -(-size // kind.align) * kind.align


def _chunk_part(file: BinaryIO, kind: _Chunks, begin: int, end: int) -> Part | None:
    """The part that begins here, up to the end of its samples."""
    head = kind.name + struct.calcsize(kind.size)
    place, wide = begin + kind.head, None
    while True:
        name, size = _chunk(file, kind, place)
        if name == b"ds64" and place + 24 <= end:
            wide = (place + 16, int(struct.unpack("<q", read_at(file, place + 16, 8))[0]))
        if name == kind.data:
            break
        if size < 0 or place + size >= end:
            return None  # no samples: let the decoder say what is wrong
        place += _length(kind, size)
    field, form = place + kind.name, kind.size
    if wide is not None and size == 0xFFFFFFFF:
        (field, size), form = wide, "<q"
    start = place + head
    held = end - start
    if _unknown(size, form) and not (size == 0 and _says_empty(file, kind, begin, start, end)):
        size, announced = held, held
    else:
        announced = size
        size = min(size, held)
    limit = 0xFFFFFFFF if form[1] == "I" else 1 << 62
    told = size + head if kind.whole else size
    patch = None if told > limit else (field, struct.pack(form, told))
    samples = max(0, announced - kind.skip)
    share = max(0, size - kind.skip) / samples if samples else 1.0
    return Part(begin, start + size, patch=patch, share=share)


def _says_empty(file: BinaryIO, kind: _Chunks, begin: int, start: int, end: int) -> bool:
    """Whether a length of 0 is meant: nothing follows, or other chunks of the same file do."""
    name, size = _chunk(file, kind, start)
    told = (
        begin + 8 + int(struct.unpack(kind.size, read_at(file, begin + 4, 4))[0]) if kind.head == 12 else end
    )
    return start >= end or (start < told and _is_name(name) and 0 <= size <= end - start)


def _is_name(name: bytes) -> bool:
    return name[:4].isascii() and name[:4].strip(b" ").isalnum()


def _au_parts(file: BinaryIO, begin: int, end: int) -> list[Part]:
    order = ">" if read_at(file, begin, 4) == b".snd" else "<"
    head = read_at(file, begin + 4, 8)
    if len(head) < 8:
        return []
    offset, size = struct.unpack(f"{order}II", head)
    held = max(0, end - begin - offset)
    if _unknown(size, "<I") or size <= held:
        return []
    return [Part(begin, end, share=held / size)]


# FLAC


def _flac_parts(file: BinaryIO, begin: int, end: int) -> list[Part]:
    """A stream for each header; an announced length of 0 is none, and so is that which the decoder is told: then it
    reads all that there is.
    """
    parts = []
    if read_at(file, max(begin, end - 128), 3) == b"TAG":  # ID3v1
        end -= 128
    while begin < end:
        first = read_at(file, begin + 18, 8)
        if len(first) < 8:
            break
        following = [
            find_bytes(file, b"fLaC" + flag + b"\0\0\x22", begin + 4, end) for flag in (b"\0", b"\x80")
        ]
        after = min((place for place in following if place >= 0), default=end)
        samples = int.from_bytes(first, "big") & 0xFFFFFFFFF
        patch = (begin + 21, bytes([first[3] & 0xF0, 0, 0, 0, 0]))
        parts.append(Part(begin, after, patch=patch, samples=samples))
        begin = after
    return parts


# Ogg


def _ogg_parts(file: BinaryIO, begin: int, end: int) -> list[Part]:
    """A link of the chain for each group of pages that begin streams."""
    parts: list[Part] = []
    start, stop, place, opening, torn = begin, end, begin, True, False
    while place < end:
        head = read_at(file, place, 27)
        if head[:4] != b"OggS" or len(head) < 27:
            # Damage, or what others have put behind it.
            following = find_bytes(file, b"OggS", place + 1, end)
            torn = head[:4] == b"OggS"
            if following < 0:
                stop = end if torn else place
                break
            place = following
            continue
        first = bool(head[5] & 2)
        if first and not opening:
            parts.append(Part(start, place))
            start = place
        opening = first
        lengths = read_at(file, place + 27, head[26])
        place += 27 + head[26] + sum(lengths)
        torn = place > end or len(lengths) < head[26]
    return [*parts, Part(start, min(stop, end), torn=torn)]
