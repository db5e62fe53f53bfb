"""Columns of a data set that hold audio themselves, or name the files with it, as Hugging Face lays them out."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainer.errors import DataError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa


class EmbeddedAudio(Protocol):
    """A column with audio inside."""

    column: str
    """Its name."""
    names: Sequence[str | None]
    """The file name that goes with each row, where there is one."""
    origin: Sequence[str]
    """Files that hold the column; which they are and when they changed stands for the content."""

    def read(self, row: int) -> bytes | str:
        """Content of the row's audio file, or the path of a file beside; empty where there is neither."""

    def file(self, row: int) -> str:
        """Path of the file that the row names, whether or not it has content too; empty where none is there."""


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
    if (plain := _plain_file(told, bases)) is not None:
        return plain
    # Only the user's own home: `~take.wav` is a file, not the home of somebody called take.wav.
    path = Path(told).expanduser() if told.startswith("~/") else Path(told)
    if path.is_absolute() or not told:
        return str(path) if told else ""
    places = [(base / path).absolute() for base in bases] or [path.absolute()]
    return str(next((place for place in places if _is_file(place)), places[0]))


def _plain_file(told: str, bases: Sequence[Path]) -> str | None:
    """The same for names as nearly all are, which need no pathlib: with a million rows it is most of the time."""
    if not told or told[0] in "/~." or told[-1] in "/." or "//" in told or "/." in told:
        return None
    for base in bases:
        if os.path.isfile(path := f"{base.absolute()}/{told}"):  # noqa: PTH113
            return path
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a sentence in the place of a path is too long for a file name
        return False


def _named_file(name: str | None, bases: Sequence[Path]) -> str:
    path = find_file(name or "", bases)
    return path if path and _is_file(Path(path)) else ""


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

    def file(self, row: int) -> str:
        """The file that a row names."""
        return _named_file(self.names[row], self._bases)

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

    def file(self, row: int) -> str:
        """The file that a row names."""
        return _named_file(self.names[row], self._bases)

    def _path_names(self) -> list[str | None]:
        """The `path` of every cell, batch by batch so that the content is never held all at once."""
        names: list[str | None] = []
        for batch in self._data.with_format("arrow").iter(batch_size=64):
            cells = batch.column(self.column).combine_chunks()
            names += cells.field("path").to_pylist() if _has_path(cells.type) else [None] * len(cells)
        return names
