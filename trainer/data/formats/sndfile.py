"""WAV, FLAC, OGG, MP3 and what else libsndfile decodes: one part after the other, and what is missing of each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from trainer.data.formats.containers import find_parts
from trainer.data.formats.parts import Part, PartFile, Track, UndecodableError, checked

if TYPE_CHECKING:
    import numpy as np
    import soundfile

_STEP = 1 << 13
"""Samples of each channel that are asked of the decoder: what it had read before damage in them is lost."""
_MISSING = 0.1
"""Seconds that may be missing of what is announced: nothing that anybody says. MP3s announce up to three frames more or
less than they hold."""
_RATES = range(1_000, 1_000_001)
"""Sample rates that are no damage."""


def find_track(file: BinaryIO) -> Track:
    """What the headers of a file say.

    Raises:
        UndecodableError: its first part cannot be decoded.
    """
    import soundfile

    parts = find_parts(file)
    with _told(), _decoder(file, parts[0]) as decoder:
        coding, rate, channels = f"{decoder.format} {decoder.subtype}", decoder.samplerate, decoder.channels
        seconds = [_announced(decoder, parts[0])]
    for part in parts[1:]:
        # What cannot be decoded is told when all before it was.
        with contextlib.suppress(soundfile.SoundFileError), _decoder(file, part) as decoder:
            seconds.append(_announced(decoder, part))
    told = [each for each in seconds if each is not None]
    return Track(coding, rate, channels, sum(told) if len(told) == len(parts) else None, tuple(parts))


class Decoding:
    """One pass over a file."""

    def __init__(self, file: BinaryIO, track: Track, size: float) -> None:
        """Say what is read; blocks are of `size` seconds."""
        self._file, self._track, self._size = file, track, size
        self.failure: str | None = None
        """What is missing of what is announced, or cannot be decoded."""

    def blocks(self) -> Iterator[tuple[np.ndarray, int, int]]:
        """float32 (samples, channels), samples a second, and the number of the part, from 0.

        Raises:
            UndecodableError: not even the beginning can be decoded.
        """
        import soundfile

        held, parts = 0.0, self._track.parts
        for number, part in enumerate(parts):
            before, failure, announced = held, None, None
            try:
                with _decoder(self._file, part) as decoder:
                    announced = _announced(decoder, part)
                    for samples in _decode(decoder, part.samples, self._size):
                        held += len(samples) / decoder.samplerate
                        yield samples, decoder.samplerate, number
            except soundfile.SoundFileError as error:
                failure = _reason(error)
                if not held:
                    raise UndecodableError(failure) from error
            missing = _missing(held - before, announced, part, failure)
            if missing and not self.failure:
                which = f"part {number + 1} of {len(parts)} " if len(parts) > 1 else ""
                self.failure = f"{which}{missing}"


@contextlib.contextmanager
def _told() -> Iterator[None]:
    import soundfile

    try:
        yield
    except soundfile.SoundFileError as error:
        raise UndecodableError(_reason(error)) from error


@functools.cache
def _decoder_class() -> type[soundfile.SoundFile]:
    import soundfile

    class Decoder(soundfile.SoundFile):
        """Never seeks: libsndfile cannot in GSM, in some kinds of ADPCM, and where no length is announced."""

        def seekable(self) -> bool:
            """Let soundfile read on, without asking how much there is."""
            return False

    return Decoder


@contextlib.contextmanager
def _decoder(file: BinaryIO, part: Part) -> Iterator[soundfile.SoundFile]:
    content = PartFile(file, part)
    with _decoder_class()(content) as decoder:
        if decoder.samplerate not in _RATES:
            raise UndecodableError(f"announces {decoder.samplerate} samples a second")
        yield decoder
    if content.failure is not None:
        raise content.failure


def _announced(decoder: soundfile.SoundFile, part: Part) -> float | None:
    """Seconds that the header of a part announces; `None` where it announces none."""
    if part.samples == 0 or not part.share:
        return None
    samples = decoder.frames if part.samples is None else part.samples
    return float((samples / part.share + part.missing) / decoder.samplerate)


def _decode(decoder: soundfile.SoundFile, announced: int | None, seconds: float) -> Iterator[np.ndarray]:
    """float32 (samples, channels), so many seconds at a time; what comes before an error, too.

    The decoder is asked for the samples that are announced before it is asked for more: what stands behind them may be
    no audio.
    """
    import numpy as np
    import soundfile

    size, last, left = round(seconds * decoder.samplerate), False, announced or 0
    while not last:
        steps, count, failure = [], 0, None
        try:
            while count < size and not last:
                wanted = min(_STEP, size - count, left or _STEP)
                step = decoder.read(wanted, dtype="float32", always_2d=True)
                last, count, left = not len(step), count + len(step), max(0, left - len(step))
                steps.append(step)
        except soundfile.SoundFileError as error:
            failure = error
        if count:
            yield checked(np.concatenate(steps))
        if failure is not None:
            raise failure


def _missing(held: float, announced: float | None, part: Part, failure: str | None) -> str | None:
    """What is wrong with a part of which so many seconds could be decoded; nothing where next to nothing is missing."""
    if announced is not None and announced - held > _MISSING:
        return f"announces {announced:.2f} s, holds {held:.2f} s"
    if part.torn:
        return f"ends inside a page or frame after {held:.2f} s"
    if announced is None and failure is not None:
        return f"after {held:.2f} s {failure}"
    return "announces audio, holds none" if not part.share else None


def _reason(error: BaseException) -> str:
    """libsndfile's reason in one line and without the object's address."""
    text = str(getattr(error, "error_string", "") or error).strip()
    text = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    return f"cannot be decoded as WAV, FLAC, OGG or MP3: {text}"
