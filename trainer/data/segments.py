"""Rows as clips: whole files, or parts of recordings, joined where they are short and near each other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.data.audio import WHOLE, Span
from trainer.data.clip import Clip
from trainer.data.columns import (
    LANGUAGE_NAMES,
    PLAIN,
    SPEAKER_NAMES,
    Origin,
    audio_path,
    cell_text,
    find_audio_column,
    find_text_column,
    named,
    row_origins,
    shown,
    transcript,
)
from trainer.data.tables.table import CUE_COLUMN, Table
from trainer.data.text import has_words, word_gap
from trainer.errors import DataError
from trainer.model.processor import load_processor, window_seconds

_LONGEST_PAUSE = 1.0
"""Seconds between two segments that are joined: longer ones have sounds that nobody wrote down."""
_OVERLAP = 0.1
"""Seconds by which cues may overlap: less is rounding."""
_MOST_SHOWN = 5
_LENGTH_COLUMNS = ("offset", "duration")
"""Start and length, as NeMo's manifests have them."""
_OTHER_COLUMNS = (
    *(("start_time", "end_time"), ("start_ms", "end_ms"), ("start_sec", "end_sec"), ("begin", "end")),
    *(("start_seconds", "end_seconds"), ("begin_time", "end_time"), ("segment_start", "segment_end")),
    *(("start", "stop"), ("start_timestamp", "end_timestamp"), ("start (s)", "end (s)")),
    *(("start", "duration"), ("start_time", "duration"), ("begin", "duration"), ("offset_ms", "duration_ms")),
)
"""What times of parts are called too, in seconds or not: nobody knows before the user says so."""
_LENGTHS = ("duration", "length")
"""Beginnings of names of columns with lengths, not ends."""
_MILLISECONDS = "_ms"
"""How names of columns end that say their unit."""


def clips_of_rows(
    config: TrainConfig,
    table: Table,
    rows: Sequence[int],
    split: str,
    origin: Origin = PLAIN,
    *,
    window: float | None = None,
) -> tuple[list[Clip], list[str]]:
    """The clips of some rows, those of a recording one after the other where rows have times; and notes on their times.

    Names of a data file's clips begin with that of their source, since several may call their files alike.

    Nothing is joined beyond `window` seconds, by default those of `config.model`.

    Raises:
        DataError: a column is not there, may have times and nobody said so, or a row's language, task or time is none.
        ModelError: the model, whose window counts, cannot be found.
    """
    audio, text = find_audio_column(config, table), find_text_column(config, table)
    column, texts = table.embedded.get(audio), table.columns[text]
    if column is not None and config.segment_columns not in (None, TrainConfig.segment_columns):
        raise DataError(
            f"segment_columns={config.segment_columns!r}: the audio lies inside {table.origin}, and only files are "
            "cut; write it to files, or set segment_columns=null if rows are cut already"
        )
    spans = _find_spans(config, table, audio) if column is None else None
    origins = row_origins(config, table, origin)
    before = f"{origin.source}/" if origin.source else ""
    files: dict[str, tuple[str, str]] = {}  # of which rows may name each many times

    def clip(row: int) -> Clip:
        if column is not None:
            path, name = "", column.names[row]
        else:
            cell = audio_path(table.columns[audio][row])
            if cell not in files:
                files[cell] = table.find(cell), _below(cell, table.bases)
            path, name = files[cell]
        own, span = origins(row), spans[row] if spans and spans[row] != WHOLE else None
        name, said = f"{before}{name or f'{split}[{row}]'}", transcript(config, texts[row], own)
        return Clip(name, said, path, column, row, table.columns, own, span, config.audio_channel)

    if spans is None:
        return list(map(clip, rows)), []
    clips = list(_joined_clips(config, table, set(rows), audio, spans, clip, window))
    return clips, _time_notes(table, len(rows), clips)


def _below(path: str, bases: Sequence[Path]) -> str:
    """A path in full relative to the table that it stands in, as if the data set had been meant to move."""
    if path.startswith("/"):
        for base in bases:
            if path.startswith(beginning := f"{base.absolute()}/"):
                return path.removeprefix(beginning)
    return path


def _joined_clips(
    config: TrainConfig,
    table: Table,
    wanted: set[int],
    audio: str,
    spans: list[Span],
    clip: Callable[[int], Clip],
    window: float | None,
) -> Iterator[Clip]:
    most = table.pack_seconds if config.pack_seconds is None else config.pack_seconds
    if most:
        window = window_seconds(load_processor(config).feature_extractor) if window is None else window
        most = min(most, window)
    chosen = [name for name in (config.language_column, config.task_column) if name in table.columns]
    columns = [named(names, table.columns) for names in (SPEAKER_NAMES, LANGUAGE_NAMES)]
    same = [table.columns[name] for name in (*chosen, *columns) if name is not None]
    files: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[audio]):
        files.setdefault(audio_path(value), []).append(row)
    for own in files.values():
        if CUE_COLUMN in table.columns:
            _mark_overlapping(table, own, spans)
        waiting: Clip | None = None
        last: list[str] | None = None
        for row in sorted(own, key=lambda row: (spans[row].start, row)):
            alike = [cell_text(values[row]) for values in same]
            new = clip(row) if row in wanted else None
            joined = _joined(config, waiting, new, most) if alike == last else None
            if waiting is not None and joined is None:
                yield waiting
            waiting, last = joined or new, alike
        if waiting is not None:
            yield waiting


