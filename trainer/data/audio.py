"""Audio as 16 kHz mono, of any rate, WAV, FLAC, OGG or MP3, at once or block by block, and what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trainer.data.containers import find_parts
from trainer.data.parts import Part, PartFile

if TYPE_CHECKING:
    import numpy as np
    import soundfile

SAMPLE_RATE = 16_000
"""Samples a second that every Whisper model hears."""
BLOCK_SECONDS = 20
"""Audio that is decoded at once."""
_STEP = 1 << 13
"""Samples of each channel that are asked of the decoder: what it had read before damage in them is lost."""
_MISSING = 0.1
"""Seconds that may be missing of what is announced: nothing that anybody says. MP3s announce up to three frames more or
less than they hold."""
_CANCELLED = 0.1
"""Channels cancel each other where their mean has less than so much of the power of the mean of independent ones."""
_LOUDEST = 1e6
"""No sample is larger, with full scale as 1; integers in files of floating point are 32768 at most."""
_RATES = range(1_000, 1_000_001)
"""Sample rates that are no damage."""


class AudioError(Exception):
    """A clip cannot be used; `reason` is the code it is counted under, the message is one line.

    Not a `UserError`: a bad clip is dropped and listed, and only too many of them stop the run.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Block:
    """Up to `BLOCK_SECONDS` of audio as a file has them."""

    samples: np.ndarray
    """float32 (samples, channels), finite, with full scale as 1."""
    rate: int
    part: int
    """Number of the part, from 0, of those that were joined to the file."""


class AudioFile:
    """One file that is decoded, part by part; all that is known only at its end is so after `blocks`."""

    def __init__(self, source: str | bytes | Path) -> None:
        """Look at the headers.

        Args:
            source: path of a file, or the content of one.

        Raises:
            AudioError: `unreadable_audio` or `empty_audio`.
        """
        import soundfile

        self._source = source
        with _told(), _opened(self._source) as file:
            self._parts = find_parts(file)
            with _decoder(file, self._parts[0]) as decoder:
                self.kind = f"{decoder.format} {decoder.subtype}"
                """Format and coding: `FLAC PCM_16`."""
                self.rate, self.channels = decoder.samplerate, decoder.channels
                seconds = [_announced(decoder, self._parts[0])]
            for part in self._parts[1:]:
                # What cannot be decoded is told when all before it was.
                with contextlib.suppress(soundfile.SoundFileError), _decoder(file, part) as decoder:
                    seconds.append(_announced(decoder, part))
        told = [each for each in seconds if each is not None]
        self.seconds = sum(told) if len(told) == len(self._parts) else None
        """Length that the headers announce; `None` where they announce none."""
        self.held = 0.0
        """Seconds that were decoded."""
        self.incomplete: str | None = None
        """What is missing of what is announced, or cannot be decoded."""
        self.cancelled = False
        """Whether channels cancel each other somewhere, so that one of them stands for all there."""

    def blocks(self) -> Iterator[Block]:
        """All that can be decoded, in order.

        Raises:
            AudioError: `unreadable_audio`: not even the beginning can be decoded, or samples are no numbers of audio.
        """
        import soundfile

        self.held, self.incomplete = 0.0, None
        with _told(), _opened(self._source) as file:
            for number, part in enumerate(self._parts):
                before, failure, announced = self.held, None, None
                try:
                    with _decoder(file, part) as decoder:
                        announced = _announced(decoder, part)
                        for samples in _decode(decoder, part.samples):
                            self.held += len(samples) / decoder.samplerate
                            yield Block(samples, decoder.samplerate, number)
                except soundfile.SoundFileError as error:
                    if not self.held:
                        raise
                    failure = why_undecodable(error)
                missing = _missing(self.held - before, announced, part, failure)
                if missing and not self.incomplete:
                    which = f"part {number + 1} of {len(self._parts)} " if len(self._parts) > 1 else ""
                    self.incomplete = f"cut off or damaged: {which}{missing}"

    def mono(self) -> Iterator[tuple[np.ndarray, Block]]:
        """Every block with its channels as one, float32 (samples,) at its own rate."""
        self.cancelled = False
        for block in self.blocks():
            mixed, cancelled = mix(block.samples)
            self.cancelled |= cancelled
            yield mixed, block

    def stream(self) -> Iterator[np.ndarray]:
        """The same as 16 kHz mono, float32 (samples,), in memory that does not grow with the file."""
        import numpy as np
        import soxr

        for _, part in itertools.groupby(self.mono(), key=lambda pair: pair[1].part):
            resampler: soxr.ResampleStream | None = None
            for mixed, block in part:
                if block.rate == SAMPLE_RATE:
                    yield mixed
                    continue
                resampler = resampler or soxr.ResampleStream(
                    block.rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ"
                )
                yield resampler.resample_chunk(mixed)
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


@dataclasses.dataclass(frozen=True)
class Heard:
    """One clip."""

    samples: np.ndarray
    """float32 (samples,), 16 kHz mono in about -1 to 1: the mean of the channels."""
    cancelled: bool
    """Whether channels cancel each other, so that one of them stands for all."""


