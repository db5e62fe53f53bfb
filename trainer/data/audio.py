"""Audio as 16 kHz mono, of any rate and usual format, whole, in parts or block by block.

libsndfile decodes WAV, its kin and Ogg, FFmpeg by way of PyAV all else. What is announced and not there is a cut file:
its text would be taught with half of its sound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np
import soundfile
import soxr

SAMPLE_RATE = 16_000
"""Samples a second that every Whisper model hears."""
AUDIO_SUFFIXES = (
    *(".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64"),
    *(".m4a", ".mp4", ".webm", ".aac", ".amr", ".wma", ".m4b", ".m4v", ".mov", ".3gp", ".3g2", ".mka"),
    *(".mkv", ".ogv", ".avi", ".wmv", ".asf", ".flv", ".mpg", ".mpeg", ".m2ts", ".mts"),
)
"""What is looked for in a folder; a file that is named itself may end otherwise."""
_FOLDERS = 16
"""Folders beside that of a missing file in which one of its name is looked for."""
_BLOCK_SECONDS = 5
_MISSING = 0.1
"""Seconds by which a part may reach beyond the end of its file, or a file be shorter than it announces."""
_FAR_BEYOND = 20
"""Lengths of a file, or of the model's window, after which a time must be of another unit."""
_OTHER_UNIT = "times are seconds: are these milliseconds or samples?"
_CANCELLED = 0.1
"""Channels cancel each other where their mean has less than so much of the power of the mean of independent ones."""
_RATES = range(1_000, 1_000_001)
"""Sample rates that are no damage."""
_LOUDEST = 1e6
"""No sample is larger, with full scale as 1; integers in files of floating point are 32768 at most."""


