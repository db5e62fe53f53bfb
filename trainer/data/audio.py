"""Audio, as 16 kHz mono of any rate, WAV, FLAC, OGG or MP3; and columns of a data set that hold it themselves."""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.errors import DataError

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    import soundfile

SAMPLE_RATE = 16_000
"""Samples a second that every Whisper model hears."""
_BLOCK = 1 << 20
"""Samples of each channel that are read at once where nobody says how many there may be."""


class AudioError(Exception):
    """A clip cannot be used; `reason` is the code it is counted under, the message is one line.

    Not a `UserError`: a bad clip is dropped and listed, and only too many of them stop the run.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_audio(source: str | bytes | Path, *, max_seconds: float | None = None) -> np.ndarray:
    """The samples of one clip.

    Args:
        source: path of a file, or the content of one.
        max_seconds: longest clip wanted; a longer one is refused without decoding all of it.

    Returns:
        float32 array (samples,), 16 kHz mono in about -1 to 1; channels are averaged.

    Raises:
        AudioError: `unreadable_audio`, `empty_audio` or `too_long_audio`.
    """
    import numpy as np
    import soundfile

    try:
        with soundfile.SoundFile(
            io.BytesIO(source) if isinstance(source, bytes) else _existing(source)
        ) as file:
            rate = file.samplerate
            # A header may lie about the length, so the limit holds for what is read, not for what is
            # announced.
            samples = (
                _read_whole(file)
                if max_seconds is None
                else file.read(int(max_seconds * rate) + 2, dtype="float32", always_2d=True)
            )
            announced = file.frames / rate
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("unreadable_audio", why_undecodable(error)) from error
    if not len(samples):
        raise AudioError("empty_audio", "no samples")
    mono = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if not np.isfinite(mono).all():
        raise AudioError("unreadable_audio", "has samples that are not finite numbers")
    if max_seconds is not None and len(mono) / rate > max_seconds + 0.5 / SAMPLE_RATE:
        seconds = max(announced, len(mono) / rate)
        raise AudioError("too_long_audio", f"{seconds:.2f} s, over the model's window of {max_seconds:g} s")
    return _resample(mono, rate)


def _read_whole(file: soundfile.SoundFile) -> np.ndarray:
    """All samples (samples, channels) of an open file, block after block.

    At once soundfile reads only what it can seek in, and libsndfile cannot seek in GSM and some kinds of ADPCM.
    """
    import numpy as np

    blocks = [np.zeros((0, file.channels), dtype=np.float32)]
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        blocks.append(block)
    return np.concatenate(blocks)


def _resample(mono: np.ndarray, rate: int) -> np.ndarray:
    import numpy as np
    import soxr

    if rate != SAMPLE_RATE:
        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    if not len(mono):
        raise AudioError("empty_audio", "shorter than one sample at 16 kHz")
    return np.ascontiguousarray(mono, dtype=np.float32)


def _existing(source: str | Path) -> str:
    """The path, checked here because of a missing file libsndfile says no more than "System error"."""
    path = Path(source)
    if not path.exists():
        raise AudioError("unreadable_audio", "file not found")
    if not path.is_file():
        raise AudioError("unreadable_audio", "not a file")
    if not path.stat().st_size:
        raise AudioError("empty_audio", "the file is empty")
    return str(path)


def why_undecodable(error: BaseException) -> str:
    """libsndfile's reason, or the system's, in one line and without the object's address."""
    text = str(getattr(error, "error_string", "") or getattr(error, "strerror", "") or error).strip()
    text = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    return f"cannot be decoded as WAV, FLAC, OGG or MP3: {text}"


class EmbeddedAudio(Protocol):
    """A column with audio inside."""

    column: str
    """Its name."""
    names: Sequence[str | None]
    """The file name that goes with each row, where there is one."""
    origin: Sequence[str]
    """Files that hold the audio; their size and time stand for the content."""

    def read(self, row: int) -> bytes | str:
        """Content of the row's audio file, or the path of a file beside; empty where there is neither."""


