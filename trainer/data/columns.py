"""Which column is the audio, which the text, and which rows are wanted."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from trainer.config import TrainConfig
from trainer.data.tables.table import Table
from trainer.data.text import TOKEN, word_gap
from trainer.errors import ConfigError, DataError
from trainer.languages import language_code

#: Some rows of a table.
Part: TypeAlias = "tuple[Table, Sequence[int]]"


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """What clips have in common beside their table; without values of its own, what the settings of a training say."""

    source: str = ""
    """Name of the source in a data file; empty for data without sources."""
    language: str | None = None
    """Whisper's code of what is spoken."""
    task: str | None = None
    weight: float = 1.0
    """How often each of the source's clips comes in an epoch, on average, unless `source_weights` says otherwise."""

    def config(self, config: TrainConfig) -> TrainConfig:
        """Settings with the language and the task of these clips."""
        own = {"language": self.language, "task": self.task}
        own = {name: value for name, value in own.items() if value not in (None, getattr(config, name))}
        return config.replace(**own) if own else config


_TASKS = ("transcribe", "translate")
_QUOTED = 80
"""Characters of a cell that a message may quote."""
PLAIN = Origin()
"""Of data without sources."""
SOURCE_COLUMN = "source"
"""What the name of a clip's source is called beside the columns of its table."""

#: Usual names, in the order in which they are looked for.
AUDIO_NAMES = (
    *("audio", "path", "file_name", "file", "filename", "audio_path", "audio_filepath", "audio_file"),
    *("audio_filename", "audiofile", "wav", "wav_path", "wav_filename", "file_path", "filepath", "clip"),
    *("speech", "sound"),
)
TEXT_NAMES = (
    *("text", "sentence", "transcription", "transcript", "raw_transcription", "normalized_text", "label"),
    *("transcriptions", "transcripts", "utterance", "wrd", "txt", "tgt_text"),
)
TRANSLATION_NAMES = ("translation", "tgt_text", "target_text", "translations", "translated_text")
"""Looked for first where the model translates."""
LANGUAGE_NAMES = ("language", "locale", "lang")
#: Usual names of a column with speakers, in the order in which they are looked for.
SPEAKER_NAMES = (
    *("speaker", "speaker_id", "client_id", "spk", "spk_id", "speaker_name", "speakerid", "user_id"),
    *("reader", "reader_id", "talker", "voice"),
)


def find_audio_column(config: TrainConfig, table: Table) -> str:
    """The column with audio or its path: the one told, one of the usual names, or the only one with audio.

    Raises:
        DataError: there is none; the message lists the columns.
    """
    if config.audio_column is not None:
        return _named_column("audio_column", config.audio_column, table)
    # Hub data sets have both `audio`, with the content, and `path`, which names files of the author's disk.
    name = named(AUDIO_NAMES, table.embedded) or named(AUDIO_NAMES, table.columns)
    if name is None and len(table.embedded) == 1:
        name = next(iter(table.embedded))
    return name or _none_found("audio", AUDIO_NAMES, table)


def find_text_column(config: TrainConfig, table: Table) -> str:
    """The column with transcripts: the one told, or one of the usual names that holds text.

    Raises:
        DataError: there is none, or the one told holds no text; the message lists the columns.
    """
    if config.text_column is not None:
        name = _named_column("text_column", config.text_column, table)
        if name in table.embedded or not _holds_text(table.columns[name]):
            raise DataError(
                f"text_column={name!r}: holds no text; {table.origin} has {_names(table.column_names)}"
            )
        return name
    # `label` is text in some data sets and a number of a class in others.
    texts = [name for name, values in table.columns.items() if _holds_text(values)]
    column = named(_text_names(config), texts)
    if column is None and (numbers := named(_text_names(config), table.columns)) is not None:
        raise DataError(
            f"no text column in {table.origin}: {numbers} holds numbers, not text; make "
            "them text, or set text_column to another"
        )
    return column or _none_found("text", TEXT_NAMES, table)


def _text_names(config: TrainConfig) -> tuple[str, ...]:
    return (*TRANSLATION_NAMES, *TEXT_NAMES) if config.task == "translate" else TEXT_NAMES


def text_column_note(config: TrainConfig, table: Table) -> list[str]:
    """Which column is the text, said only where another choice was possible."""
    taken = find_text_column(config, table)
    others = [name for name in table.columns if name != taken and name.lower() in _text_names(config)]
    if config.text_column is not None or not others:
        return []
    return [f"the text is taken from column {taken} (text_column may name another: {', '.join(others)})"]


def transcript(config: TrainConfig, value: Any, origin: Origin = PLAIN) -> str:
    """The text in a cell, without Whisper's own tokens where these are to be dropped."""
    text = cell_text(value)
    if not (config.strip_tokens and "<|" in text):
        return text
    return " ".join(TOKEN.sub(word_gap(origin.config(config)), text).split())


def shown(text: str) -> str:
    """A cell as messages quote it: at most 80 characters, of a path the last ones."""
    if len(text) <= _QUOTED:
        return text
    return f"...{text[3 - _QUOTED :]}" if "/" in text else f"{text[: _QUOTED - 3]}..."


def _names(columns: Iterable[str]) -> str:
    """Columns in a message; the first line of a file without a header may hold anything."""
    return ", ".join(map(shown, columns))


def _named_column(field: str, name: str, table: Table) -> str:
    if name not in table.column_names:
        raise DataError(
            f"{field}={name!r}: no such column in {table.origin}; it has {_names(table.column_names)}"
        )
    return name


