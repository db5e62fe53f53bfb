"""Parts of long recordings as clips: rows with a start and an end, joined where they are short and near each other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainer.config import TrainConfig
from trainer.data.columns import (
    LANGUAGE_NAMES,
    SPEAKER_NAMES,
    audio_path,
    cell_text,
    named,
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
_MOST_TOLD = 5
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


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Where in its recording a clip is."""

    start: float
    """Seconds."""
    end: float | None
    """`None`: to the end."""
    problem: str = ""
    """What is wrong with these times; empty where nothing is."""

    def told(self) -> str:
        """`12.50-31.20`."""
        return f"{self.start:.2f}-" + ("" if self.end is None else f"{self.end:.2f}")


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Rows of a table that are one clip."""

    row: int
    """The first of them."""
    text: str
    span: Span | None
    """None for a whole file."""


def find_segments(
    config: TrainConfig,
    table: Table,
    rows: Iterable[int],
    audio: str,
    text: str,
    *,
    window: float | None = None,
) -> Iterator[Segment]:
    """The clips of some rows, those of a recording one after the other where rows have times.

    Args:
        config: which columns have times, and how much is joined.
        table: has the rows.
        rows: their numbers.
        audio: the column with paths.
        text: the column with transcripts.
        window: of the model in seconds, which nothing is joined beyond; by default that of `config.model`.

    Raises:
        DataError: `segment_columns` names a column that is not there, columns may have times and nobody said so, or a
            time is no number.
        ModelError: the model, whose window counts, cannot be found.
    """
    texts = table.columns[text]
    if audio in table.embedded and config.segment_columns not in (None, TrainConfig.segment_columns):
        raise DataError(
            f"segment_columns={config.segment_columns!r}: the audio lies inside {table.origin}, and only files are "
            "cut; write it to files, or set segment_columns=null if rows are cut already"
        )
    spans = None if audio in table.embedded else _find_spans(config, table, audio)
    if spans is None:
        yield from (Segment(row, transcript(config, texts[row]), None) for row in rows)
        return
    wanted = set(rows)
    most = table.pack_seconds if config.pack_seconds is None else config.pack_seconds
    if most:
        window = window_seconds(load_processor(config).feature_extractor) if window is None else window
        most = min(most, window)
    told = [name for name in (config.language_column, config.task_column) if name in table.columns]
    found = [named(names, table.columns) for names in (SPEAKER_NAMES, LANGUAGE_NAMES)]
    same = [table.columns[name] for name in (*told, *found) if name is not None]
    files: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[audio]):
        files.setdefault(audio_path(value), []).append(row)
    for own in files.values():
        if CUE_COLUMN in table.columns:
            spans.update(_overlapping(table, own, spans))
        waiting: Segment | None = None
        last: list[str] | None = None
        for row in sorted(own, key=lambda row: (spans[row].start, row)):
            alike = [cell_text(values[row]) for values in same]
            new = (
                Segment(row, transcript(config, texts[row]), _whole_or(spans[row])) if row in wanted else None
            )
            joined = _joined(waiting, new, most, word_gap(config)) if alike == last else None
            if waiting is not None and joined is None:
                yield waiting
            waiting, last = joined or new, alike
        if waiting is not None:
            yield waiting


def _whole_or(span: Span) -> Span | None:
    """None where a row has no times: its file is the clip."""
    return span if span.start or span.end is not None or span.problem else None


def _joined(one: Segment | None, other: Segment | None, most: float, gap: str) -> Segment | None:
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
    return Segment(one.row, f"{one.text}{gap}{other.text}", Span(first.start, end))


def _time_columns(config: TrainConfig, table: Table) -> tuple[str, str] | None:
    """The columns with start and end, or offset and duration, of rows that are parts of recordings; None without.

    Raises:
        DataError: `segment_columns` names one that is not there, or others look like times.
    """
    columns, origin = table.columns, table.origin
    names = [part.strip() for part in str(config.segment_columns).split(",")]
    if (found := _both(names, columns)) is not None:
        return found
    if config.segment_columns != TrainConfig.segment_columns:
        missing = next(name for name in names if named([name.lower()], columns) is None)
        raise DataError(
            f"segment_columns={config.segment_columns!r}: no column {missing!r} in {origin}; it has "
            f"{', '.join(columns)}"
        )
    if (found := _both(_LENGTH_COLUMNS, columns)) is not None:
        return found
    other = next(filter(None, (_both(names, columns) for names in _OTHER_COLUMNS)), None)
    if other is not None:
        raise DataError(
            f"{origin}: columns {' and '.join(other)} look like times of parts of recordings; set "
            f"segment_columns={','.join(other)} if they are (seconds, or milliseconds where the names end with "
            f"{_MILLISECONDS}), or segment_columns=null if rows are whole files"
        )
    return None


def _both(names: Sequence[str], columns: Iterable[str]) -> tuple[str, str] | None:
    found = [named([name.lower()], columns) for name in names]
    return (found[0], found[1]) if found[0] is not None and found[1] is not None else None


def _find_spans(config: TrainConfig, table: Table, audio: str) -> dict[int, Span] | None:
    """Where in its recording each row is; None where rows are whole files."""
    if config.segment_columns is None:
        return None
    cells = table.columns[audio]
    if any(isinstance(cell, Mapping) and _both(("start_time", "end_time"), cell) for cell in cells):
        names = ("start_time", "end_time")
        pairs = [[cell.get(name) if isinstance(cell, Mapping) else None for name in names] for cell in cells]
        return _spans(table, names, pairs)
    found = _time_columns(config, table)
    if found is None:
        return None
    return _spans(table, found, list(zip(*(table.columns[name] for name in found), strict=True)))


def _spans(table: Table, names: tuple[str, str], values: Sequence[Sequence[Any]]) -> dict[int, Span]:
    spans = {}
    lengths = names[1].lower().startswith(_LENGTHS)
    for row, pair in enumerate(values):
        first, until = (_seconds(table, row, name, value) for name, value in zip(names, pair, strict=True))
        begin = first or 0.0
        until = until + begin if lengths and until is not None else until
        problem = ""
        if until is not None and until <= begin:
            problem = f"{table.place(row)}: ends at {until:.2f} s, and begins at {begin:.2f} s"
        spans[row] = Span(begin, until, problem)
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
            f"{table.place(row)}: {column}={shown(text)!r}: must be seconds from the beginning of the recording, such "
            "as 12.5; if the files are cut already, set segment_columns=null"
        )
    return number / 1000 if column.lower().endswith(_MILLISECONDS) else number


def told_times(table: Table, rows: int, clips: Sequence[tuple[str, int, Span | None]]) -> list[str]:
    """What a user should know of the times of a table's clips before any is heard.

    Args:
        table: whose clips they are.
        rows: of which they were made.
        clips: the file of each, the first of its rows, and where it is.
    """
    parts = [(file, span.start, row, span) for file, row, span in clips if span is not None]
    notes = [f"{span.problem}; it is left out" for *_, span in parts if span.problem]
    if len(notes) > _MOST_TOLD:
        notes[_MOST_TOLD:] = [f"{len(notes) - _MOST_TOLD:,} more are left out for their times"]
    cues = CUE_COLUMN in table.columns
    if rows > len(clips):
        kind = "cues" if cues else "rows"
        notes.append(f"{rows:,} {kind} are {len(clips):,} clips: short ones that are near are joined")
    if cues or not parts:
        return notes
    ordered = sorted((part for part in parts if not part[3].problem), key=lambda part: part[:3])
    overlapping = [
        f"{table.place(row)}: begins at {start:.2f} s, and row {first + 1} ends at {span.end or math.inf:.2f} s"
        for (file, _, first, span), (other, start, row, _) in itertools.pairwise(ordered)
        if file == other and (span.end or math.inf) - start > _OVERLAP
    ]
    if overlapping:
        notes.append(
            f"rows that overlap others of the same recording are kept: {len(overlapping):,}, such as {overlapping[0]}"
        )
    return notes


def _overlapping(table: Table, rows: Sequence[int], spans: dict[int, Span]) -> dict[int, Span]:
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
    return {
        row: dataclasses.replace(spans[row], problem=f"{table.place(row)}: {what}")
        for row, what in wrong.items()
    }