class AudioError(Exception):
    """A clip cannot be used; `reason` is the code it is counted under, the message is one line.

    Not a `UserError`: a bad clip is dropped and listed, and only too many of them stop the run.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    start: float
    """Seconds."""
    end: float | None
    """`None`: to the end."""
    problem: str = ""
    """What is wrong with these times; empty where nothing is."""


WHOLE = Span(0.0, None)


@dataclasses.dataclass(frozen=True)
class AudioSource:
    """Where the sound of a clip is."""

    file: str | bytes | Path
    """Path, or the content."""
    channel: int | None = None
    """The one that is decoded, from 1; `None` is the mean of all."""
    span: Span | None = None
    """The part that is the clip; `None` for all of the file."""


class AudioFile:
    """One file that is decoded block by block; what it holds is known at its end."""

    def __init__(self, source: str | bytes | Path, channel: int | None = None) -> None:
        self._source, self._channel = source, channel
        self.seconds: float | None = None
        """Length that the headers announce; `None` where they announce none."""
        self.incomplete: str | None = None
        """What is missing of what is announced, or cannot be decoded."""
        self.cancelled = False
        """Whether channels cancel each other somewhere, so that one of them stands for all there."""
        self._rest = self.stream()
        self._failure: AudioError | None = None
        """Why nothing more can be decoded."""
        self._blocks: list[np.ndarray] = []
        self._first = self._end = 0  # samples before the blocks, and up to their end

    def stream(self) -> Iterator[np.ndarray]:
        """All that can be decoded as 16 kHz mono, float32 (samples,), finite, with full scale as 1.

        Raises:
            AudioError: not even the beginning can be decoded, or samples are no numbers of audio.
        """
        with _decoder(self._source) as decoder:
            rate, self.seconds = decoder.rate, decoder.announced
            if rate not in _RATES:
                raise AudioError("unreadable_audio", f"announces {rate} samples a second")
            if self._channel is not None and self._channel > decoder.channels:
                there = f"{decoder.channels} channel{'s' * (decoder.channels > 1)}"
                raise AudioError("missing_channel", f"has {there}, not {self._channel}")
            held = 0.0
            resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
            for samples in decoder.blocks():
                if not max(samples.max(), -samples.min()) <= _LOUDEST:  # nor is what is no number
                    problem = "has samples that are not finite, or far beyond full scale"
                    raise AudioError("unreadable_audio", problem)
                held += len(samples) / rate
                if self._channel is not None:
                    mono = np.ascontiguousarray(samples[:, self._channel - 1])
                else:
                    mono, cancelled = mix(samples)
                    self.cancelled |= cancelled
                yield mono if rate == SAMPLE_RATE else resampler.resample_chunk(mono)
            failure = decoder.failure
        if self.seconds is not None and self.seconds - held > _MISSING:
            failure = f"announces {self.seconds:.2f} s, holds {held:.2f} s"
        if failure and not held:
            raise AudioError("unreadable_audio", f"cannot be decoded: {failure}")
        self.incomplete = f"cut off or damaged: {failure}" if failure else None
        if rate != SAMPLE_RATE:
            yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)

    def holds(self, source: AudioSource) -> bool:
        """Whether a part is of this file, and nothing of it was forgotten already."""
        span, same = source.span, (source.file, source.channel) == (self._source, self._channel)
        return same and span is not None and round(span.start * SAMPLE_RATE) >= self._first

    def cut(self, span: Span, max_seconds: float | None) -> np.ndarray:
        """float32 (samples,) of a part that begins where the one before began, or later; no more is kept in memory."""
        start = round(span.start * SAMPLE_RATE)
        end = None if span.end is None else round(span.end * SAMPLE_RATE)
        while end is None or self._end < end:
            if self._failure is not None:
                raise self._failure
            try:
                block = next(self._rest, None)
            except AudioError as error:
                self._failure = error
                raise
            if block is None:
                break
            self._blocks.append(block)
            self._end += len(block)
            while self._blocks and self._first + len(self._blocks[0]) <= start:
                self._first += len(self._blocks.pop(0))
            if end is None:
                announced = (self.seconds or 0.0) - span.start
                refuse_long(self._end / SAMPLE_RATE - span.start, max_seconds, announced)
        if (end is None or end > self._end) and self.incomplete:
            raise AudioError("incomplete_audio", self.incomplete)
        if not self._end:
            raise AudioError("empty_audio", "no samples")
        if start >= self._end or (end is not None and end - self._end > _MISSING * SAMPLE_RATE):
            what = f"begins at {span.start:.2f}" if span.end is None else f"ends at {span.end:.2f}"
            far = (span.end or span.start) * SAMPLE_RATE > _FAR_BEYOND * self._end
            hint = _OTHER_UNIT if far else "files that are cut already need segment_columns=null"
            raise AudioError(
                "wrong_times",
                f"{what} s, after the end of the recording ({self._end / SAMPLE_RATE:.2f} s); {hint}",
            )
        samples = np.concatenate(self._blocks)
        return np.array(samples[start - self._first : None if end is None else end - self._first])


@dataclasses.dataclass(frozen=True)
class DecodedAudio:
    samples: np.ndarray
    """float32 (samples,), 16 kHz mono in about -1 to 1."""
    cancelled: bool
    """Whether channels cancel each other, so that one of them stands for all."""


def read_audio(source: AudioSource | str | bytes | Path, *, max_seconds: float | None = None) -> np.ndarray:
    """The samples of one clip as float32 (samples,), 16 kHz mono, whole or not at all.

    A clip of more than `max_seconds` is refused without decoding all of it.

    Raises:
        AudioError: it cannot be used.
    """
    wanted = source if isinstance(source, AudioSource) else AudioSource(source)
    [(_, decoded)] = decode_each([wanted], max_seconds=max_seconds)
    if isinstance(decoded, AudioError):
        raise decoded
    return decoded.samples


def decode_each(
    sources: Iterable[AudioSource], *, max_seconds: float | None = None
) -> Iterator[tuple[AudioSource, DecodedAudio | AudioError]]:
    """Each of some clips, or why it cannot be had; a file whose parts come one after the other is decoded once."""
    file: AudioFile | None = None
    for source in sources:
        span = source.span or WHOLE
        try:
            if not source.file:
                raise AudioError("unreadable_audio", "no audio is given")
            if span.problem:
                raise AudioError("wrong_times", span.problem)
            if span.end is not None:
                lasts = span.end - span.start
                if max_seconds is not None and lasts > _FAR_BEYOND * max_seconds:
                    raise AudioError("wrong_times", f"lasts {lasts:.2f} s; {_OTHER_UNIT}")
                refuse_long(lasts, max_seconds)
            if file is None or not file.holds(source):
                file = AudioFile(source.file, source.channel)
            yield source, DecodedAudio(file.cut(span, max_seconds), file.cancelled)
        except AudioError as error:
            yield source, error


def refuse_long(seconds: float, most: float | None, announced: float = 0.0) -> None:
    """Raise an `AudioError` for a clip of more than `most` seconds, which may announce still more."""
    if most is not None and seconds > most + 0.5 / SAMPLE_RATE:
        raise AudioError(
            "too_long_audio", f"{max(seconds, announced):.2f} s, over the model's window of {most:g} s"
        )


def mix(samples: np.ndarray) -> tuple[np.ndarray, bool]:
    """The mean of (samples, channels), or the loudest channel of those in opposite phase; and whether they are."""
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


# Decoders: each has `rate`, `channels` and `announced` seconds, gives `blocks`, then says its `failure`.
_SHORTER = re.compile(r"(?m)^ *(?:data|SSND|Riff size|riff|Data Size) *: (\d+) \(should be (\d+)\)")


class _Sndfile:
    """WAV and its kin, and Ogg: libsndfile is ten times as fast as FFmpeg in PCM."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            handle = file if isinstance(file, io.BytesIO) else file.fileno()
            self.file = soundfile.SoundFile(handle, closefd=False)
        except soundfile.LibsndfileError as error:
            raise AudioError("unreadable_audio", f"cannot be decoded: {_reason(error)}") from error
        self.rate, self.channels = self.file.samplerate, self.file.channels
        self.announced: float | None = self.file.frames / self.rate
        self.failure: str | None = None
        # libsndfile cuts the length to what is there, and notes so: "data : 128000 (should be 63978)".
        for announced, there in re.findall(_SHORTER, self.file.extra_info):
            # Larger ones are of programs that did not know it yet.
            if int(announced) < 0x7FFFE000 or "64" in self.file.format:
                self.announced = self.file.frames / self.rate * int(announced) / max(1, int(there))
                self.failure = None if self.file.frames else "announces sound, holds none"

    def blocks(self) -> Iterator[np.ndarray]:
        try:
            while len(samples := self.file.read(_BLOCK_SECONDS * self.rate, "float32", always_2d=True)):
                yield samples
        except soundfile.LibsndfileError as error:
            self.failure = _reason(error)

    def close(self) -> None:
        self.file.close()


