"""Loading a data set: tables, their columns, the clips in their rows, and these in train, validation and test."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.columns import (
    PLAIN,
    Origin,
    Part,
    cell_text,
    language_filter,
    named,
    parse_row_filter,
    select_parts,
    shown,
    some,
    text_column_note,
    values_of,
)
from trainer.data.drops import HELD_OUT, Drop, check_tokens, check_usable, empty_text, is_usable
from trainer.data.grouping import text_key
from trainer.data.kept_splits import UNMARKED, read_kept_splits
from trainer.data.segments import clips_of_rows
from trainer.data.sources import SPLIT_ALIASES, read_source, split_role
from trainer.data.splits import (
    complete_by_source,
    cut_splits,
    find_splits,
    leave_out_shared_files,
    name_source,
)
from trainer.data.tables.table import Table
from trainer.errors import ConfigError, DataError
from trainer.mix import Source, is_mix, read_mix

if TYPE_CHECKING:
    from trainer.data.streaming.stream import TrainStream


@dataclasses.dataclass(frozen=True)
class ClipTable:
    """A data set: clips by role (`train` and `validation` always, `test` where there is one), and notes.

    The texts of all clips have words; those that have none are not in the splits, whoever made these, but for empty
    ones with `empty_text=keep`.
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
        return sum(len(clips) for clips in self.splits.values())

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch of the training clips by their own weights, on average; of a stream about as many."""
        if self.stream:
            return self.stream.epoch_samples
        return sum(clip.origin.weight for clip in self.splits["train"])


def load_clips(config: TrainConfig, *, window: float | None = None, refuse_tokens: bool = True) -> ClipTable:
    """The clips of `config.data`, with filters, splits and limits applied. No audio is read.

    Args:
        window: seconds beyond which parts of recordings are not joined; by default the window of `config.model`.
        refuse_tokens: whether texts with Whisper's own tokens, which would be taught as text, are an error.

    Raises:
        DataError: the data, a column, a split or the language is not there, a split is empty or has no text to measure,
            or texts have tokens; of a data file's sources a line each.
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
    if refuse_tokens:
        check_tokens(config, [(clip.name, clip.text) for clips in usable.values() for clip in clips])
    drops: list[Drop] = []
    if config.streaming:  # nothing can be made of a stream, and nothing is known of its clips
        complete, made_notes = usable, list[str]()
    elif config.splits is None:
        usable, drops = leave_out_shared_files(config, usable)
        complete, made_notes = complete_by_source(config, usable)
    else:
        complete, left_out, made_notes = read_kept_splits(config.splits).assign(config, usable)
        drops = [Drop(role, clip.name, HELD_OUT, why) for role, clip, why in left_out]
        check_usable(config, drops, left=complete)
    silent.pop(UNMARKED, None)
    if "test" in silent and "test" not in complete:
        own = {clip.origin.source for part in (usable, silent) for clip in part.get("validation", ())}
        moved = [clip for clip in silent.pop("test") if clip.origin.source not in own]
        silent["validation"] = [*silent.get("validation", ()), *moved]
    if config.train_on != "train":
        complete = _trained_on_both(config, complete, usable)
        silent = _trained_on_both(config, {"test": [], **silent}, silent)
        made_notes.append("trained on train and validation; what is called validation is the test split")
    cuts = [
        cut_splits(one.config, *(_of_source(one.source, part) for part in (complete, silent)))
        for one in given
    ]
    cut, silent = joined([one[0] for one in cuts]), joined([one[1] for one in cuts])
    for one, (_, _, cut_notes) in zip(given, cuts, strict=True):
        made_notes += name_source(one.source, cut_notes)
    for role in sorted(cut.keys() - {"train"}):
        if not any(clip.text for clip in cut[role]):
            raise DataError(
                f"data={config.data!r}: no clip of the {role} split has a text, so there is no word to measure; "
                f"transcribe some, or name another split with {role}_split"
            )
    text_key.cache_clear()
    stream = given[0].stream
    notes += [*made_notes, *([stream.describe()] if stream else [])]
    return ClipTable(cut, notes, _drops(silent) + drops, silent, complete, stream)


