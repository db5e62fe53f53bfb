"""Rows of a data set as they are read (CSV, TSV, JSON, Parquet, datasets), before columns are chosen."""

from __future__ import annotations

import codecs
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.audio import AUDIO_SUFFIXES
from trainer.data.embedded import (
    RATE_COLUMN,
    DatasetAudio,
    EmbeddedAudio,
    ParquetAudio,
    audio_columns,
    find_file,
    is_file,
)
from trainer.data.tables.separated import read_separated
from trainer.errors import DataError, one_line

if TYPE_CHECKING:
    import datasets

CUE_COLUMN = "subtitle cue"
"""Column of a table made of subtitles: file and line of each cue."""
_AUDIO_FOLDERS = ("clips", "audios", "wavs")
"""Where releases keep the files that their tables name without a folder."""
_WRAPPERS = ("data", "rows", "records", "items")
"""Keys under which one JSON object holds the list of rows."""


@dataclasses.dataclass
class Table:
    """Rows of one file or split.

    `columns` holds the plain values, one list per column; `embedded` the columns with audio inside. Paths in
    the columns are relative to the `base` folders, the first that has the file.
    """

    origin: str
    columns: dict[str, list[Any]]
    embedded: dict[str, EmbeddedAudio] = dataclasses.field(default_factory=dict)
    bases: tuple[Path, ...] = ()
    audio_folders: tuple[Path, ...] = ()
    """Where the user says that its files are, by their paths in the columns or by their names alone."""
    pack_seconds: float = 0.0
    """To which rows with times are joined where `pack_seconds` is not set."""

    @property
    def column_names(self) -> list[str]:
        return [*self.embedded, *self.columns]

    def __len__(self) -> int:
        columns = [*self.columns.values(), *(audio.names for audio in self.embedded.values())]
        return len(columns[0]) if columns else 0

    def find(self, name: str) -> str:
        """The path of a file that a cell names; where it is missing, that where it would be.

        By its path in `audio_dir` or beside the table, else by its name alone in `audio_dir`.
        """
        path = find_file(name, (*self.audio_folders, *self.bases))
        if self.audio_folders and not is_file(path):
            named = find_file(re.split(r"[\\/]", name)[-1], self.audio_folders)
            return named if is_file(named) else path
        return path

    def location(self, row: int) -> str:
        """Where a row stands: `talk.srt, line 12`, or `clips.csv, row 7`, counted from 1 without the header."""
        if CUE_COLUMN in self.columns:
            return str(self.columns[CUE_COLUMN][row])
        return f"{self.origin}, row {row + 1}"


def read_manifest(path: Path, *, bases: tuple[Path, ...] = ()) -> Table:
    """The rows of a manifest: CSV, TSV, JSONL (or other JSON with rows) or Parquet, as the suffix says.

    Audio paths are relative to its folder, to one that releases have in it, or to one of `bases`.

    Raises:
        DataError: the file is not what its suffix says.
    """
    bases = (path.parent, *bases, *(path.parent / name for name in _AUDIO_FOLDERS))
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path, bases)
    text = read_text(path)
    if suffix in (".jsonl", ".json"):
        columns = _json_columns(path, text)
    else:
        columns = _ljspeech_columns(path, text) or _separated_columns(path, text)
    return Table(str(path), columns, bases=bases)


def read_text(path: Path) -> str:
    """The content of a text file in UTF-8, or in UTF-16 with a mark.

    Raises:
        DataError: it is neither, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            marked = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return path.read_text(encoding="utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _separated_columns(path: Path, text: str) -> dict[str, list[Any]]:
    header, rows = read_separated(path, text)
    if not any(header):
        raise DataError(f"{path}: is empty; its first line must name the columns")
    _require_different(path, header)
    # Spreadsheets end lines with separators, and pandas writes its index: columns without a name.
    return {name: [row[column] for row in rows] for column, name in enumerate(header) if name}


def _ljspeech_columns(path: Path, text: str) -> dict[str, list[Any]] | None:
    """LJSpeech's, which name no columns: a file of `wavs/`, its text as written and, perhaps, as spoken."""
    wavs = path.parent / "wavs"
    if path.suffix.lower() != ".csv" or not wavs.is_dir():
        return None
    rows = [[*line.split("|"), ""] for line in text.split("\n") if line]
    sounds = [file for file in sorted(wavs.iterdir()) if file.suffix.lower() in AUDIO_SUFFIXES]
    files = {name: file.name for file in sounds for name in (file.name, file.stem)}
    if not rows or rows[0][0] not in files:
        return None
    return {"audio": [files.get(row[0], row[0]) for row in rows], "text": [row[1] for row in rows]}


def _require_different(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}: {names.count(twice)} columns are named {twice[:80]!r}; every column needs a name of its own"
        )


def _json_columns(path: Path, text: str) -> dict[str, list[Any]]:
    """Of an object a line, a list of objects, or one object that holds the list or, of pandas, columns."""
    begin, last = len(text) - len(text.lstrip()), len(text.rstrip())
    try:
        first, end = json.JSONDecoder().raw_decode(text, begin) if last else ([], 0)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise DataError(f"{path}: not a table: lists are nested too deeply") from error
    rows = _unwrapped(first) if end == last else _json_lines(path, text)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f'{path}, row {number}: must be an object such as {{"audio": ..., "text": ...}}')
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not valid JSON: {error.msg}") from error
        except RecursionError as error:
            raise DataError(f"{path}, line {number}: not a row: lists are nested too deeply") from error
    return rows


def _unwrapped(value: Any) -> list[Any]:
    """The rows of a file that is one JSON value."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    for name in _WRAPPERS:
        if isinstance(value.get(name), list):
            return list(value[name])
    columns = list(value.values())
    if columns and all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        rows = zip(*(column.values() for column in columns), strict=True)
        return [dict(zip(value, cells, strict=True)) for cells in rows]
    return [value]


def _read_parquet(path: Path, bases: tuple[Path, ...]) -> Table:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _require_different(path, schema.names)
            heavy = audio_columns(schema)
            table = file.read(columns=[name for name in schema.names if name not in heavy])
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            rates = columns.get(RATE_COLUMN)
            embedded: dict[str, EmbeddedAudio] = {
                name: ParquetAudio(path, name, bases, rates) for name in heavy
            }
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is not a Parquet file that can be read: {one_line(error)}") from error
    return Table(str(path), columns, embedded, bases)


def table_of_dataset(data: datasets.Dataset, origin: str, bases: tuple[Path, ...] = ()) -> Table:
    """The rows of a Hugging Face data set, its audio left undecoded (decoding there needs FFmpeg)."""
    from datasets import Audio, ClassLabel

    data = data.with_format(None)
    for name, feature in data.features.items():
        if isinstance(feature, Audio):
            data = data.cast_column(name, Audio(decode=False))
    schema = data.features.arrow_schema
    heavy = audio_columns(schema)
    columns = dict(data.remove_columns(heavy).to_dict()) if len(heavy) < len(schema) else {}
    for name, feature in data.features.items():
        if isinstance(feature, ClassLabel) and name in columns:
            names = feature.names
            # A class is stored as a number, -1 where it is not known; people filter by its name.
            columns[name] = [None if value is None or value < 0 else names[value] for value in columns[name]]
    rates = columns.get(RATE_COLUMN)
    embedded: dict[str, EmbeddedAudio] = {name: DatasetAudio(data, name, bases, rates) for name in heavy}
    return Table(origin, columns, embedded, bases)
