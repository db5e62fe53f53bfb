"""Audio as 16 kHz mono, of any rate and usual format, whole, in parts or block by block, and what is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from trainer.data.formats import media, sndfile
from trainer.data.formats.parts import UndecodableError

if TYPE_CHECKING:
    import numpy as np

SAMPLE_RATE = 16_000
"""Samples a second that every Whisper model hears."""
AUDIO_SUFFIXES = (
    *(".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64"),
    *(
        ".m4a",
        ".mp4",
        ".webm",
        ".aac",
        ".amr",
        ".wma",
        ".m4b",
        ".m4v",
        ".mov",
        ".3gp",
        ".3g2",
        ".mka",
        ".mkv",
    ),
    *(".ogv", ".avi", ".wmv", ".asf", ".flv", ".mpg", ".mpeg", ".m2ts", ".mts"),
)
"""What is looked for in a folder; a file that is named itself may end otherwise."""
BLOCK_SECONDS = 20
"""Audio that is decoded at once."""
_MISSING = 0.1
"""Seconds by which a part may reach beyond the end of its file."""
_CANCELLED = 0.1
"""Channels cancel each other where their mean has less than so much of the power of the mean of independent ones."""


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

    def __init__(self, source: str | bytes | Path, channel: int | None = None) -> None:
        """Look at the headers.

        Args:
            source: path of a file, or the content of one.
            channel: the one to hear, from 1; `None` is the mean of all.

        Raises:
            AudioError: `unreadable_audio` or `empty_audio`.
        """
        self._source, self._channel = source, channel
        with _told(), _opened(self._source) as file:
            self._media = media.media_kind(file)
            track = media.find_track(file, self._media) if self._media else sndfile.find_track(file)
        if track is None:
            raise AudioError("empty_audio", "the file has no sound in it")
        self._track = track
        self.kind, self.rate, self.channels = track.kind, track.rate, track.channels
        self.seconds = track.seconds
        """Length that the headers announce; `None` where they announce none."""
        if channel is not None and channel > self.channels:
            raise AudioError(
                "missing_channel", f"has {self.channels} channel{'s' * (self.channels != 1)}, not {channel}"
            )
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
        self.held, self.incomplete = 0.0, None
        with _told(), _opened(self._source) as file:
            decoding = (
                media.Decoding(file, self._media, BLOCK_SECONDS)
                if self._media
                else sndfile.Decoding(file, self._track, BLOCK_SECONDS)
            )
            for samples, rate, part in decoding.blocks():
                self.held += len(samples) / rate
                yield Block(samples, rate, part)
            if decoding.failure is not None:
                self.incomplete = f"cut off or damaged: {decoding.failure}"

    def mono(self) -> Iterator[tuple[np.ndarray, Block]]:
        """Every block with its channels as one, float32 (samples,) at its own rate."""
        import numpy as np

        self.cancelled = False
        for block in self.blocks():
            if self._channel is not None:
                if self._channel > block.samples.shape[1]:
                    raise AudioError(
                        "missing_channel", f"has no channel {self._channel} at {self.held:.2f} s"
                    )
                yield np.ascontiguousarray(block.samples[:, self._channel - 1]), block
                continue
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
class AudioSource:
    """Where the sound of a clip is: a file, or a part of one."""

    file: str | bytes | Path
    """Path, or the content."""
    channel: int | None = None
    """The one to hear, from 1; `None` is the mean of all."""
    start: float = 0.0
    """Seconds before it."""
    end: float | None = None
    """Seconds up to its end; `None` is the end of the file."""
    problem: str = ""
    """What is wrong with these times, if anything is."""

    @property
    def is_part(self) -> bool:
        """Whether it has times of its own."""
        return bool(self.start or self.end is not None or self.problem)


@dataclasses.dataclass(frozen=True)
class Heard:
    """One clip."""

    samples: np.ndarray
    """float32 (samples,), 16 kHz mono in about -1 to 1: the mean of the channels, or the one wanted."""
    cancelled: bool
    """Whether channels cancel each other, so that one of them stands for all."""
    file: AudioFile
    """That it was read from."""


def hear(source: AudioSource | str | bytes | Path, *, max_seconds: float | None = None) -> Heard:
    """One clip, whole or not at all.

    Args:
        source: what is to be heard; a path or the content of a file is all of it.
        max_seconds: longest clip wanted; a longer one is refused without decoding all of it.

    Raises:
        AudioError: `unreadable_audio`, `empty_audio`, `incomplete_audio`, `too_long_audio`, `missing_channel` or
            `wrong_times`.
    """
    wanted = source if isinstance(source, AudioSource) else AudioSource(source)
    if not wanted.is_part:
        return _hear_file(wanted, max_seconds)
    [(_, found)] = hear_each([wanted], max_seconds=max_seconds)
    if isinstance(found, AudioError):
        raise found
    return found


def hear_each(
    sources: Iterable[AudioSource], *, max_seconds: float | None = None
) -> Iterator[tuple[AudioSource, Heard | AudioError]]:
    """Each of some clips, or why it cannot be had; a file whose parts come one after the other is decoded once."""
    tape, file = None, AudioSource("")
    for source in sources:
        try:
            if not source.file:
                raise AudioError("unreadable_audio", "no audio is given")
            if not source.is_part:
                yield source, _hear_file(source, max_seconds)
                continue
            if source.problem:
                raise AudioError("wrong_times", source.problem)
            if source.end is not None and max_seconds is not None:
                _refuse_long(source.end - source.start, max_seconds)
            same = (source.file, source.channel) == (file.file, file.channel)
            if tape is None or not same or not tape.holds(source):
                tape, file = None, source
                tape = _Tape(AudioFile(source.file, source.channel))
            yield source, Heard(tape.cut(source, max_seconds), tape.file.cancelled, tape.file)
        except AudioError as error:
            yield source, error


class _Tape:
    """A file that is played once, with no more of it in memory than the parts need."""

    def __init__(self, file: AudioFile) -> None:
        import numpy as np

        self.file = file
        self._blocks, self._held, self._first = file.stream(), np.zeros(0, np.float32), 0
        self._ended = False

    def holds(self, source: AudioSource) -> bool:
        """Whether nothing of a part was forgotten already."""
        return round(source.start * SAMPLE_RATE) >= self._first

    def cut(self, source: AudioSource, max_seconds: float | None) -> np.ndarray:
        """float32 (samples,) of a part that begins where the one before began, or later."""
        import numpy as np

        start = round(source.start * SAMPLE_RATE)
        end = None if source.end is None else round(source.end * SAMPLE_RATE)
        self._forget(start)
        while not self._ended and (end is None or self._first + len(self._held) < end):
            try:
                block = next(self._blocks)
            except StopIteration:
                self._ended = True
                break
            except AudioError:
                self._ended = True
                raise
            self._held = np.concatenate([self._held, block])
            self._forget(start)
            if end is None and max_seconds is not None:
                _refuse_long(len(self._held) / SAMPLE_RATE, max_seconds)
        held = self._first + len(self._held)
        if (end is None or end > held) and self.file.incomplete:
            raise AudioError("incomplete_audio", self.file.incomplete)
        if start >= held or (end is not None and end - held > _MISSING * SAMPLE_RATE):
            what = f"begins at {source.start:.2f}" if source.end is None else f"ends at {source.end:.2f}"
            raise AudioError(
                "wrong_times",
                f"{what} s, after the end of the recording ({held / SAMPLE_RATE:.2f} s); files that are cut already "
                "need segment_columns=null",
            )
        return np.array(self._held[start - self._first : None if end is None else end - self._first])

    def _forget(self, start: int) -> None:
        gone = min(max(0, start - self._first), len(self._held))
        self._held, self._first = self._held[gone:], self._first + gone


def _refuse_long(seconds: float, most: float) -> None:
    if seconds > most + 0.5 / SAMPLE_RATE:
        raise AudioError("too_long_audio", f"{seconds:.2f} s, over the model's window of {most:g} s")


def _hear_file(source: AudioSource, max_seconds: float | None) -> Heard:
    """A whole file."""
    import numpy as np
    import soxr

    file = AudioFile(source.file, source.channel)
    parts: dict[int, list[np.ndarray]] = {}
    rates: dict[int, int] = {}
    for mixed, block in file.mono():
        if max_seconds is not None and file.held > max_seconds + 0.5 / SAMPLE_RATE:
            _refuse_long(max(file.seconds or 0.0, file.held), max_seconds)
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
    return Heard(samples, file.cancelled, file)


def read_audio(source: AudioSource | str | bytes | Path, *, max_seconds: float | None = None) -> np.ndarray:
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
    try:
        yield
    except UndecodableError as error:
        raise AudioError("unreadable_audio", str(error)) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise AudioError("unreadable_audio", f"cannot be read: {reason}") from error


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
