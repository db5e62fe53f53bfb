"""Columns of a data set that hold audio themselves, or name the files with it, as Hugging Face lays them out."""

from __future__ import annotations

import abc
import bisect
import io
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from trainer.errors import DataError

if TYPE_CHECKING:
    import datasets


RATE_COLUMN = "sampling_rate"
"""Column with the rates of audio that is a list of samples."""


class EmbeddedAudio(abc.ABC):
    def __init__(
        self,
        column: str,
        names: Sequence[str | None],
        rates: Sequence[int | None] | None,
        origin: Sequence[str],
        bases: Sequence[Path],
    ) -> None:
        self.column, self.names = column, names
        """The file name that goes with each row, where there is one."""
        self.origin = origin
        """Files that hold the column; which they are and when they changed stands for the content."""
        self._rates, self._bases = rates, bases

    @abc.abstractmethod
    def _cell(self, row: int) -> Any:
        """What the row has in the column; rows are best asked for in rising order."""

    def read(self, row: int) -> bytes | str:
        """Content of the row's audio file, or the path of a file beside; empty where there is neither."""
        return content_or_path(self._cell(row), self._bases, self._rates[row] if self._rates else None)

    def file(self, row: int) -> str:
        """Path of the file that the row names, whether or not it has content too; empty where none is there."""
        path = find_file(self.names[row] or "", self._bases)
        return path if is_file(path) else ""


def audio_columns(schema: pa.Schema) -> list[str]:
    """Columns that hold audio: Hugging Face's {bytes, path} or {array, sampling_rate}, or bytes.

    Lists of numbers, or of one for each channel, do where another column says how fast they come.
    """
    rated = RATE_COLUMN in schema.names
    return [field.name for field in schema if _holds_audio(field.type, rated)]


def _holds_audio(kind: pa.DataType, rated: bool) -> bool:
    types = pa.types
    if types.is_struct(kind):
        return any(kind.get_field_index(name) >= 0 for name in ("bytes", "array"))
    number = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind  # an array of `datasets`
    while types.is_list(number) or types.is_large_list(number) or types.is_fixed_size_list(number):
        number = number.value_type
    if number is not kind:
        return rated and bool(types.is_floating(number) or types.is_integer(number))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _has_path(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("path") >= 0)


def find_file(name: str, bases: Sequence[Path]) -> str:
    """The absolute path of a file named relative to the first of `bases` that has it; empty for no name.

    Where none has it, backslashes are taken for slashes, and letters with accents for their other Unicode form.
    """
    if (plain := _plain_file(name, bases)) is not None or not name:
        return plain or ""
    # Only the user's own home: `~take.wav` is a file, not the home of somebody called take.wav.
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    names = [str(path), str(path).replace("\\", "/")]
    names += [unicodedata.normalize(form, names[1]) for form in ("NFC", "NFD")]
    candidates = [(base / name).absolute() for name in dict.fromkeys(names) for base in bases or [Path()]]
    return str(next(filter(is_file, candidates), candidates[0]))


def _plain_file(name: str, bases: Sequence[Path]) -> str | None:
    """The same for names as nearly all are, which need no pathlib: with a million rows it is most of the time."""
    if not name or name[0] in "/~." or name[-1] in "/." or "//" in name or "/." in name:
        return None
    for base in bases:
        if is_file(path := f"{base.absolute()}/{name}"):
            return path
    return None


def is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - Path raises where a sentence stands in the place of a path


def content_or_path(value: Any, bases: Sequence[Path], rate: int | None = None) -> bytes | str:
    """Of a cell with audio: its bytes, its samples as a WAV file, or else the path of a file."""
    if isinstance(value, dict):
        if value.get("array") is not None:
            return _wav(value["array"], value.get("sampling_rate"))
        return value.get("bytes") or find_file(value.get("path") or "", bases)
    return _wav(value, rate) if isinstance(value, list) else value or ""


_LOUDEST = 2.0
"""Samples that are scaled to 1 may be louder where sounds were added or resampled, but not by far."""


def _wav(samples: Sequence[Any], rate: int | None) -> bytes:
    """Samples as a file, of several channels in either order; whole numbers have 16 or 32 bits."""
    if not rate:  # it is dropped as unreadable, and counted
        return b""
    values = np.asarray(samples)
    peak = float(np.abs(values.astype(np.float64)).max(initial=0.0))
    if np.issubdtype(values.dtype, np.integer) or peak > _LOUDEST:
        values = values / (2.0**15 if peak <= 2.0**15 else 2.0**31)
    if values.ndim == 2 and values.shape[0] < values.shape[1]:
        values = values.T
    buffer = io.BytesIO()
    soundfile.write(buffer, values.astype(np.float32), int(rate), format="WAV", subtype="FLOAT")
    return buffer.getvalue()


class ParquetAudio(EmbeddedAudio):
    """Audio inside a Parquet file, read forward in small batches: a row group may be larger than memory."""

    _BATCH_ROWS = 16

    def __init__(
        self, path: Path, column: str, bases: Sequence[Path], rates: Sequence[int | None] | None
    ) -> None:
        self._path = path
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
            self._starts = [sum(sizes[:index]) for index in range(len(sizes))]
            names: Sequence[str | None] = [None] * sum(sizes)
            if sizes and _has_path(file.schema_arrow.field(column).type):
                cells = file.read(columns=[f"{column}.path"]).column(0).combine_chunks()
                names = cells.field("path").to_pylist()
        super().__init__(column, names, rates, (str(path.absolute()),), bases)
        self._group, self._first, self._rows = -1, 0, list[Any]()
        self._batches: Iterator[list[Any]] = iter(())

    def _cell(self, row: int) -> Any:
        group = bisect.bisect_right(self._starts, row) - 1
        try:
            if group != self._group or row < self._first:
                self._group, self._first, self._rows = group, self._starts[group], []
                self._batches = self._read_group(group)
            while row >= self._first + len(self._rows):
                self._first += len(self._rows)
                self._rows = next(self._batches)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self._path}: column {self.column} cannot be read: {error}") from error
        return self._rows[row - self._first]

    def _read_group(self, group: int) -> Iterator[list[Any]]:
        with pq.ParquetFile(self._path, memory_map=True) as file:
            for batch in file.iter_batches(self._BATCH_ROWS, row_groups=[group], columns=[self.column]):
                yield batch.column(0).to_pylist()


class DatasetAudio(EmbeddedAudio):
    """Audio inside a Hugging Face data set, which is memory-mapped from disk."""

    def __init__(
        self, data: datasets.Dataset, column: str, bases: Sequence[Path], rates: Sequence[int | None] | None
    ) -> None:
        self._data = data.select_columns([column])
        names: list[str | None] = []
        # Batch by batch, so that the content is never held all at once.
        for batch in self._data.with_format("arrow").iter(batch_size=64):
            cells = batch.column(column).combine_chunks()
            names += cells.field("path").to_pylist() if _has_path(cells.type) else [None] * len(cells)
        # The fingerprint stands for content that was never on disk, and for rows that were picked out.
        files = tuple(str(file["filename"]) for file in data.cache_files)
        super().__init__(column, names, rates, files or (f"dataset:{data._fingerprint}",), bases)

    def _cell(self, row: int) -> Any:
        return self._data[row][self.column]
