"""Rows of a data set as they are read (CSV, TSV, JSONL, Parquet, datasets), before columns are chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.embedded import DatasetAudio, EmbeddedAudio, ParquetAudio, holds_audio
from trainer.data.separated import read_separated
from trainer.errors import DataError

if TYPE_CHECKING:
    import datasets

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
CUE_COLUMN = "subtitle cue"
"""Column of a table made of subtitles: file and line of each cue."""


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
    pack_seconds: float = 0.0
    """To which rows with times are joined where `pack_seconds` is not set."""

    @property
    def column_names(self) -> list[str]:
        return [*self.embedded, *self.columns]

    def __len__(self) -> int:
        for values in self.columns.values():
            return len(values)
        for audio in self.embedded.values():
            return len(audio.names)
        return 0


def read_manifest(path: Path, *, bases: tuple[Path, ...] = ()) -> Table:
    """The rows of a manifest; its kind is told by the suffix.

    Args:
        path: CSV, TSV, JSONL (or a JSON list) or Parquet.
        bases: folders that audio paths are relative to; the manifest's own by default.

    Raises:
        DataError: the file is not what its suffix says.
    """
    bases = bases or (path.parent,)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path, bases)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if suffix in (".jsonl", ".json"):
        return Table(str(path), _json_columns(path, text), bases=bases)
    return Table(str(path), _separated_columns(path, text), bases=bases)


def _separated_columns(path: Path, text: str) -> dict[str, list[Any]]:
    header, rows = read_separated(path, text)
    if not any(header):
        raise DataError(f"{path}: is empty; its first line must name the columns")
    _require_different(path, header)
    # Spreadsheets end lines with separators, and pandas writes its index: columns without a name.
    return {name: [row[column] for row in rows] for column, name in enumerate(header) if name}


def _require_different(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"{path}: {names.count(twice)} columns are named {twice!r}; every column needs a name of its own"
        )


def _json_columns(path: Path, text: str) -> dict[str, list[Any]]:
    rows: list[Any]
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
        except RecursionError as error:
            raise DataError(f"{path}: not a table: lists in lists without end") from error
    else:
        rows = []
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise DataError(f"{path}, line {number}: not valid JSON: {error.msg}") from error
            except RecursionError as error:
                raise DataError(f"{path}, line {number}: not a row: lists in lists without end") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f'{path}, row {number}: must be an object such as {{"audio": ..., "text": ...}}')
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(path: Path, bases: tuple[Path, ...]) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _require_different(path, schema.names)
            embedded = {
                field.name: ParquetAudio(path, field.name, bases)
                for field in schema
                if holds_audio(field.type)
            }
            table = file.read(columns=[field.name for field in schema if field.name not in embedded])
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is not a Parquet file that can be read: {str(error).splitlines()[0]}"
        ) from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return Table(str(path), columns, dict(embedded), bases)


def table_of_dataset(data: datasets.Dataset, origin: str, bases: tuple[Path, ...] = ()) -> Table:
    """The rows of a Hugging Face data set, its audio left undecoded (decoding there needs FFmpeg)."""
    from datasets import Audio, ClassLabel

    data = data.with_format(None)
    for name, feature in data.features.items():
        if isinstance(feature, Audio):
            data = data.cast_column(name, Audio(decode=False))
    schema = data.features.arrow_schema
    heavy = [field.name for field in schema if holds_audio(field.type)]
    columns = dict(data.remove_columns(heavy).to_dict()) if len(heavy) < len(schema) else {}
    for name, feature in data.features.items():
        if isinstance(feature, ClassLabel) and name in columns:
            names = feature.names
            # A class is stored as a number, -1 where it is not known; people filter by its name.
            columns[name] = [None if value is None or value < 0 else names[value] for value in columns[name]]
    embedded: dict[str, EmbeddedAudio] = {name: DatasetAudio(data, name, bases) for name in heavy}
    return Table(origin, columns, embedded, bases)
