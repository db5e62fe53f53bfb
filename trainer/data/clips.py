"""Loading a data set: any source as clips with text, in train, validation and test; and clips that cannot be used."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.audio import AudioSource
from trainer.data.columns import (
    PLAIN,
    SOURCE_COLUMN,
    Origin,
    Part,
    audio_path,
    cell_text,
    find_audio_column,
    find_text_column,
    language_filter,
    named,
    other_text_columns,
    parse_row_filter,
    row_origins,
    select_rows,
    values_of,
)
from trainer.data.embedded import EmbeddedAudio, find_file
from trainer.data.grouping import text_key
from trainer.data.kept_splits import HELD_OUT, read_kept_splits
from trainer.data.segments import Span, find_segments, told_times
from trainer.data.sources import ONLY_LANGUAGE, SPLIT_ALIASES, read_source
from trainer.data.splits import complete_by_source, cut_splits, find_splits, leave_out_shared_files, told_of
from trainer.data.tables import Table
from trainer.data.text import has_words
from trainer.errors import ConfigError, DataError
from trainer.mix import Source, is_mix, read_mix

if TYPE_CHECKING:
    from trainer.data.streaming.stream import TrainStream


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
    """Row in that column, and in the table."""
    columns: Mapping[str, list[Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """All plain columns of the table that the clip is a row of: shared, and no part of what the clip is."""
    origin: Origin = PLAIN
    """Shared as well."""
    span: Span | None = None
    """Where in the file it is; None where it is all of it."""
    channel: int | None = None
    """The one that is decoded, from 1; None is the mean of all."""

    @property
    def recording(self) -> str:
        """The file as the data set names it, of which the clip may be a part."""
        return self.name if self.span is None else self.name.rpartition(" [")[0]

    def cell(self, column: str) -> str:
        """What the clip's row has in a column of the data (speaker, accent ...); empty where it has none.

        The name of its source is in the column `source`, where the data has sources.
        """
        if column == SOURCE_COLUMN and self.origin.source:
            return self.origin.source
        values = self.columns.get(column)
        return "" if values is None else cell_text(values[self.row])

    def source(self) -> AudioSource:
        """Path or content of the audio file and what of it is the clip, as `read_audio` takes it."""
        file = self.path if self.embedded is None else self.embedded.read(self.row)
        span = self.span or _WHOLE
        return AudioSource(file, self.channel, span.start, span.end, span.problem)

    def identity(self, seen: dict[str, str]) -> str:
        """What changes when the audio does: which files hold it, or are named by its row, and their last change.

        `seen` remembers files that hold many clips; give the same one for all clips.
        """
        part = f"[{self.span.start}-{self.span.end}]{self.span.problem}" if self.span else ""
        part += f"channel {self.channel}" if self.channel else ""
        if self.embedded is None:
            return _file_identity(self.path, seen) + part
        files = "|".join(_file_identity(path, seen) for path in self.embedded.origin)
        # A row with content may name a file too. It counts where it is there: to find out whether there is content
        # would be to read all of it.
        named = self.embedded.file(self.row)
        beside = f"|{_file_identity(named, seen)}" if named else ""
        return f"{files}[{self.row}]{self.embedded.column}/{self.name}{beside}{part}"


_WHOLE = Span(0.0, None)


def _file_identity(path: str, seen: dict[str, str]) -> str:
    """A file by its path and by what it is itself, behind all links.

    Size and time of modification can be those of the file that it replaced (`cp -p`, `rsync -t`). Nobody can set the
    time of change, and the inode tells files apart that were written at the same time.
    """
    if not path:  # which pathlib would take for the working directory
        return ""
    if path not in seen:
        try:
            status = Path(path).stat()
            times = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
            seen[path] = f"{path}:{status.st_size}:{times}:{status.st_ino}"
        except (OSError, ValueError):  # ValueError: a name that no file can have
            seen[path] = f"{path}:missing"
    return seen[path]


@dataclasses.dataclass(frozen=True)
class ClipTable:
    """A data set: clips by role (`train` and `validation` always, `test` where there is one), and notes.

    The texts of all clips have words; those that have none are not in the splits, whoever made these.
    """

    splits: Mapping[str, Sequence[Clip]]
    notes: list[str]
    """Sentences for the user: what was chosen, filtered or made."""
    drops: list[Drop] = dataclasses.field(default_factory=list)
    """Clips left out: their texts have no words, or they belong to another split as well."""
    without_text: Mapping[str, Sequence[Clip]] = dataclasses.field(default_factory=dict)
    """Those clips by role: what a model writes for them, nobody said."""
    whole: Mapping[str, Sequence[Clip]] = dataclasses.field(default_factory=dict)
    """The splits before `max_train_clips` and `max_eval_clips` cut them."""
    stream: TrainStream | None = None
    """Takes the place of `train` where that is streamed."""

    @property
    def total(self) -> int:
        """Clips in all splits."""
        return sum(len(clips) for clips in self.splits.values())

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch of the training clips by their own weights, on average; of a stream about as many."""
        return (
            self.stream.epoch_samples
            if self.stream
            else sum(clip.origin.weight for clip in self.splits["train"])
        )


