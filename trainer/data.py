"""Loading a data set: any source as clips with text, in train, validation and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trainer.columns import (
    cell_text,
    find_audio_column,
    find_text_column,
    language_filter,
    other_text_columns,
    parse_row_filter,
    select_rows,
    values_of,
)
from trainer.config import TrainConfig
from trainer.embedded import EmbeddedAudio, find_file
from trainer.errors import DataError
from trainer.sources import SPLIT_ALIASES, read_source
from trainer.splits import complete_splits, find_splits
from trainer.tables import Table


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """One example: a stretch of speech and what is said in it."""

    name: str
    """The file as the data set names it, for messages and lists."""
    text: str
    """The transcript as the data set has it; empty where there is none."""
    path: str = ""
    """File with the audio, where it is a file of its own."""
    embedded: EmbeddedAudio | None = None
    """Column with the audio inside, where it is not."""
    row: int = 0
    """Row in that column."""

    def source(self) -> str | bytes:
        """Path or content of the audio file, as `read_audio` takes it."""
        if self.embedded is None:
            return self.path
        return self.embedded.read(self.row)

    def identity(self, seen: dict[str, str]) -> str:
        """What changes when the audio does: place, size and time of the file that holds it.

        `seen` remembers files that hold many clips; give the same one for all clips.
        """
        if self.embedded is None:
            return _file_identity(self.path, seen)
        files = "|".join(_file_identity(path, seen) for path in self.embedded.origin)
        return f"{files}[{self.row}]{self.embedded.column}/{self.name}"


def _file_identity(path: str, seen: dict[str, str]) -> str:
    if path not in seen:
        try:
            status = Path(path).stat()
            seen[path] = f"{path}:{status.st_size}:{status.st_mtime_ns}"
        except OSError:
            seen[path] = f"{path}:missing"
    return seen[path]


@dataclasses.dataclass(frozen=True)
class ClipTable:
    """A data set: clips by role (`train` and `validation` always, `test` where there is one), and notes."""

    splits: Mapping[str, Sequence[Clip]]
    notes: list[str]
    """Sentences for the user: what was chosen, filtered or made."""

    @property
    def total(self) -> int:
        """Clips in all splits."""
        return sum(len(clips) for clips in self.splits.values())


_Part = tuple[Table, Sequence[int]]
"""Some rows of a table: what belongs to one split."""


def load_clips(config: TrainConfig) -> ClipTable:
    """The clips of `config.data`, with filters, splits and limits applied. No audio is read.

    Raises:
        DataError: the data, a column or a split is not there, or a split is empty.
        ConfigError: `row_filter` is malformed, or one split is given two roles.
    """
    wanted = parse_row_filter(config.row_filter)
    tables, notes = read_source(config)
    parts = _divide(tables)
    roles = find_splits(config, parts)
    used = {id(table): table for name in roles.values() for table, _ in parts[name]}
    by_language, language_note = language_filter(list(used.values()), config.language or "en", wanted)
    wanted |= by_language
    splits: dict[str, list[Clip]] = {}
    before = 0
    for role, name in roles.items():
        chosen = [(table, select_rows(table, rows, wanted)) for table, rows in parts[name]]
        splits[role] = [clip for table, rows in chosen for clip in _clips(config, table, rows, name or role)]
        before += sum(len(rows) for _, rows in parts[name])
    _require_rows(config, splits, list(used.values()), wanted)
    after = sum(len(clips) for clips in splits.values())
    if before > after:
        how = [config.row_filter] if config.row_filter else []
        how += [language_note] if language_note and by_language else []
        notes.append(f"kept {after} of {before} rows: {' and '.join(how)}")
    if language_note and not by_language:
        notes.append(language_note)
    notes += _column_note(config, next(iter(used.values())))
    unused = [name or "(no name)" for name in parts if name not in roles.values()]
    if unused:
        notes.append(f"splits that are not used: {', '.join(unused)}")
    if "test" in splits and not splits["test"]:
        del splits["test"]
        notes.append("the test split is left out: it has no rows")
    complete, more = complete_splits(config, splits)
    return ClipTable(complete, notes + more)


def _divide(tables: Mapping[str, list[Table]]) -> dict[str, list[_Part]]:
    """Rows by split: as the source divides them, or by a `split` column where it does not.

    Where there is neither, everything is training data.
    """
    if len(tables) == 1:
        [(name, group)] = tables.items()
        known = {alias for names in SPLIT_ALIASES.values() for alias in names}
        if any(value.lower() in known for value in values_of(group, "split")):
            return _divide_by_column(group)
        tables = {name or "train": group}
    return {name: [(table, range(len(table))) for table in group] for name, group in tables.items()}


def _divide_by_column(group: Sequence[Table]) -> dict[str, list[_Part]]:
    parts: dict[str, list[_Part]] = {}
    for table in group:
        rows: dict[str, list[int]] = {}
        for row, value in enumerate(table.columns.get("split", [""] * len(table))):
            rows.setdefault(cell_text(value), []).append(row)
        for split, positions in rows.items():
            parts.setdefault(split, []).append((table, positions))
    return parts


def _clips(config: TrainConfig, table: Table, rows: Iterable[int], split: str) -> list[Clip]:
    audio, text = find_audio_column(config, table), find_text_column(config, table)
    texts = table.columns[text]
    clips = []
    for row in rows:
        spoken = cell_text(texts[row])
        if audio in table.embedded:
            column = table.embedded[audio]
            clips.append(Clip(column.names[row] or f"{split}[{row}]", spoken, "", column, row))
        else:
            told = cell_text(table.columns[audio][row])
            clips.append(Clip(told or f"{split}[{row}]", spoken, find_file(told, table.bases)))
    return clips


def _require_rows(
    config: TrainConfig,
    splits: Mapping[str, list[Clip]],
    tables: Sequence[Table],
    wanted: dict[str, list[str]],
) -> None:
    for role, clips in splits.items():
        if clips or (role == "test" and any(splits.values())):
            continue
        if any(len(table) for table in tables) and wanted:
            column = next(iter(wanted))
            values = values_of(tables, column)
            shown = ", ".join(values[:8]) + (" ..." if len(values) > 8 else "")
            told = ",".join(f"{name}={value}" for name, values in wanted.items() for value in values)
            raise DataError(
                f"row_filter={told!r}: no row of the {role} split is left; column {column} has {shown}"
            )
        raise DataError(
            f"data={config.data!r}: the {role} split is empty; give one that has clips with {role}_split"
        )


def _column_note(config: TrainConfig, table: Table) -> list[str]:
    """Said only where another choice was possible."""
    text = find_text_column(config, table)
    others = other_text_columns(table, text)
    if config.text_column is not None or not others:
        return []
    return [f"the text is taken from column {text} (text_column may name another: {', '.join(others)})"]
