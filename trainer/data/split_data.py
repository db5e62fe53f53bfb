"""The clips of one split to measure a model on, of a training or of data that is only for tests, and their features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable, divide_by_split, load_clips, origin_of
from trainer.data.columns import (
    PLAIN,
    SOURCE_COLUMN,
    Origin,
    Part,
    language_filter,
    parse_row_filter,
    select_parts,
)
from trainer.data.drops import Drop, check_tokens, is_usable
from trainer.data.kept_splits import read_kept_splits
from trainer.data.prepared import PreparedSplit, find_features, prepare
from trainer.data.segments import clips_of_rows
from trainer.data.sources import SPLIT_ALIASES, read_source, split_role
from trainer.data.splits import name_source, split_of_role, subset
from trainer.data.text import has_words
from trainer.errors import DataError, ModelError
from trainer.mix import is_mix, read_mix

ALL = "all"
"""Every clip of the data, whatever split it is in."""


@dataclasses.dataclass(frozen=True)
class SplitClips:
    """Clips of one split, those without text among them."""

    name: str
    clips: Sequence[Clip]
    notes: list[str]

    @property
    def columns(self) -> list[str]:
        """What the data says of clips: columns of the tables that they are rows of, and their source, of several."""
        tables = {id(clip.columns): clip.columns for clip in self.clips}
        sources = [SOURCE_COLUMN] if any(clip.origin.source for clip in self.clips) else []
        return list(dict.fromkeys([*sources, *(name for table in tables.values() for name in table)]))

    @property
    def table(self) -> ClipTable:
        return ClipTable({_ROLE: self.clips}, [])


def load_split(config: TrainConfig, split: str, origin: Origin = PLAIN) -> SplitClips:
    """The clips of a split of `config.data`, with filters and `max_eval_clips` applied. No audio is read.

    Where the data has training clips, `train`, `validation` and `test` are what they are in a training, made from
    the training clips where the data has none of its own. Data without any, and splits of other names (`dev_other`),
    are taken as they are, and `all` is every clip. Other usual names of the three (`dev`) mean them, unless the data
    has a split of that name besides. Of a data file it is the split of all sources that have one, each as by itself.

    Raises:
        DataError: the data, a column, the split or the language is not there, or nothing is left of the split.
        ConfigError: `row_filter` is malformed.
    """
    role = split_role(split)
    if is_mix(config.data):
        if role is not None:
            return _as_in_training(config, role)
        return _of_sources(config, lambda own, of: load_split(own, split, of), all_of_them=False)
    if config.streaming:
        return _as_in_training(config, role or split)
    tables, notes = read_source(config)
    parts = divide_by_split(config, tables)
    names = {role: name for role in SPLIT_ALIASES if (name := split_of_role(config, role, parts))}
    if role is not None and (split not in parts or names.get(role) == split):
        split = role
    if split in SPLIT_ALIASES and (config.splits is not None or names.get("train") in parts):
        made = _as_in_training(config, split)
        if names.get(split) not in parts and config.splits is None:
            made.notes.append(
                f"measured on the {split} split that a search on this data makes; --split {ALL} takes every clip"
            )
        return made
    name = split if split in parts else names.get(split)
    if split != ALL and name not in parts:
        there = ", ".join(name or "(no name)" for name in parts)
        raise DataError(
            f"data={config.data!r}: has no split {split!r}; it has {there}; {ALL} takes every clip"
        )
    return _taken_as_it_is(config, split, parts, None if split == ALL else name, notes, origin)


def _as_in_training(config: TrainConfig, split: str) -> SplitClips:
    """A split as a training on the data has it."""
    table = load_clips(config)
    if split not in table.splits:
        raise DataError(f"data={config.data!r}: has no {split} split; it has {', '.join(table.splits)}")
    clips = [*table.splits[split], *table.without_text.get(split, ())]
    return SplitClips(split, clips, list(table.notes))


def _of_sources(
    config: TrainConfig, load: Callable[[TrainConfig, Origin], SplitClips], *, all_of_them: bool
) -> SplitClips:
    """What is loaded of each source of a data file; of those that cannot be used a warning, or the error."""
    found, problems = read_mix(config.data).load_each(
        config, lambda own, source: load(own, origin_of(source))
    )
    if not found or (problems and all_of_them):
        raise DataError("\n".join(problems))
    names = {one.name for one in found}
    notes = [f"WARNING: {problem}" for problem in problems] + [note for one in found for note in one.notes]
    clips = [clip for one in found for clip in one.clips]
    return SplitClips(names.pop() if len(names) == 1 else ALL, clips, notes)


def load_untrained(config: TrainConfig, origin: Origin = PLAIN) -> SplitClips:
    """The clips of `config.data`, of which nothing is trained on: its validation split, else its test split, where the
    source itself has one, else every clip; of each source of a data file by itself. No audio is read.

    Raises:
        DataError, ConfigError: as `load_split`.
    """
    if is_mix(config.data):
        return _of_sources(config, load_untrained, all_of_them=True)
    tables, notes = read_source(config)
    parts = divide_by_split(config, tables)
    held_out = (split_of_role(config, role, parts) for role in ("validation", "test"))
    split = next((name for name in held_out if name is not None), None)
    return _taken_as_it_is(config, split or ALL, parts, split, notes, origin)


def _taken_as_it_is(
    config: TrainConfig,
    split: str,
    parts: Mapping[str, list[Part]],
    name: str | None,
    notes: list[str],
    origin: Origin,
) -> SplitClips:
    """The clips of what the data calls `name`, or of all its splits; nothing is made of them."""
    group = parts[name] if name is not None else [part for some in parts.values() for part in some]
    wanted = parse_row_filter(config.row_filter)
    asked = select_parts(group, wanted)
    by_language, note = language_filter(config, asked, wanted)
    chosen = select_parts(asked, by_language, where_known=True)
    made = [clips_of_rows(config, table, rows, split, origin) for table, rows in chosen]
    clips = [clip for some, _ in made for clip in some]
    check_tokens(config, [(clip.name, clip.text) for clip in clips])
    if not any(has_words(clip.text) for clip in clips):
        how = f" after row_filter={config.row_filter!r}" if config.row_filter else ""
        raise DataError(
            f"data={config.data!r}: the split {split!r} has no clip with text{how}; give another one"
        )
    notes = notes + ([note] if note else []) + [text for _, times in made for text in times]
    limit, usable = config.max_eval_clips, [clip for clip in clips if is_usable(config, clip.text)]
    if limit is not None and limit < len(usable):
        notes.append(f"{split}: {limit} of {len(usable)} clips (data_seed={config.data_seed})")
        clips = [usable[at] for at in subset(usable, limit, config.data_seed)]
    return SplitClips(split, clips, name_source(origin.source, notes))


Progress = Callable[[int, int], None]
_ROLE = "evaluated"
"""Of the split in its cache, whatever the data set calls it: it names files there."""


@dataclasses.dataclass(frozen=True)
class SplitData:
    """The usable clips of a split, those with an empty reference among them."""

    source: SplitClips
    model: str
    """That it was prepared for."""
    prepared: PreparedSplit
    """With that model's features."""
    drops: list[Drop]
    notes: list[str]

    @property
    def rows(self) -> list[int]:
        """Position in the source of each usable clip."""
        positions: list[int] = self.prepared.values("position").tolist()
        return positions

    def __len__(self) -> int:
        return len(self.prepared)

    def column(self, name: str) -> list[str]:
        """The cell of each usable clip in a column of the data, empty where it has none."""
        return [self.source.clips[row].cell(name) for row in self.rows]

    def for_model(self, config: TrainConfig, on_progress: Progress | None = None) -> PreparedSplit:
        """The same clips with the features of another model, which may hear other mel bands.

        Raises:
            ModelError: the model cannot be found, or hears a window of another length and so other clips.
        """
        labels = self.prepared.all_labels
        features = find_features(config, self.source.table, on_progress).splits[_ROLE]
        other = dataclasses.replace(features, all_labels=labels)
        mine = [(self.prepared.name(row), self.prepared.text(row)) for row in range(len(self))]
        if len(features.index["name"]) <= labels.rows.max() or mine != [
            (other.name(row), other.text(row)) for row in range(len(self))
        ]:
            raise ModelError(
                f"model={config.model!r}: has an audio window of another length, so it is not measured on the same "
                "clips; compare models with the same window"
            )
        return other


