"""MPEG audio (ISO/IEC 11172-3, 13818-3): its frames, and what headers of Xing, LAME and Fraunhofer announce.

The parts of an MP3 are what its decoder reads wrongly: of an announced length it reads no more, and where none is
announced it guesses one from the first frame's bit rate.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import BinaryIO

from trainer.data.formats.parts import Part, find_bytes, read_at, skip_id3

_BIT_RATES = {
    (1, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits a second by version and layer, for the numbers 1 to 14 in a frame's header."""


_FEW = 2
"""Frames by which encoders count differently: with that of the header itself, or without the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Frame:
    """What the four bytes say that a frame begins with."""

    length: int
    samples: int
    stream: tuple[int, int, int, bool]
    """Version (3, 2, 0), layer, sample rate and whether it is mono: what is the same in all frames of a stream."""
    protected: bool


def _mpeg_frame(head: bytes) -> _Frame | None:
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    number, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version == 1 or layer == 4 or number in (0, 15) or rate == 3:
        return None
    hertz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    bits = 1000 * _BIT_RATES[1 if version == 3 else 2, layer][number - 1]
    samples = 384 if layer == 1 else 576 if layer == 3 and version != 3 else 1152
    length = 4 * (12 * bits // hertz + padding) if layer == 1 else samples // 8 * bits // hertz + padding
    return _Frame(length, samples, (version, layer, hertz, head[3] >> 6 == 3), not head[1] & 1)


def _mpeg_frames(file: BinaryIO, place: int, end: int) -> Iterator[tuple[int, _Frame, bytes]]:
    """Place, header and first bytes of every whole frame."""
    stream = None
    while 0 <= place < end:
        content = read_at(file, place, 200)
        frame = _mpeg_frame(content)
        if frame is not None and frame.stream != stream:
            # What looks like one by chance has no other behind it.
            after = _mpeg_frame(read_at(file, place + frame.length, 4))
            if (after is None or after.stream != frame.stream) and _xing_frames(content, frame) is None:
                frame = None
        if frame is not None and place + frame.length <= end:
            yield place, frame, content
            stream, place = frame.stream, place + frame.length
        elif content[:3] == b"ID3":
            place = skip_id3(file, place)
        else:
            place = find_bytes(file, b"\xff", place + 1, end)


def _xing_frames(content: bytes, frame: _Frame) -> int | None:
    """Frames that a header of Xing, LAME or Fraunhofer announces, without its own; 0 where it does not say."""
    version, layer, _, mono = frame.stream
    if layer != 3:
        return None
    side = (17 if mono else 32) if version == 3 else (9 if mono else 17)
    place = 4 + side + (2 if frame.protected else 0)
    for at in (place, 4 + side):
        if content[at : at + 4] in (b"Xing", b"Info"):
            flags, count = struct.unpack(">II", content[at + 4 : at + 12].ljust(8, b"\0"))
            return count if flags & 1 else 0
    if content[36:40] == b"VBRI":
        return int.from_bytes(content[50:54], "big")
    return None


def mpeg_parts(file: BinaryIO, begin: int, end: int) -> list[Part]:
    """A part for each header of a length, for frames behind the end of one, and wherever the format changes."""
    parts: list[Part] = []
    head: bytes = b""
    first: _Frame | None = None
    announced, count, start, stop, body = 0, 0, 0, 0, 0

    def close() -> None:
        """End the part that is open."""
        if first is None or not (count or announced) or (parts and not announced and count <= _FEW):
            return
        # A decoder believes a length that is announced, and guesses one where none is.
        right = 0 <= announced - count <= _FEW and announced
        place, new = (start, b"") if right else (body, _length_header(head, first, count))
        missing = 0 if right else max(0, announced - count) * first.samples
        parts.append(Part(place, stop, head=new, missing=missing))

    for place, frame, content in _mpeg_frames(file, begin, end):
        told = _xing_frames(content, frame)
        full = first is not None and announced and count >= announced
        if first is None or told is not None or full or frame.stream != first.stream:
            close()
            first, head, start = frame, content[:4], place
            announced, count = told or 0, 0
            body = place + frame.length if told is not None else place
            if told is not None:
                stop = body
                continue
        count += 1
        stop = place + frame.length
    close()
    if not parts and _mpeg_frame(read_at(file, begin, 4)):
        return [Part(begin, end, torn=True)]
    return parts


def _length_header(head: bytes, first: _Frame, count: int) -> bytes:
    """A frame of silence in the form of a stream's frames that announces their number, as Xing's encoder writes it."""
    version, layer, _, mono = first.stream
    if layer != 3:
        return b""
    side = (17 if mono else 32) if version == 3 else (9 if mono else 17)
    for number in range(1, 15):  # the smallest that has room for it
        plain = bytes([0xFF, head[1] | 1, number << 4 | head[2] & 0x0C, head[3]])
        frame = _mpeg_frame(plain)
        if frame is not None and frame.length >= 4 + side + 12:
            return (plain + bytes(side) + b"Info" + struct.pack(">II", 1, count)).ljust(frame.length, b"\0")
    return b""
