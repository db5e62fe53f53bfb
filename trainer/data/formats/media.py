"""What phones, browsers and cameras record: MP4, WebM, AAC, AMR, WMA and films, decoded by FFmpeg by way of PyAV.

Samples stand at the time at which a player plays them. Encoders put a beginning of their own before what they are
given (priming, encoder delay); most containers say how much, and FFmpeg leaves it out. Else it is left out here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.data.formats.parts import Track, UndecodableError, checked, read_at, skip_id3

if TYPE_CHECKING:
    import av
    import numpy as np

_PRIMING = {"mp3": 1105, "mp3float": 1105, "mp2": 481, "mp2float": 481, "ac3": 256, "eac3": 256}
"""Samples that every encoder and decoder of a coding put first."""
_AMR_PRIMING = 0.005
"""Seconds that the encoder looks ahead."""
_WHOLE_FRAME = ("aac", "aac_latm", "wmav1", "wmav2")
"""The first frame of these is a beginning of the encoder's own; of AAC, others than FFmpeg's put up to 2112 samples
there, which a file without a word of it cannot tell."""
_GAP = 0.1
"""Seconds without a packet that are silence: a pause of the recorder, or sound that begins after the picture."""
_LONGEST_GAP = 600.0
"""Seconds; longer ones are damage where no length is announced."""
_SLACK = {"mov": 0.1, "matroska": 0.2}
"""Seconds that may be missing of what a container announces; 0.5 of others, which count what encoders put around."""


_MAGICS = (
    *((4, magic, "mov") for magic in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (0, b"#!AMR", "amr"),
    (8, b"AVI ", "avi"),
    (0, b"FLV\1", "flv"),
    (0, b"\0\0\1\xba", "mpeg"),
    (28, b"\x80theora", "ogg"),
)
"""Bytes at a place of a file, and FFmpeg's name of what begins so."""


def media_kind(file: BinaryIO) -> str | None:
    """FFmpeg's name of the container by its first bytes; None for whatever libsndfile reads."""
    head = read_at(file, skip_id3(file, 0), 400).ljust(400, b"\0")
    if head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    if head[0] == 0x56 and head[1] & 0xE0 == 0xE0:
        return "loas"
    if any(head[place] == head[place + 188] == head[place + 376] == 0x47 for place in (0, 4)):
        return "mpegts"
    return next((kind for place, magic, kind in _MAGICS if head[place:].startswith(magic)), None)


def find_track(file: BinaryIO, kind: str) -> Track | None:
    """The track that a player would play; None where a file has no sound.

    Raises:
        UndecodableError: the file cannot be opened.
    """
    with _opened(file, kind) as (container, stream):
        if stream is None:
            return None
        context = stream.codec_context
        coding = f"{kind.upper()} {context.codec.name.upper()}"
        return Track(coding, context.rate, context.channels, _announced(container, stream, kind))