@dataclasses.dataclass(frozen=True)
class _Given:
    """One source as the data has it."""

    source: str
    config: TrainConfig
    usable: dict[str, list[Clip]]
    silent: dict[str, list[Clip]]
    """Those whose texts have no words."""
    notes: list[str]
    stream: TrainStream | None = None


def _given_sources(config: TrainConfig, window: float | None) -> list[_Given]:
    """The sources of a data file; a `DataError` with a line for each that cannot be used."""
    mix = read_mix(config.data)
    unknown = config.weights.keys() - {source.name for source in mix.sources}
    problems = [
        f"source_weights: {config.data} has no source {name!r}; it has {mix.names}" for name in unknown
    ]
    if not any(config.weights.get(source.name, source.weight) for source in mix.sources):
        problems.append(
            f"source_weights={config.source_weights!r}: the weight of every source of {config.data} is 0, and nothing "
            "is trained on; raise one"
        )
    given, unusable = mix.load_each(config, lambda own, source: _given(own, origin_of(source), window))
    if problems or unusable:
        raise DataError("\n".join(problems + unusable))
    return given


def origin_of(source: Source) -> Origin:
    """What the clips of one of a data file's sources have in common."""
    return Origin(source.name, source.settings.get("language"), source.settings.get("task"), source.weight)


def joined(parts: Sequence[Mapping[str, Sequence[Clip]]]) -> dict[str, list[Clip]]:
    """Clips by role of several sources, one after the other."""
    return {
        role: [clip for part in parts for clip in part.get(role, ())]
        for role in (*SPLIT_ALIASES, UNMARKED)
        if any(role in part for part in parts)
    }


def _of_source(source: str, splits: Mapping[str, Sequence[Clip]]) -> dict[str, list[Clip]]:
    return {role: [clip for clip in clips if clip.origin.source == source] for role, clips in splits.items()}