def load_clips(config: TrainConfig, *, window: float | None = None) -> ClipTable:
    """The clips of `config.data`, with filters, splits and limits applied. No audio is read.

    Args:
        config: names data, columns, filters and splits.
        window: seconds beyond which parts of recordings are not joined; by default the window of `config.model`.

    Raises:
        DataError: the data, a column, a split or the language is not there, or a split is empty; of a data file's
            sources a line each.
        ModelError: parts of recordings are to be joined, and the model cannot be found.
        ConfigError: `row_filter` is malformed, one split has two roles, or there are no sources to weight.
    """
    if config.weights and not is_mix(config.data):
        raise ConfigError(
            f"source_weights={config.source_weights!r}: data={config.data!r} has no sources; leave it out, or "
            "give a data file that names sources"
        )
    given = _given_sources(config, window) if is_mix(config.data) else [_given(config, PLAIN, window)]
    usable, silent = joined([one.usable for one in given]), joined([one.silent for one in given])
    notes = [note for one in given for note in one.notes]
    drops: list[Drop] = []
    if config.streaming:  # nothing can be made of a stream, and nothing is known of its clips
        complete, made_notes = usable, list[str]()
    elif config.splits is None:
        usable, drops = _without_shared_files(config, usable)
        complete, made_notes = complete_by_source(config, usable)
    else:
        complete, left_out, made_notes = read_kept_splits(config.splits).assign(config, usable)
        drops = [Drop(role, clip.name, HELD_OUT, why) for role, clip, why in left_out]
        check_usable(config, drops, left={role: len(clips) for role, clips in complete.items()})
    if "test" in silent and "test" not in complete:
        silent["validation"] = silent.pop("test")
    if config.train_on != "train":
        complete = _trained_on_both(config, complete, usable)
        silent = _trained_on_both(config, {"test": [], **silent}, silent)
        made_notes.append("trained on train and validation; what is called validation is the test split")
    # In the order of the sources whatever splits were made together: so the cut splits keep that of the whole ones, by
    # which a clip is found again in its features.
    complete = joined([_of_source(one.source, complete) for one in given])
    cuts = [
        cut_splits(one.config, *(_of_source(one.source, part) for part in (complete, silent)))
        for one in given
    ]
    cut, silent = joined([one[0] for one in cuts]), joined([one[1] for one in cuts])
    for one, (_, _, cut_notes) in zip(given, cuts, strict=True):
        made_notes += told_of(one.source, cut_notes)
    text_key.cache_clear()
    stream = given[0].stream
    notes += [*made_notes, *([stream.told()] if stream else [])]
    return ClipTable(cut, notes, _drops(silent) + drops, silent, complete, stream)