_FORMATS = "aac,ac3,aiff,amr,asf,avi,caf,flac,flv,loas,matroska,mov,mp3,mpeg,mpegts,nistsphere,ogg,w64,wav,wv"
"""FFmpeg's names of what may be read. It would else open lists of other files and addresses."""
_EXACT = ("flac", "mov", "nistsphere")
"""Formats that announce the length of the sound; other lengths are guesses by the bit rate."""
_AROUND = {"matroska": 0.1, "asf": 0.4, "flv": 0.4}
"""Formats that announce the length of all, with so many seconds that encoders may put around the sound."""
_GAP = 0.1
"""Seconds without a packet that are silence: a pause of the recorder, or sound that begins after the picture."""
_LONGEST_GAP = 600
"""Seconds; longer ones are damage."""


class _Ffmpeg:
    """All else: FLAC, MP3, what phones, browsers and cameras record."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            container: Any = av.open(file, metadata_errors="replace", options={"format_whitelist": _FORMATS})
        except (av.FFmpegError, ValueError) as error:
            raise AudioError("unreadable_audio", f"cannot be decoded: {_reason(error)}") from error
        stream: Any = container.streams.best("audio")
        if stream is None:
            raise AudioError("empty_audio", "the file has no sound in it")
        for other in container.streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        if not isinstance(stream.codec_context, av.AudioCodecContext):
            raise AudioError("unreadable_audio", "its sound is in a coding that is not known")
        self.container, self.stream = container, stream
        self.name = container.format.name.partition(",")[0]
        self.rate, self.channels = stream.codec_context.rate, stream.codec_context.channels
        self.layout = stream.codec_context.layout
        self.begin: float = (container.start_time or 0) / av.time_base
        self.failure: str | None = None
        self.announced = self._announced()

    def _announced(self) -> float | None:
        stream, container = self.stream, self.container
        seconds = float((stream.duration or 0) * stream.time_base)
        if self.name in _EXACT and seconds:  # from the beginning of the pictures
            return seconds + float((stream.start_time or 0) * stream.time_base) - self.begin
        if self.name in _AROUND and len(container.streams) == 1 and container.duration:
            return float(container.duration / av.time_base) - _AROUND[self.name]
        if self.name == "mp3" and seconds and stream.bit_rate:
            # Of its header where the file is too small for it; else it is whole, or this is a guess.
            return seconds if seconds > container.size * 8 / stream.bit_rate else None
        return None

    def blocks(self) -> Iterator[np.ndarray]:
        pieces: list[np.ndarray] = []
        for samples in self._frames():
            pieces.append(samples)
            if sum(each.shape[1] for each in pieces) >= _BLOCK_SECONDS * self.rate:
                yield np.concatenate(pieces, axis=1).T
                pieces = []
        if pieces:
            yield np.concatenate(pieces, axis=1).T

    def _frames(self) -> Iterator[np.ndarray]:
        """float32 (channels, samples) frame by frame, of one rate, with silence where nothing was recorded."""
        expected = self.begin
        converter: Any = None
        form, error = None, ""
        try:
            for packet in self.container.demux(self.stream):
                try:
                    frames = packet.decode()
                except av.InvalidDataError as bad:
                    # A broadcast begins in the middle of a unit, and behind an MP3 are tags of other programs.
                    error = _reason(bad)
                    continue
                for frame in frames:
                    start = expected if frame.pts is None else float(frame.pts * frame.time_base)
                    gap = start - expected
                    if gap > _LONGEST_GAP:
                        error = f"times jump by {gap:.0f} s"
                    if error and converter:
                        self.failure = f"after {expected - self.begin:.2f} s {error}"
                        return
                    error = ""
                    if form != (form := (frame.format.name, frame.layout.name, frame.sample_rate)):
                        converter = av.AudioResampler("fltp", self.layout, self.rate)
                    if gap > _GAP:
                        yield from [np.zeros((self.channels, self.rate // 100), np.float32)] * round(
                            gap * 100
                        )
                    expected = start + frame.samples / frame.sample_rate
                    yield from (converted.to_ndarray() for converted in converter.resample(frame))
        except av.FFmpegError as bad:
            error = _reason(bad)
        if error and self.name != "mp3":
            self.failure = f"after {expected - self.begin:.2f} s {error}"

    def close(self) -> None:
        self.container.close()


@contextlib.contextmanager
def _decoder(source: str | bytes | Path) -> Iterator[_Sndfile | _Ffmpeg]:
    """What decodes a file; errors of the disk as those of a clip."""
    try:
        if isinstance(source, bytes):
            opened: BinaryIO = io.BytesIO(source)
        elif Path(source).exists() and not Path(source).is_file():  # a pipe would wait for who writes it
            raise AudioError("unreadable_audio", "not a file")
        else:  # by its number: FFmpeg and soundfile would guess from the name what is in it
            opened = os.fdopen(os.open(source, os.O_RDONLY), "rb", buffering=0)
        with opened as file, contextlib.closing(_choose(file)) as decoder:
            yield decoder
    except FileNotFoundError as error:
        raise AudioError("unreadable_audio", f"file not found{_other_file(source)}") from error
    except (OSError, ValueError) as error:
        raise AudioError("unreadable_audio", f"cannot be read: {_reason(error)}") from error


def _other_file(source: str | bytes | Path) -> str:
    """What is there in place of a missing file: one of its name, of any suffix, beside it or a folder away."""
    missing = Path(os.fsdecode(source))
    other = _files_near(missing.parent).get(missing.stem)
    if other is None:
        return ""
    there = f", but {os.path.relpath(other, missing.parent.parent)} is there"
    return there if other.suffix == missing.suffix else f"{there}: correct the names in the table"


@functools.lru_cache(maxsize=32)
def _files_near(folder: Path) -> dict[str, Path]:
    """The audio files of a folder, and of some folders beside it, by their names without suffix."""
    files: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        beside = sorted(path for path in folder.parent.iterdir() if path.is_dir())[:_FOLDERS]
        for near in (folder, *beside, folder.parent):
            for path in sorted(near.iterdir()) if near.is_dir() else ():
                if path.suffix.lower() in AUDIO_SUFFIXES:
                    files.setdefault(path.stem, path)
    return files


def _choose(file: BinaryIO) -> _Sndfile | _Ffmpeg:
    if not (head := file.read(12)):
        raise AudioError("empty_audio", "the file is empty")
    file.seek(0)
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b"caff", b".snd") and head[8:] != b"AVI ":
        decoder = _Sndfile(file)
        if decoder.file.frames or decoder.failure:
            return decoder
        decoder.close()  # written to a pipe: libsndfile believes that it is empty
        file.seek(0)
    return _choose_ogg(file) if head[:4] == b"OggS" else _Ffmpeg(file)


def _choose_ogg(file: BinaryIO) -> _Sndfile | _Ffmpeg:
    """libsndfile decodes Opus at its recording's rate, FFmpeg at 48 kHz; of joined files libsndfile reads the first.

    Ogg announces no length: one that ends inside a page is cut.
    """
    content = file.read()
    file.seek(0)
    page = content[content.rfind(b"OggS") :]
    torn = len(page) < 27 or len(page) < 27 + page[26] + sum(page[27 : 27 + page[26]])
    try:
        decoder: _Sndfile | _Ffmpeg = _Sndfile(file) if content.count(b"OggS\0\2") == 1 else _Ffmpeg(file)
    except AudioError:  # Speex
        file.seek(0)
        decoder = _Ffmpeg(file)
    decoder.failure = "ends inside a page" if torn else None
    return decoder


def _reason(error: BaseException) -> str:
    """The library's reason in one line and without the object's address."""
    text = str(getattr(error, "error_string", "") or getattr(error, "strerror", "") or error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