class Decoding:
    """One pass over the sound of a file."""

    def __init__(self, file: BinaryIO, kind: str, size: float) -> None:
        """Say what is read; blocks are of `size` seconds."""
        self._file, self._kind, self._size = file, kind, size
        self.failure: str | None = None
        """What is missing, or cannot be decoded; known at the end."""

    def blocks(self) -> Iterator[tuple[np.ndarray, int, int]]:
        """float32 (samples, channels), samples a second, and a number that changes with rate or channels.

        Raises:
            UndecodableError: nothing at all can be decoded.
        """
        import numpy as np

        pieces: list[np.ndarray] = []
        form, part = (0, 0), -1
        for samples, rate in self._pieces():
            if (rate, samples.shape[0]) != form or sum(each.shape[1] for each in pieces) >= self._size * rate:
                if pieces:
                    yield checked(np.concatenate(pieces, axis=1).T), form[0], part
                part += (rate, samples.shape[0]) != form
                pieces, form = [], (rate, samples.shape[0])
            pieces.append(samples)
        if pieces:
            yield checked(np.concatenate(pieces, axis=1).T), form[0], part

    def _pieces(self) -> Iterator[tuple[np.ndarray, int]]:
        """float32 (channels, samples) frame by frame, with silence where nothing was recorded, and their rate."""
        import numpy as np

        with _opened(self._file, self._kind) as (container, stream):
            announced = _announced(container, stream, self._kind)
            held, waiting = 0.0, list[tuple[np.ndarray, int]]()
            for samples, rate, gap in self._frames(container, stream):
                longest = _LONGEST_GAP if announced is None else announced - held + _GAP
                if gap > longest:
                    self.failure = f"after {held:.2f} s times jump by {gap:.2f} s"
                elif gap > _GAP:
                    held += gap
                    left = round(gap * rate)
                    while left > 0:  # a minute at a time
                        silence = np.zeros((samples.shape[0], min(left, 60 * rate)), np.float32)
                        left -= silence.shape[1]
                        yield silence, rate
                # Padding of the last frame: a container that tells its length to the sample is believed.
                keep = samples.shape[1]
                if announced is not None and self._kind == "mov":
                    keep = min(keep, max(0, round((announced - held) * rate)))
                held += samples.shape[1] / rate
                if keep == samples.shape[1]:
                    yield samples, rate
                    continue
                waiting.append((samples[:, keep:], rate))
                if keep:
                    yield samples[:, :keep], rate
                if sum(each.shape[1] / hertz for each, hertz in waiting) > _SLACK["mov"]:
                    yield from waiting
                    announced, waiting = None, []
            slack = _SLACK.get(self._kind, 0.5)
            if announced is not None and announced - held > slack and self.failure is None:
                self.failure = f"announces {announced:.2f} s, holds {held:.2f} s"

    def _frames(self, container: Any, stream: Any) -> Iterator[tuple[np.ndarray, int, float]]:
        """Samples, rate and the seconds before them in which there is nothing; up to the first damage."""
        import av

        context = stream.codec_context
        name = context.codec.name
        if name in ("wmav1", "wmav2"):  # FFmpeg leaves out two frames of it, of which one is sound
            context.flags2 |= av.codec.context.Flags2.skip_manual
        origin = (container.start_time or 0) / av.time_base
        expected: float | None = None
        left_out = 0.0
        skip: int | None = None
        planar, form = av.AudioResampler(format="fltp"), None
        try:
            for packet in container.demux(stream):
                if skip is None:
                    told = packet.has_sidedata("skip_samples") or (packet.pts is not None and packet.pts < 0)
                    skip = 0 if told else -1
                try:
                    frames = packet.decode()
                except av.InvalidDataError:
                    if expected is None:  # a broadcast begins in the middle of a unit
                        continue
                    raise
                for frame in frames:
                    if form != (form := (frame.format.name, frame.layout.name, frame.sample_rate)):
                        planar = av.AudioResampler(format="fltp")
                    samples = planar.resample(frame)[0].to_ndarray()
                    rate = frame.sample_rate
                    if expected is None and skip < 0:
                        skip = self._priming(name, frame)
                    begin = None if frame.pts is None else float(frame.pts * frame.time_base)
                    gap = 0.0 if begin is None else begin - (origin if expected is None else expected)
                    expected = (begin or expected or origin) + frame.samples / rate
                    drop = min(skip, samples.shape[1])
                    skip, left_out = skip - drop, left_out + gap + drop / rate
                    if drop < samples.shape[1]:
                        yield samples[:, drop:], rate, left_out
                        left_out = 0.0
        except av.FFmpegError as error:
            if expected is None:
                raise UndecodableError(f"cannot be decoded: {_reason(error)}") from error
            self.failure = f"after {expected - origin:.2f} s {_reason(error)}"

    @staticmethod
    def _priming(name: str, frame: av.AudioFrame) -> int:
        if name in _WHOLE_FRAME:
            return frame.samples
        if name.startswith(("amr", "libopencore_amr")):
            return round(_AMR_PRIMING * frame.sample_rate)
        return _PRIMING.get(name, 0)


def _announced(container: Any, stream: Any, kind: str) -> float | None:
    """Seconds by the headers; the lengths of streams without headers are guesses by their bit rate."""
    import av

    if kind == "mov" and stream.duration:
        late = float((stream.start_time or 0) * stream.time_base) - (container.start_time or 0) / av.time_base
        return late + float(stream.duration * stream.time_base)
    alone = len(container.streams) == 1
    if kind in ("matroska", "asf", "avi") and alone and container.duration:
        return float(container.duration / av.time_base)
    return None


@contextlib.contextmanager
def _opened(file: BinaryIO, kind: str) -> Iterator[tuple[Any, Any]]:
    """The container and the track that a player would play, or None."""
    import av

    file.seek(0)
    try:
        # The format is told, so that nothing is guessed: FFmpeg would open lists of other files and addresses.
        container = av.open(file, format=kind, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise UndecodableError(f"cannot be decoded: {_reason(error)}") from error
    with container:
        stream = container.streams.best("audio")
        for other in container.streams:
            if stream is not None and other.index != stream.index:
                other.discard = av.stream.Discard.all
        if stream is not None and not isinstance(stream.codec_context, av.AudioCodecContext):
            raise UndecodableError("its sound is in a coding that is not known")
        yield container, stream


def _reason(error: BaseException) -> str:
    text = str(getattr(error, "strerror", "") or error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