@dataclasses.dataclass(frozen=True)
class _Given:
    """One source as the data has it."""

    source: str
    config: TrainConfig
    usable: dict[str, list[Clip]]
    """Clips by role."""
    silent: dict[str, list[Clip]]
    """Those whose texts have no words."""
    notes: list[str]
    stream: TrainStream | None = None


def _given_sources(config: TrainConfig, window: float | None) -> list[_Given]:
    """The sources of a data file.

    Raises:
        DataError: some cannot be used; a line each.
    """
    found, problems, mix = [], [], read_mix(config.data)
    for name in config.weights.keys() - {source.name for source in mix.sources}:
        problems.append(f"source_weights: {config.data} has no source {name!r}; it has {mix.names}")
    if not any(config.weights.get(source.name, source.weight) for source in mix.sources):
        problems.append(
            f"source_weights={config.source_weights!r}: the weight of every source of {config.data} is 0, and nothing "
            "is trained on; raise one"
        )
    for source in mix.sources:
        try:
            found.append(_given(mix.config(source, config), origin_of(source), window))
        except (ConfigError, DataError) as error:
            problems.append(f"{mix.place(source)}: {error}")
    if problems:
        raise DataError("\n".join(problems))
    return found


def origin_of(source: Source) -> Origin:
    """What the clips of one of a data file's sources have in common."""
    return Origin(source.name, source.settings.get("language"), source.settings.get("task"), source.weight)


def joined(parts: Sequence[Mapping[str, Sequence[Clip]]]) -> dict[str, list[Clip]]:
    """Clips by role of several sources, one after the other."""
    return {
        role: [clip for part in parts for clip in part.get(role, ())]
        for role in SPLIT_ALIASES
        if any(role in part for part in parts)
    }


def _of_source(source: str, splits: Mapping[str, Sequence[Clip]]) -> dict[str, list[Clip]]:
    return {role: [clip for clip in clips if clip.origin.source == source] for role, clips in splits.items()}


def _given(config: TrainConfig, origin: Origin, window: float | None) -> _Given:
    """The clips of one source in the splits that the data has."""
    wanted, code = parse_row_filter(config.row_filter), config.language or "en"
    opened = None
    if config.streaming:
        from trainer.data.streaming.stream import open_stream

        opened = open_stream(config)
        tables, notes, roles = opened.tables, opened.notes, opened.held_out
        parts = {name: _whole(group) for name, group in tables.items()}
    else:
        tables, notes = read_source(config)
        parts = divide_by_split(config, tables)
        roles = find_splits(config, parts)
    given = {role: parts[name] for role, name in roles.items()}
    asked = {role: select_parts(group, wanted) for role, group in given.items()}
    _require_rows(config, given, asked, f"row_filter={config.row_filter!r}", wanted)
    everything = [part for group in asked.values() for part in group]
    by_language, language_note = language_filter(config, everything, wanted)
    chosen = {role: select_parts(group, by_language, where_known=True) for role, group in asked.items()}
    _require_rows(config, asked, chosen, f"language={code!r}", by_language)
    splits: dict[str, list[Clip]] = {role: [] for role in chosen}
    times: list[str] = []
    for role, group in chosen.items():
        for table, rows in group:
            made, told = clips_of_rows(config, table, rows, roles[role] or role, origin, window=window)
            splits[role] += made
            times += told
    before, after = (
        sum(len(rows) for group in parts.values() for _, rows in group) for parts in (given, chosen)
    )
    if before > after:
        how = [config.row_filter] if config.row_filter else []
        how += [language_note] if language_note and by_language else []
        notes.append(f"kept {after} of {before} rows: {' and '.join(how)}")
    notes += times
    # Of a release with one language it was said already.
    if language_note and not by_language and not any(ONLY_LANGUAGE in note for note in notes):
        notes.append(language_note)
    notes += _column_note(config, everything[0][0])
    unused = [
        f"{name or '(no name)'} ({sum(len(rows) for _, rows in group):,} clips)"
        for name, group in parts.items()
        if name not in roles.values()
    ]
    if unused:
        notes.append(f"splits that are not used: {', '.join(unused)}")
    if "test" in splits and not splits["test"]:
        del splits["test"]
        notes.append("the test split has no rows and so counts as missing")
    usable: dict[str, list[Clip]] = {role: [] for role in splits}
    silent: dict[str, list[Clip]] = {role: [] for role in splits}
    for role, clips in splits.items():
        for clip in clips:
            (usable if has_words(clip.text) else silent)[role].append(clip)
    check_usable(config, _drops(silent), left={role: len(clips) for role, clips in usable.items()})
    stream = opened.train(wanted | by_language) if opened else None
    return _Given(origin.source, config, usable, silent, told_of(origin.source, notes), stream)


