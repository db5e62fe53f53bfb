"""The clips of one split to measure a model on: as a training sees it, or of data that is only for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainer.config import TrainConfig
from trainer.data.clips import Clip, clips_of_rows, divide_by_split, load_clips, select_parts
from trainer.data.columns import Part, find_audio_column, find_text_column, language_filter, parse_row_filter
from trainer.data.sources import SPLIT_ALIASES, read_source
from trainer.data.splits import subset
from trainer.data.text import has_words
from trainer.errors import DataError

ALL = "all"
"""Every clip of the data, whatever split it is in."""


@dataclasses.dataclass(frozen=True)
class SplitClips:
    """Clips of one split, those without text among them."""

    name: str
    clips: Sequence[Clip]
    notes: list[str]
    """Sentences for the user: what was chosen, filtered or made."""
    columns: list[str]
    """Columns of the data besides audio and text."""


def load_split(config: TrainConfig, split: str) -> SplitClips:
    """The clips of a split of `config.data`, with filters and `max_eval_clips` applied. No audio is read.

    Where the data has training clips, `train`, `validation` and `test` are what they are in a training, made from
    the training clips where the data has none of its own. Data without any, and splits of other names (`dev_other`),
    are taken as they are, and `all` is every clip.

    Raises:
        DataError: the data, a column, the split or the language is not there, or nothing is left of the split.
        ConfigError: `row_filter` is malformed.
    """
    tables, notes = read_source(config)
    parts = divide_by_split(tables)
    names = _names(config, parts)
    columns = _other_columns(config, parts)
    if split in SPLIT_ALIASES and names.get("train") in parts:
        table = load_clips(config)
        if split in table.splits:
            clips = [*table.splits[split], *table.without_text.get(split, ())]
            found = [*table.notes, *_made_note(split, names.get(split) not in parts)]
            return SplitClips(split, clips, found, columns)
        raise _no_split(config, split, parts)
    if split == ALL:
        chosen = [part for group in parts.values() for part in group]
    else:
        name = split if split in parts else names.get(split)
        if name not in parts:
            raise _no_split(config, split, parts)
        chosen = parts[str(name)]
    return _taken_as_it_is(config, split, chosen, notes, columns)


def _names(config: TrainConfig, parts: Mapping[str, list[Part]]) -> dict[str, str]:
    """The data's own names of the usual splits, where it has them."""
    by_lower = {name.lower(): name for name in parts}
    found = {}
    for role, aliases in SPLIT_ALIASES.items():
        wanted = str(getattr(config, f"{role}_split"))
        usual = aliases if wanted == role else ()
        name = next((by_lower[key] for key in (wanted.lower(), *usual) if key in by_lower), None)
        if name is not None:
            found[role] = name
    return found


def _no_split(config: TrainConfig, split: str, parts: Mapping[str, list[Part]]) -> DataError:
    there = ", ".join(name or "(no name)" for name in parts)
    return DataError(f"data={config.data!r}: has no split {split!r}; it has {there}; {ALL} takes every clip")


def _made_note(split: str, made: bool) -> list[str]:
    if not made:
        return []
    return [f"measured on the {split} split that a search on this data makes; --split {ALL} takes every clip"]


def _other_columns(config: TrainConfig, parts: Mapping[str, list[Part]]) -> list[str]:
    names: dict[str, None] = {}
    for group in parts.values():
        for table, _ in group:
            own = {find_audio_column(config, table), find_text_column(config, table)}
            names |= dict.fromkeys(name for name in table.columns if name not in own)
    return list(names)


def _taken_as_it_is(
    config: TrainConfig, split: str, parts: Sequence[Part], notes: list[str], columns: list[str]
) -> SplitClips:
    asked = select_parts(parts, parse_row_filter(config.row_filter))
    by_language, note = language_filter(asked, config.language or "en", parse_row_filter(config.row_filter))
    chosen = select_parts(asked, by_language, where_known=True)
    clips = [clip for table, rows in chosen for clip in clips_of_rows(config, table, rows, split)]
    spoken = [clip for clip in clips if has_words(clip.text)]
    if not spoken:
        how = f" after row_filter={config.row_filter!r}" if config.row_filter else ""
        raise DataError(
            f"data={config.data!r}: the split {split!r} has no clip with text{how}; give another one"
        )
    notes = notes + ([note] if note else [])
    limit = config.max_eval_clips
    if limit is not None and limit < len(spoken):
        notes.append(f"{split}: {limit} of {len(spoken)} clips (data_seed={config.data_seed})")
        clips = subset(spoken, limit, config.data_seed)
    return SplitClips(split, clips, notes, columns)