def _joined(config: TrainConfig, one: Clip | None, other: Clip | None, most: float) -> Clip | None:
    """Both as one, where they are near each other and no longer than wanted together."""
    if one is None or other is None or one.span is None or other.span is None:
        return None
    first, second = one.span, other.span
    if first.end is None or second.end is None or first.problem or second.problem:
        return None
    if not (has_words(one.text) and has_words(other.text)):
        return None
    end = max(first.end, second.end)
    if not -_OVERLAP <= second.start - first.end <= _LONGEST_PAUSE or end - first.start > most:
        return None
    text = f"{one.text}{word_gap(one.origin.config(config))}{other.text}"
    return dataclasses.replace(one, text=text, span=Span(first.start, end))


def _time_columns(config: TrainConfig, table: Table) -> list[str] | None:
    """The columns with start and end, or offset and duration, of rows that are parts of recordings; None without."""
    wanted = [part.strip() for part in str(config.segment_columns).split(",")]
    if (pair := _both(wanted, table.columns)) is not None:
        return pair
    if config.segment_columns != TrainConfig.segment_columns:
        missing = next(name for name in wanted if named([name.lower()], table.columns) is None)
        raise DataError(
            f"segment_columns={config.segment_columns!r}: no column {missing!r} in {table.origin}; it has "
            f"{', '.join(table.columns)}"
        )
    if (pair := _both(_LENGTH_COLUMNS, table.columns)) is not None:
        return pair
    for names in _OTHER_COLUMNS:
        if (pair := _both(names, table.columns)) is not None:
            raise DataError(
                f"{table.origin}: columns {' and '.join(pair)} look like times of parts of recordings; set "
                f"segment_columns={','.join(pair)} if they are (seconds, or milliseconds where the names end with "
                f"{_MILLISECONDS}), or segment_columns=null if rows are whole files"
            )
    return None


def _both(names: Sequence[str], columns: Iterable[str]) -> list[str] | None:
    pair = [name for wanted in names if (name := named([wanted.lower()], columns)) is not None]
    return pair if len(pair) == len(names) else None


def _find_spans(config: TrainConfig, table: Table, audio: str) -> list[Span] | None:
    """Where in its recording each row is; None where rows are whole files."""
    if config.segment_columns is None:
        return None
    cells = [cell if isinstance(cell, Mapping) else {} for cell in table.columns[audio]]
    names = ["start_time", "end_time"]
    if any(_both(names, cell) for cell in cells):
        times = [[cell.get(name) for cell in cells] for name in names]
    elif (columns := _time_columns(config, table)) is not None:
        names, times = columns, [table.columns[name] for name in columns]
    else:
        return None
    spans = []
    for row, pair in enumerate(zip(*times, strict=True)):
        first, until = (_seconds(table, row, name, value) for name, value in zip(names, pair, strict=True))
        begin = first or 0.0
        if until is not None and names[1].lower().startswith(_LENGTHS):
            until += begin
        problem = ""
        if until is not None and until <= begin:
            problem = f"{table.location(row)}: ends at {until:.2f} s, and begins at {begin:.2f} s"
        spans.append(Span(begin, until, problem))
    return spans


def _seconds(table: Table, row: int, column: str, value: Any) -> float | None:
    text = cell_text(value)
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise DataError(
            f"{table.location(row)}: {column}={shown(text)!r}: must be seconds from the beginning of the recording, "
            "such as 12.5; if the files are cut already, set segment_columns=null"
        )
    return number / 1000 if column.lower().endswith(_MILLISECONDS) else number


def _time_notes(table: Table, rows: int, clips: Sequence[Clip]) -> list[str]:
    """What a user should know of the times of a table's clips, which were made of so many rows, before any is heard."""
    parts = [(clip.path, clip.span.start, clip.row, clip.span) for clip in clips if clip.span is not None]
    notes = [f"{span.problem}; it is left out" for *_, span in parts if span.problem]
    if len(notes) > _MOST_SHOWN:
        notes[_MOST_SHOWN:] = [f"{len(notes) - _MOST_SHOWN:,} more are left out for their times"]
    cues = CUE_COLUMN in table.columns
    if rows > len(clips):
        kind = "cues" if cues else "rows"
        notes.append(f"{rows:,} {kind} are {len(clips):,} clips: short ones that are near are joined")
    if cues or not parts:
        return notes
    ordered = sorted((part for part in parts if not part[3].problem), key=lambda part: part[:3])
    overlapping = [
        f"{table.location(row)}: begins at {start:.2f} s, and row {first + 1} ends at {span.end or math.inf:.2f} s"
        for (file, _, first, span), (other, start, row, _) in itertools.pairwise(ordered)
        if file == other and (span.end or math.inf) - start > _OVERLAP
    ]
    if overlapping:
        notes.append(
            f"rows that overlap others of the same recording are kept: {len(overlapping):,}, such as {overlapping[0]}"
        )
    return notes


def _mark_overlapping(table: Table, rows: Sequence[int], spans: list[Span]) -> None:
    """Cues of one recording whose times cannot be: rows of other tables may overlap, as people do."""
    wrong: dict[int, str] = {}
    for one, other in itertools.pairwise(rows):
        first, second = spans[one], spans[other]
        if first.problem or second.problem:
            continue
        if second.start < first.start:
            wrong[other] = f"begins at {second.start:.2f} s, the cue before it at {first.start:.2f} s"
        elif first.end is not None and first.end - second.start > _OVERLAP:
            wrong[one] = f"ends at {first.end:.2f} s, the next cue begins at {second.start:.2f} s"
            wrong[other] = f"begins at {second.start:.2f} s, the cue before it ends at {first.end:.2f} s"
    for row, what in wrong.items():
        spans[row] = dataclasses.replace(spans[row], problem=f"{table.location(row)}: {what}")