def _trained_on_both(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]], given: Mapping[str, Sequence[Clip]]
) -> dict[str, list[Clip]]:
    """Train and validation together in the order in which the data has them, and test as what is measured.

    So the order is the same whether the splits are made or were kept, as they are when the training is resumed.
    """
    if "test" not in splits:
        raise DataError(
            f"train_on={config.train_on!r}: data={config.data!r} has no test split, so that nothing would be left to "
            "measure; give one with test_split, or take train_on=train"
        )
    places = {id(clip): place for place, clip in enumerate(itertools.chain(*given.values()))}
    both = [*splits.get("train", ()), *splits.get("validation", ())]
    both.sort(key=lambda clip: places[id(clip)])
    return {"train": both, "validation": list(splits["test"])}


def _without_shared_files(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]]
) -> tuple[dict[str, list[Clip]], list[Drop]]:
    """The splits without clips whose file is in another one as well, which would be measured by what was learned."""
    kept, shared = leave_out_shared_files(config, splits)
    drops = [
        Drop(
            role, clip.name, "other_split", "its file is in another split too; split_by=null keeps it in both"
        )
        for role, clips in shared.items()
        for clip in clips
    ]
    check_usable(config, drops, left={role: len(clips) for role, clips in kept.items()})
    return kept, drops


def _drops(silent: Mapping[str, Sequence[Clip]]) -> list[Drop]:
    return [empty_text(role, clip.name, clip.text) for role, clips in silent.items() for clip in clips]


def select_parts(
    group: Sequence[Part], wanted: Mapping[str, list[str]], *, where_known: bool = False
) -> list[Part]:
    """The rows with the wanted values; `where_known`: of tables that have the column, and all of others."""
    if not where_known:
        return [(table, select_rows(table, rows, wanted)) for table, rows in group]
    return [
        (table, select_rows(table, rows, {name: wanted[name] for name in wanted if name in table.columns}))
        for table, rows in group
    ]


def divide_by_split(config: TrainConfig, tables: Mapping[str, list[Table]]) -> dict[str, list[Part]]:
    """Rows by split: as the source divides them, or by a `split` column where it does not; names in any case are one.

    Where there is neither, everything is training data.

    Raises:
        DataError: there is a `split` column, and none of its values is a usual or a chosen name.
    """
    if len(tables) == 1:
        [(name, group)] = tables.items()
        columns = [named([SPLIT_COLUMN], table.columns) for table in group]
        if (parts := _divide_by_column(group, columns)) and any(parts):
            _check_known(config, [name for name in parts if name], next(filter(None, columns)))
            return parts
        tables = {name or "train": group}
    merged: dict[str, list[Part]] = {}
    for name, group in tables.items():
        same = next((known for known in merged if known.lower() == name.lower()), name)
        merged.setdefault(same, []).extend(_whole(group))
    return merged


SPLIT_COLUMN = "split"
"""Column that names each row's split, in any case."""