def prepare_split(config: TrainConfig, source: SplitClips, on_progress: Progress | None = None) -> SplitData:
    """Features of a split from the cache, or computed now.

    Raises:
        DataError: too much of the split cannot be used, or the disk is full.
        ModelError: the model cannot be found.
    """
    data = prepare(config, on_progress, table=source.table)
    drops = [dataclasses.replace(drop, split=source.name) for drop in data.drops]
    return SplitData(source, config.model, data.splits[_ROLE], drops, source.notes + data.notes)


def without_learned(config: TrainConfig, data: SplitData, model: str, splits: str) -> SplitData:
    """The clips that a model was not trained on, by name and text or by the audio file; all, with a warning, where just
    these were asked for.

    Raises:
        DataError: it was trained on all of them, or the file cannot be read.
    """
    kept, split = read_kept_splits(splits), data.source.name
    audio = data.prepared.values("audio")
    learned = kept.trained_on([data.source.clips[row] for row in data.rows]) | kept.has_audio("train", audio)
    rows, count, total = np.arange(len(data)), int(learned.sum()), len(data)
    notes = []
    if count and split in (ALL, "train", config.train_split):
        text = f"{model} was trained on {count:,} of these {total:,} clips, so its figures are too optimistic"
        notes.append(f"WARNING: {text}")
    elif count == total:
        raise DataError(
            f"data={config.data!r}: {model} was trained on all clips of the split {split!r}; give other data "
            f"with --data, or --split {ALL} to measure on them anyway"
        )
    elif count:
        rows = rows[~learned]
        text = f"{count:,} of {total:,} clips are left out, since {model} was trained on them"
        notes.append(f"WARNING: {text}")
    chosen = int(kept.has_audio("validation", audio)[rows].sum())
    validation = split_role(split) == "validation" or split == config.validation_split
    # Of the data of the training, whose splits are used, it was told before.
    if chosen and not (validation and config.splits):
        which = (
            f"of {model} were chosen on {chosen:,} of these clips, so its figures are a little too optimistic"
        )
        notes.append(f"WARNING: the settings and the checkpoint {which}")
    return dataclasses.replace(data, prepared=data.prepared.only(rows.tolist()), notes=[*data.notes, *notes])