def _given(config: TrainConfig, origin: Origin, window: float | None) -> _Given:
    """The clips of one source in the splits that the data has."""
    if config.streaming:
        from trainer.data.streaming.stream import look_at, open_stream

        tables, roles, shards, notes = open_stream(config)
        parts = {name: _whole(group) for name, group in tables.items()}
    else:
        tables, notes = read_source(config)
        parts = divide_by_split(config, tables)
        roles = find_splits(config, parts)
    if config.splits is not None:  # kept before others had marks, or other ones: they have their roles still
        beside = [name for name in parts if name not in roles.values() and (not name or split_role(name))]
        parts[""] = [part for name in beside for part in parts.pop(name)]
        roles[UNMARKED] = ""
    chosen, wanted, filter_notes = _wanted_rows(config, {role: parts[name] for role, name in roles.items()})
    splits: dict[str, list[Clip]] = {role: [] for role in chosen}
    for role, group in chosen.items():
        for table, rows in group:
            made, time_notes = clips_of_rows(config, table, rows, roles[role] or role, origin, window=window)
            splits[role] += made
            filter_notes[1:1] = time_notes
    notes += filter(None, filter_notes)
    notes += text_column_note(config, next(table for group in chosen.values() for table, _ in group))
    unused = [
        f"{shown(name) or '(no name)'} ({sum(len(rows) for _, rows in group):,} clips)"
        for name, group in parts.items()
        if name not in roles.values() and any(rows for _, rows in group)
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
            (usable if is_usable(config, clip.text) else silent)[role].append(clip)
    if config.splits is None:
        check_usable(config, _drops(silent), left=usable)
    stream = look_at(config, shards, wanted) if config.streaming else None
    for column, values in stream.wanted.items() if stream else ():
        if column not in wanted:
            notes.append(f"of several languages, training clips with {column}={'/'.join(values)}")
    return _Given(origin.source, config, usable, silent, name_source(origin.source, notes), stream)


def _wanted_rows(
    config: TrainConfig, given: Mapping[str, list[Part]]
) -> tuple[dict[str, list[Part]], dict[str, list[str]], list[str]]:
    """The rows of the wanted values and language by role, what they were chosen by, and two notes or empty texts."""
    wanted = parse_row_filter(config.row_filter)
    asked = {role: select_parts(group, wanted) for role, group in given.items()}
    _require_rows(config, given, asked, f"row_filter={config.row_filter!r}", wanted)
    everything = [part for group in asked.values() for part in group]
    by_language, language_note = language_filter(config, everything, wanted)
    chosen = {role: select_parts(group, by_language, where_known=True) for role, group in asked.items()}
    _require_rows(config, asked, chosen, f"language={config.language or 'en'!r}", by_language)
    before, after = (
        sum(len(rows) for group in parts.values() for _, rows in group) for parts in (given, chosen)
    )
    how = [text for text in (config.row_filter, language_note if by_language else None) if text]
    kept = f"kept {after} of {before} rows: {' and '.join(how)}" if before > after else ""
    return chosen, wanted | by_language, [kept, "" if by_language else language_note or ""]


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
    positions = {id(clip): at for at, clip in enumerate(itertools.chain(*given.values()))}
    both = [*splits.get("train", ()), *splits.get("validation", ())]
    both.sort(key=lambda clip: positions[id(clip)])
    return {"train": both, "validation": list(splits["test"])}


def _drops(silent: Mapping[str, Sequence[Clip]]) -> list[Drop]:
    return [empty_text(role, clip.name, clip.text) for role, clips in silent.items() for clip in clips]


def divide_by_split(config: TrainConfig, tables: Mapping[str, list[Table]]) -> dict[str, list[Part]]:
    """Rows by split: as the source divides them, or by a `split` column where it does not; names in any case are one.

    Where there is neither, everything is training data.

    Raises:
        DataError: there is a `split` column, and none of its values is a usual or a chosen name.
    """
    if len(tables) == 1:
        [(name, group)] = tables.items()
        columns = [_split_column(table) for table in group]
        if any(columns):
            parts = _divide_by_column(group, columns)
            chosen = {getattr(config, f"{role}_split").lower() for role in SPLIT_ALIASES}
            if config.splits is None and not any(
                name.lower() in chosen or split_role(name) for name in parts
            ):
                values = [name for name in parts if name]
                raise DataError(
                    f"data={config.data!r}: column {next(filter(None, columns))} names the splits {some(values)}, none "
                    f"of which is known; say which are which with train_split={shown(values[0])}, "
                    "validation_split=..., test_split=..."
                )
            return parts
        tables = {name or "train": group}
    merged: dict[str, list[Part]] = {}
    for name, group in tables.items():
        same = next((known for known in merged if known.lower() == name.lower()), name)
        merged.setdefault(same, []).extend(_whole(group))
    return merged


SPLIT_COLUMNS = ("split", "splits")
"""Columns that name each row's split, in any case."""
_PERHAPS_SPLITS = ("partition", "subset", "set")
"""Columns that do so where all their values are usual names of splits."""


def _split_column(table: Table) -> str | None:
    for name in (*SPLIT_COLUMNS, *_PERHAPS_SPLITS):
        column = named([name], table.columns)
        values = set(map(cell_text, table.columns[column])) - {""} if column else set()
        if values and (name in SPLIT_COLUMNS or all(map(split_role, values))):
            return column
    return None


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


def _require_rows(
    config: TrainConfig,
    before: Mapping[str, list[Part]],
    after: Mapping[str, list[Part]],
    by: str,
    wanted: Mapping[str, list[str]],
) -> None:
    """Stop where a split is empty, and say whether it was before the rows wanted (`told` as such) were chosen."""
    for role, group in after.items():
        if role == "test" or config.splits is not None or any(rows for _, rows in group):
            continue
        if any(rows for _, rows in before[role]):
            column = next(iter(wanted))
            values = values_of([part for parts in before.values() for part in parts], column)
            raise DataError(f"{by}: no row of the {role} split is left; column {column} has {some(values)}")
        raise DataError(
            f"data={config.data!r}: the {role} split is empty; give one that has clips with {role}_split"
        )