def _check_known(config: TrainConfig, values: Sequence[str], column: str | None) -> None:
    chosen = {getattr(config, f"{role}_split").lower() for role in SPLIT_ALIASES}
    usual = {alias for names in SPLIT_ALIASES.values() for alias in names}
    if not any(value.lower() in chosen | usual for value in values):
        shown = ", ".join(values[:8]) + (" ..." if len(values) > 8 else "")
        raise DataError(
            f"data={config.data!r}: column {column} names the splits {shown}, none of which is known; say which are "
            f"which with train_split={values[0]}, validation_split=..., test_split=..."
        )


def _whole(group: Iterable[Table]) -> list[Part]:
    return [(table, range(len(table))) for table in group]


def _divide_by_column(group: Sequence[Table], columns: Sequence[str | None]) -> dict[str, list[Part]]:
    """Rows by the values of each table's column, under the first way in which a value is written."""
    names: dict[str, str] = {}
    parts: dict[str, list[Part]] = {}
    for table, column in zip(group, columns, strict=True):
        rows: dict[str, list[int]] = {}
        for row, value in enumerate(table.columns[column] if column else [""] * len(table)):
            cell = cell_text(value)
            rows.setdefault(names.setdefault(cell.lower(), cell), []).append(row)
        for split, positions in rows.items():
            parts.setdefault(split, []).append((table, positions))
    return parts


def clips_of_rows(
    config: TrainConfig,
    table: Table,
    rows: Sequence[int],
    split: str,
    origin: Origin = PLAIN,
    *,
    window: float | None = None,
) -> tuple[list[Clip], list[str]]:
    """The clips of some rows, and notes on their times.

    `split` is for the names of those that have none, `window` as of `load_clips`.

    Names of a data file's clips begin with that of their source, since several may call their files alike.

    Raises:
        DataError: a column is not there, or a row's language or task is none.
    """
    audio, text = find_audio_column(config, table), find_text_column(config, table)
    origins = row_origins(config, table, origin)
    before = f"{origin.source}/" if origin.source else ""
    clips = []
    files: dict[str, tuple[str, str]] = {}  # of which rows may name each many times
    for segment in find_segments(config, table, rows, audio, text, window=window):
        row, column = segment.row, table.embedded.get(audio)
        if column is not None:
            path, name = "", column.names[row]
        else:
            told = audio_path(table.columns[audio][row])
            if told not in files:
                files[told] = find_file(told, table.bases), _below(told, table.bases)
            path, name = files[told]
        name = f"{before}{name or f'{split}[{row}]'}"
        if segment.span is not None:
            name = f"{name} [{segment.span.told()}]"
        clips.append(
            Clip(
                name,
                segment.text,
                path,
                column,
                row,
                table.columns,
                origins(row),
                segment.span,
                config.audio_channel,
            )
        )
    return clips, told_times(table, len(rows), [(clip.path, clip.row, clip.span) for clip in clips])


def _below(told: str, bases: Sequence[Path]) -> str:
    """A path in full relative to the table that it stands in, as if the data set had been meant to move."""
    if told.startswith("/"):
        for base in bases:
            if told.startswith(beginning := f"{base.absolute()}/"):
                return told.removeprefix(beginning)
    return told


def _require_rows(
    config: TrainConfig,
    before: Mapping[str, list[Part]],
    after: Mapping[str, list[Part]],
    told: str,
    wanted: Mapping[str, list[str]],
) -> None:
    """Stop where a split is empty, and say whether it was before the rows wanted (`told` as such) were chosen."""
    for role, group in after.items():
        if role == "test" or any(rows for _, rows in group):
            continue
        if any(rows for _, rows in before[role]):
            column = next(iter(wanted))
            values = values_of([part for parts in before.values() for part in parts], column)
            shown = ", ".join(values[:8]) + (" ..." if len(values) > 8 else "")
            raise DataError(f"{told}: no row of the {role} split is left; column {column} has {shown}")
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