def hear(source: str | bytes | Path, *, max_seconds: float | None = None) -> Heard:
    """One clip, whole or not at all.

    Args:
        source: path of a file, or the content of one.
        max_seconds: longest clip wanted; a longer one is refused without decoding all of it.

    Raises:
        AudioError: `unreadable_audio`, `empty_audio`, `incomplete_audio` or `too_long_audio`.
    """
    import numpy as np
    import soxr

    file = AudioFile(source)
    parts: dict[int, list[np.ndarray]] = {}
    rates: dict[int, int] = {}
    for mixed, block in file.mono():
        if max_seconds is not None and file.held > max_seconds + 0.5 / SAMPLE_RATE:
            seconds = max(file.seconds or 0.0, file.held)
            raise AudioError(
                "too_long_audio", f"{seconds:.2f} s, over the model's window of {max_seconds:g} s"
            )
        parts.setdefault(block.part, []).append(mixed)
        rates[block.part] = block.rate
    if file.incomplete:
        raise AudioError("incomplete_audio", file.incomplete)
    if not parts:
        raise AudioError("empty_audio", "no samples")
    whole = [
        samples
        if rates[part] == SAMPLE_RATE
        else soxr.resample(samples, rates[part], SAMPLE_RATE, quality="HQ")
        for part, samples in ((part, np.concatenate(pieces)) for part, pieces in parts.items())
    ]
    samples = np.ascontiguousarray(np.concatenate(whole), dtype=np.float32)
    if not len(samples):
        raise AudioError("empty_audio", "shorter than one sample at 16 kHz")
    return Heard(samples, file.cancelled)


def read_audio(source: str | bytes | Path, *, max_seconds: float | None = None) -> np.ndarray:
    """The samples of one clip, as `hear` gives them and with its errors."""
    return hear(source, max_seconds=max_seconds).samples


def mix(samples: np.ndarray) -> tuple[np.ndarray, bool]:
    """The mean of (samples, channels), or the loudest channel where they cancel each other; and whether they do.

    Opposite phase comes from a cable or a plug with its poles exchanged; the mean of such channels is silence.
    """
    import numpy as np

    if samples.shape[1] == 1:
        return samples[:, 0], False
    channels = samples.T
    # Sums of columns: numpy's mean of rows of two takes ten times as long.
    mean = sum(channels[1:], start=channels[0]) / np.float32(len(channels))
    power = np.array([channel.var() for channel in channels])
    if mean.var() >= _CANCELLED * power.sum() / len(power) ** 2:
        return mean, False
    # The first of those that are about as loud: the same one in every block.
    return channels[int(np.argmax(power > 0.5 * power.max()))], True


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors of the decoder and the disk as those of a clip."""
    import soundfile

    try:
        yield
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("unreadable_audio", why_undecodable(error)) from error


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
            raise AudioError("unreadable_audio", f"announces {decoder.samplerate} samples a second")
        yield decoder
    if content.failure is not None:
        raise content.failure


def _announced(decoder: soundfile.SoundFile, part: Part) -> float | None:
    """Seconds that the header of a part announces; `None` where it announces none."""
    if part.samples == 0 or not part.share:
        return None
    samples = decoder.frames if part.samples is None else part.samples
    return float((samples / part.share + part.missing) / decoder.samplerate)


def _decode(decoder: soundfile.SoundFile, announced: int | None) -> Iterator[np.ndarray]:
    """float32 (samples, channels), `BLOCK_SECONDS` at a time; what comes before an error, too.

    The decoder is asked for the samples that are announced before it is asked for more: what stands behind them may be
    no audio.
    """
    import numpy as np
    import soundfile

    size, last, left = BLOCK_SECONDS * decoder.samplerate, False, announced or 0
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
            samples = np.concatenate(steps)
            if not max(samples.max(), -samples.min()) <= _LOUDEST:  # nor is what is no number
                raise AudioError(
                    "unreadable_audio", "has samples that are not finite, or far beyond full scale"
                )
            yield samples
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


def _opened(source: str | bytes | Path) -> BinaryIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    path = Path(source)
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for who writes it
            if path.is_dir():
                next(path.iterdir(), None)  # fails where the user may not read it
            raise AudioError("unreadable_audio", "not a file")
        file = path.open("rb")
    except ValueError as error:
        raise AudioError("unreadable_audio", f"no file can have this name: {error}") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            raise AudioError("unreadable_audio", "file not found") from error
        missing = (
            f" ({path.readlink()}, to which it is a link)" if isinstance(error, FileNotFoundError) else ""
        )
        raise AudioError("unreadable_audio", f"cannot be read: {error.strerror}{missing}") from error
    if not file.read(1):
        file.close()
        raise AudioError("empty_audio", "the file is empty")
    return file


def why_undecodable(error: BaseException) -> str:
    """libsndfile's reason, or the system's, in one line and without the object's address."""
    text = str(getattr(error, "error_string", "") or getattr(error, "strerror", "") or error).strip()
    text = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    return f"cannot be decoded as WAV, FLAC, OGG or MP3: {text}"