def named(wanted: Sequence[str], columns: Iterable[str]) -> str | None:
    """The first of some names that is a column, in whatever case."""
    by_lower = {name.lower(): name for name in columns}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def _none_found(what: str, wanted: Sequence[str], table: Table) -> str:
    raise DataError(
        f"no {what} column in {table.origin}, which has {_names(table.column_names)}; "
        f"set {what}_column, or name it {', '.join(wanted[:5])}"
    )


def _holds_text(values: list[Any]) -> bool:
    """Whether the values are text; numbers among texts are fine, for someone may have said 5."""
    return not values or any(isinstance(value, str) for value in values)


def parse_row_filter(text: str | None) -> dict[str, list[str]]:
    """Wanted values by column, of `a=x,b=y`; a column named twice may have either value.

    Raises:
        ConfigError: a part is not `column=value`.
    """
    wanted: dict[str, list[str]] = {}
    for part in (text or "").split(",") if text else []:
        column, equals, value = part.partition("=")
        if not equals or not column.strip():
            raise ConfigError(
                f"row_filter={text!r}: {part.strip()!r} is not column=value; write it as language=en"
            )
        wanted.setdefault(column.strip(), []).append(value.strip())
    return wanted


def select_parts(
    group: Sequence[Part], wanted: Mapping[str, list[str]], *, where_known: bool = False
) -> list[Part]:
    """The rows with the wanted values; `where_known`: of tables that have the column, and all of others.

    Raises:
        DataError: a column is unknown; the message lists the columns.
    """
    chosen: list[Part] = []
    for table, rows in group:
        unknown = next((column for column in wanted if column not in table.columns), None)
        if unknown is not None and not where_known:
            raise DataError(
                f"row_filter: no column {unknown!r} in {table.origin}; it has {_names(table.columns)}"
            )
        pairs = [(table.columns[name], values) for name, values in wanted.items() if name in table.columns]
        chosen.append(
            (table, [row for row in rows if all(cell_text(cells[row]) in values for cells, values in pairs)])
        )
    return chosen


def cell_text(value: Any) -> str:
    """A cell as a filter or a split name is compared with it: `1.0` and `true` as they are typed."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def audio_path(value: Any) -> str:
    """The path in a cell of an audio column: plain, or in an object such as `{"path": "a.wav"}`."""
    return cell_text(value.get("path") if isinstance(value, Mapping) else value)


def values_of(parts: Iterable[Part], column: str) -> list[str]:
    """The different values of a column in some rows, the most frequent first."""
    counts: Counter[str] = Counter()
    for table, rows in parts:
        if column in table.columns:
            values = table.columns[column]
            counts.update(cell_text(values[row]) for row in rows)
    return sorted(counts, key=lambda value: (-counts[value], value))


def some(values: Sequence[str]) -> str:
    """The first of the values of a column, for messages."""
    return _names(values[:8]) + (" ..." if len(values) > 8 else "")


def language_filter(
    config: TrainConfig, parts: Sequence[Part], wanted: Mapping[str, list[str]]
) -> tuple[dict[str, list[str]], str | None]:
    """What to filter by where the data has several languages and the user named none of them, and perhaps a note.

    Raises:
        DataError: the data has several languages, and not the one that is trained.
    """
    code = config.language or "en"
    column = next((name for table, _ in parts if (name := named(LANGUAGE_NAMES, table.columns))), None)
    # With a language column all of them are learned.
    if config.language_column is not None or column is None or column in wanted:
        return {}, None
    values = [value for value in values_of(parts, column) if value]
    mine = [value for value in values if language_code(value) == code]
    if len(mine) == len(values):
        return {}, None
    if len(values) == 1:
        # Other ways to write a language (`eng`) are many; a warning must be right.
        known = language_code(values[0]) is not None
        only = f"WARNING: column {column} has only language {shown(values[0])}, trained as {code}"
        return {}, f"{only} (set language to change that)" if known else None
    if not mine:
        raise DataError(
            f"language={code!r}: column {column} has {some(values)} and nothing in this language; give one of them "
            f"with --language, or choose rows with row_filter={column}={shown(values[0])}"
        )
    return {column: mine}, f"of several languages, those with {column}={'/'.join(mine)}"


def row_origins(config: TrainConfig, table: Table, origin: Origin) -> Callable[[int], Origin]:
    """What the clip of each row has in common with others, where a column says its language or task.

    Raises:
        DataError: there is no such column, or later a row says none that Whisper knows.
    """
    fields = {"language": config.language_column, "task": config.task_column}
    asked = {field: name for field, name in fields.items() if name is not None}
    for field, name in asked.items():
        _named_column(f"{field}_column", name, table)
    shared: dict[tuple[str, ...], Origin] = {}

    def of_row(row: int) -> Origin:
        cells = tuple(cell_text(table.columns[name][row]) for name in asked.values())
        if cells not in shared:
            own: dict[str, Any] = {
                field: _own_value(field, cell, f"{table.location(row)}: column {name}")
                for (field, name), cell in zip(asked.items(), cells, strict=True)
            }
            shared[cells] = dataclasses.replace(origin, **own)
        return shared[cells]

    return of_row if asked else lambda row: origin


def _own_value(field: str, cell: str, where: str) -> str:
    if field == "language":
        value, known = language_code(cell), "no language that Whisper knows"
    else:
        value, known = named([cell.lower()], _TASKS), f"none of {', '.join(_TASKS)}"
    if not cell or value is None:
        raise DataError(
            f"{where} has {shown(cell)!r}, {known}; correct it, or leave the row out with row_filter"
        )
    return value