#: Reasons for which a clip is dropped, and how they are told.
DROP_REASONS = {
    "too_long_audio": "audio longer than the model's window",
    "too_long_text": "text longer than the model writes",
    "empty_text": "no text",
    "unreadable_audio": "unreadable audio",
    "incomplete_audio": "audio that is cut off or damaged",
    "empty_audio": "no audio in the file",
    "missing_channel": "without the channel that is wanted",
    "wrong_times": "with times that cannot be",
    "other_split": "with a file that is in another split too",
    HELD_OUT: "new, and not to be trained on beside the splits that were kept",
}


@dataclasses.dataclass(frozen=True)
class Drop:
    """A clip that cannot be used."""

    split: str
    """`train`, `validation` or `test`."""
    name: str
    """The file as the data set names it."""
    reason: str
    """One of `DROP_REASONS`."""
    detail: str
    """What exactly was found."""


def count_by_reason(drops: Sequence[Drop]) -> dict[str, int]:
    """Dropped clips by reason, the most frequent first."""
    return dict(Counter(drop.reason for drop in drops).most_common())


def empty_text(split: str, name: str, text: str) -> Drop:
    """The drop of a clip whose text has no words."""
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return Drop(split, name, "empty_text", f"no letter or digit in {shown!r}" if text else "no text")


def check_usable(
    config: TrainConfig, drops: Sequence[Drop], *, left: Mapping[str, int], window: float | None = None
) -> None:
    """Stop where nothing of a split is left: no share of drops that is allowed would help.

    Args:
        config: says which data it is.
        drops: the clips dropped.
        left: usable clips of each split.
        window: the model's window in seconds, once it is known.

    Raises:
        DataError: a split has no usable clip.
    """
    for role, usable in left.items():
        if not usable:
            mine = [drop for drop in drops if drop.split == role]
            first = f" (the first is {mine[0].name}: {mine[0].detail})" if mine else ""
            raise DataError(
                f"data={config.data!r}: no clip of the {role} split can be used: {describe_drops(mine, window)}"
                f"{first}; mend them, or name another split with {role}_split"
            )


def check_drops(config: TrainConfig, drops: Sequence[Drop], *, total: int, window: float) -> list[str]:
    """Stop where too much is dropped: a run on what is left would be about other data than the user's.

    Args:
        config: its `max_dropped_share` is the limit.
        drops: the clips dropped.
        total: clips in all, dropped ones included.
        window: the model's window in seconds.

    Returns:
        A note for the user, or nothing where nothing was dropped.

    Raises:
        DataError: more than the tolerable share is dropped.
    """
    if not drops:
        return []
    told = describe_drops(drops, window)
    bad = [drop for drop in drops if drop.reason != HELD_OUT]  # there is nothing to mend about those
    wanted = total - len(drops) + len(bad)
    share = len(bad) / max(wanted, 1)
    if share > config.max_dropped_share:
        # Rounded up to whole percents: the value that is proposed must let this very data pass.
        enough = min(1.0, (int(share * 100) + 1) / 100)
        first, told = f"{bad[0].name}: {bad[0].detail}", describe_drops(bad, window)
        raise DataError(
            f"data={config.data!r}: {len(bad)} of {wanted} clips ({share:.1%}) cannot be used: {told} "
            f"(the first is {first}); max_dropped_share={config.max_dropped_share:g} allows fewer; "
            f"to go on without them: --set max_dropped_share={enough:g}"
        )
    return [f"dropped {len(drops)} of {total} clips: {told}"]


def describe_drops(drops: Sequence[Drop], window: float | None = None) -> str:
    """How many for which reason, in words; `window` is the model's in seconds, once it is known."""
    told = ", ".join(f"{count} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    return told if window is None else told.replace("model's window", f"model's window of {window:g} s")
