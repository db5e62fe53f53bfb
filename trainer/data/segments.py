"""Parts of long recordings as clips: rows with a start and an end, joined where they are short and near each other."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainer.config import TrainConfig
from trainer.data.columns import LANGUAGE_NAMES, SPEAKER_NAMES, audio_path, cell_text, named
from trainer.data.tables import CUE_COLUMN, Table
from trainer.data.text import has_words
from trainer.errors import DataError
from trainer.model.processor import load_processor, window_seconds

_LONGEST_PAUSE = 1.0
"""Seconds between two segments that are joined: longer ones have sounds that nobody wrote down."""
_OVERLAP = 0.1
"""Seconds by which cues may overlap: less is rounding."""
_MOST_TOLD = 5


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
        DataError: `segment_columns` names a column that is not there, or a time is no number.
        ModelError: the model, whose window counts, cannot be found.
    """
    texts = table.columns[text]
    columns = _time_columns(config, table)
    if columns is None or audio in table.embedded:
        yield from (Segment(row, cell_text(texts[row]), None) for row in rows)
        return
    wanted = set(rows)
    spans = _spans(table, *columns)
    joins = table.pack_seconds if config.pack_seconds is None else config.pack_seconds
    if joins:
        joins = min(joins, _window(config) if window is None else window)
    told = [name for name in (config.language_column, config.task_column) if name in table.columns]
    found = [named(names, table.columns) for names in (SPEAKER_NAMES, LANGUAGE_NAMES)]
    same = [name for name in (*told, *found) if name is not None]
    files: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[audio]):
        files.setdefault(audio_path(value), []).append(row)
    for own in files.values():
        ordered = sorted(own, key=lambda row: (spans[row].start, row))
        spans.update(_overlapping(table, own, spans))
        waiting: Segment | None = None
        last = 0
        for row in ordered:
            if row not in wanted:
                if waiting is not None:
                    yield waiting
                waiting = None
                continue
            new = Segment(row, cell_text(texts[row]), _whole_or(spans[row]))
            joined = _joined(waiting, new, joins) if waiting is not None else None
            if joined is not None and all(
                cell_text(table.columns[name][last]) == cell_text(table.columns[name][row]) for name in same
            ):
                waiting = joined
            else:
                if waiting is not None:
                    yield waiting
                waiting = new
            last = row
        if waiting is not None:
            yield waiting


def _window(config: TrainConfig) -> float:
    return window_seconds(load_processor(config).feature_extractor)


def _whole_or(span: Span) -> Span | None:
    """None where a row has no times: its file is the clip."""
    return span if span.start or span.end is not None or span.problem else None


def _joined(one: Segment, other: Segment, most: float) -> Segment | None:
    """Both as one, where they are near each other and no longer than wanted together."""
    first, second = one.span, other.span
    if first is None or second is None or first.end is None or second.end is None:
        return None
    if first.problem or second.problem or not (has_words(one.text) and has_words(other.text)):
        return None
    end = max(first.end, second.end)
    if not -_OVERLAP <= second.start - first.end <= _LONGEST_PAUSE or end - first.start > most:
        return None
    return Segment(one.row, f"{one.text} {other.text}", Span(first.start, end))


def _time_columns(config: TrainConfig, table: Table) -> tuple[str, str] | None:
    if config.segment_columns is None:
        return None
    names = [part.strip() for part in config.segment_columns.split(",")]
    found = [named([name.lower()], table.columns) for name in names]
    if found[0] is not None and found[1] is not None:
        return found[0], found[1]
    asked = config.segment_columns != TrainConfig.segment_columns
    if asked:
        missing = names[found.index(None)]
        raise DataError(
            f"segment_columns={config.segment_columns!r}: no column {missing!r} in {table.origin}; it has "
            f"{', '.join(table.columns)}"
        )
    return None


def _spans(table: Table, start: str, end: str) -> dict[int, Span]:
    spans = {}
    for row, (first, last) in enumerate(zip(table.columns[start], table.columns[end], strict=True)):
        begin = _seconds(table, row, start, first) or 0.0
        until = _seconds(table, row, end, last)
        problem = ""
        if until is not None and until <= begin:
            problem = f"{place(table, row)}: ends at {until:.2f} s, and begins at {begin:.2f} s"
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
            f"{place(table, row)}: {column}={text!r}: must be seconds from the beginning of the recording, such as "
            "12.5; if the files are cut already, set segment_columns=null"
        )
    return number


def place(table: Table, row: int) -> str:
    """Where a row stands: `talk.srt, line 12`, or `clips.csv, row 7`, counted from 1 without the header."""
    if CUE_COLUMN in table.columns:
        return str(table.columns[CUE_COLUMN][row])
    return f"{table.origin}, row {row + 1}"


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
    overlapping, until, last = list[str](), (0.0, 0), ""
    for file, start, row, span in sorted(
        (part for part in parts if not part[3].problem), key=lambda part: part[:3]
    ):
        if file != last:
            until, last = (0.0, 0), file
        if until[0] - start > _OVERLAP:
            overlapping.append(
                f"{place(table, row)}: begins at {start:.2f} s, and row {until[1] + 1} ends at {until[0]:.2f} s"
            )
        until = max(until, (math.inf if span.end is None else span.end, row))
    if overlapping:
        many = len(overlapping)
        notes.append(
            f"{many:,} row{'s' * (many > 1)} overlap{'s' * (many == 1)} others of the same recording and "
            f"{'are' if many > 1 else 'is'} kept, such as {overlapping[0]}"
        )
    return notes


def _overlapping(table: Table, rows: Sequence[int], spans: dict[int, Span]) -> dict[int, Span]:
    """Cues of one recording whose times cannot be: rows of other tables may overlap, as people do."""
    if CUE_COLUMN not in table.columns:
        return {}
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
        row: dataclasses.replace(spans[row], problem=f"{place(table, row)}: {what}")
        for row, what in wrong.items()
    }