def holds_audio(kind: pa.DataType) -> bool:
    """Whether a column of this type holds audio files: Hugging Face's {bytes, path}, or plain bytes."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _has_path(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind) and kind.get_field_index("path") >= 0)


def find_file(told: str, bases: Sequence[Path]) -> str:
    """The absolute path of a file named relative to the first of `bases` that has it; empty for no name."""
    # Only the user's own home: `~take.wav` is a file, not the home of somebody called take.wav.
    path = Path(told).expanduser() if told.startswith("~/") else Path(told)
    if path.is_absolute() or not told:
        return str(path) if told else ""
    places = [(base / path).absolute() for base in bases] or [path.absolute()]
    return str(next((place for place in places if _is_file(place)), places[0]))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a sentence in the place of a path is too long for a file name
        return False


def _content_or_path(value: Any, bases: Sequence[Path]) -> bytes | str:
    """Of a cell with audio: its bytes, or else the path of a file."""
    if isinstance(value, dict):
        return value.get("bytes") or find_file(value.get("path") or "", bases)
    return value or ""


class ParquetAudio:
    """Audio inside a Parquet file, read forward in small batches: a row group may be larger than memory."""

    _BATCH_ROWS = 16

    def __init__(self, path: Path, column: str, bases: Sequence[Path]) -> None:
        import pyarrow.parquet as pq

        self._path, self.column, self._bases = path, column, bases
        self.origin: Sequence[str] = (str(path.absolute()),)
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
            self.names: Sequence[str | None] = [None] * sum(sizes)
            if sizes and _has_path(file.schema_arrow.field(column).type):
                cells = file.read(columns=[f"{column}.path"]).column(0).combine_chunks()
                self.names = cells.field("path").to_pylist()
        self._batches: Iterator[tuple[int, list[Any]]] = iter(())
        self._group, self._first = -1, 0
        self._rows: list[Any] = []

    def read(self, row: int) -> bytes | str:
        """Content (or path) of one row's audio; rows are best asked for in rising order."""
        import pyarrow as pa

        group = bisect.bisect_right(self._starts, row) - 1
        if group != self._group or row < self._first:
            self._group, self._batches = group, self._read_group(group)
            self._first, self._rows = self._starts[group], []
        try:
            while row >= self._first + len(self._rows):
                self._first, self._rows = next(self._batches)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path}: column {self.column} cannot be read: {error}") from error
        return _content_or_path(self._rows[row - self._first], self._bases)

    def _read_group(self, group: int) -> Iterator[tuple[int, list[Any]]]:
        import pyarrow.parquet as pq

        first = self._starts[group]
        with pq.ParquetFile(self._path, memory_map=True) as file:
            for batch in file.iter_batches(self._BATCH_ROWS, row_groups=[group], columns=[self.column]):
                yield first, batch.column(0).to_pylist()
                first += batch.num_rows


class DatasetAudio:
    """Audio inside a Hugging Face data set, which is memory-mapped from disk."""

    def __init__(self, data: datasets.Dataset, column: str, bases: Sequence[Path]) -> None:
        self._data, self.column, self._bases = data.select_columns([column]), column, bases
        # The fingerprint stands for content that was never on disk, and for rows that were picked out.
        files = tuple(str(file["filename"]) for file in data.cache_files)
        self.origin: Sequence[str] = files or (f"dataset:{data._fingerprint}",)
        self.names: Sequence[str | None] = self._path_names()

    def read(self, row: int) -> bytes | str:
        """Content (or path) of one row's audio."""
        return _content_or_path(self._data[row][self.column], self._bases)

    def _path_names(self) -> list[str | None]:
        """The `path` of every cell, batch by batch so that the content is never held all at once."""
        names: list[str | None] = []
        for batch in self._data.with_format("arrow").iter(batch_size=64):
            cells = batch.column(self.column).combine_chunks()
            names += cells.field("path").to_pylist() if _has_path(cells.type) else [None] * len(cells)
        return names
