"""The clips of a data set as the inspection goes through them, and which of them training would leave out.

That is told by the code that leaves them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE
from trainer.data.clips import DROP_REASONS, Clip, ClipTable, Drop, check_drops, check_usable, count_by_reason
from trainer.data.columns import LANGUAGE_NAMES, SPEAKER_NAMES, Part, named, parse_row_filter, values_of
from trainer.data.labels import make_labels
from trainer.data.prepared import Origins
from trainer.data.tables import Table
from trainer.errors import DataError
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.sound import Sound, Unusable
from trainer.inspection.texts import count_units, text_keys
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model_config

if TYPE_CHECKING:
    from trainer.model.processor import Processor

WHISPER_SECONDS, WHISPER_TOKENS = 30, 448
"""Of every Whisper model that OpenAI published."""


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """One clip, and what was found out about it."""

    split: str
    clip: Clip
    key: str
    """Its text without case and punctuation."""
    units: int
    """Letters and digits of its text."""
    speaker: str = ""
    language: str = ""
    """As the data set has it: a code, a name, or nothing."""
    sound: Sound | Unusable | None = None
    """None where it was not listened to."""
    tokens: int | None = None
    """Tokens that the model learns, its prefix and end included; None where they are too many or were not counted."""

    @property
    def name(self) -> str:
        """The file as the data set names it."""
        return self.clip.name

    @property
    def text(self) -> str:
        """The transcript as the data set has it."""
        return self.clip.text

    @property
    def place(self) -> str:
        """The clip for people: `clips/a.wav (train)`."""
        return f"{self.clip.name} ({self.split})"

    @property
    def heard(self) -> Sound | None:
        """What was measured, where the audio can be used."""
        return self.sound if isinstance(self.sound, Sound) else None


def make_entries(table: ClipTable) -> list[Entry]:
    """All usable clips, split by split, with speaker and language where a column of a usual name tells them."""
    names: dict[int, list[str | None]] = {}
    entries = []
    for split, loaded in table.splits.items():
        for clip, key in zip(loaded, text_keys([clip.text for clip in loaded]), strict=True):
            known = id(clip.columns)  # which all clips of one table share
            if known not in names:
                names[known] = [named(some, clip.columns) for some in (SPEAKER_NAMES, LANGUAGE_NAMES)]
            speaker, language = (clip.cell(name) if name else "" for name in names[known])
            language = clip.origin.language or language
            entries.append(Entry(split, clip, key, count_units(clip.text), speaker, language))
    return entries


def keep_all_languages(config: TrainConfig, tables: Mapping[str, Sequence[Table]]) -> TrainConfig:
    """Settings that take the clips of all languages of the data, where it has several and nobody chose among them.

    A search takes those of one language; who inspects the data without naming one wants to see all.
    """
    parts: list[Part] = [(table, range(len(table))) for group in tables.values() for table in group]
    wanted = parse_row_filter(config.row_filter)
    column = named(LANGUAGE_NAMES, [name for table, _ in parts for name in table.columns])
    if column is None or column in wanted or any(column not in table.columns for table, _ in parts):
        return config
    values = values_of(parts, column)
    if len(values) < 2 or any("," in value or "=" in value for value in values):
        return config
    given = [config.row_filter] if config.row_filter else []
    return config.replace(row_filter=",".join([*given, *(f"{column}={value}" for value in values)]))


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a clip may be for a model."""

    model: str | None
    """None: Whisper's usual limits, without a tokenizer to count by."""
    max_samples: int
    """The window at 16 kHz."""
    max_tokens: int
    """Most tokens of a text, with those around it."""
    processor: Processor | None

    @property
    def window(self) -> float:
        """The window in seconds."""
        return self.max_samples / SAMPLE_RATE


def find_limits(config: TrainConfig, *, with_model: bool) -> Limits:
    """The limits of `config.model`, or those that all of Whisper's own models have.

    Raises:
        ModelError: the model cannot be found, or does not know the language.
    """
    if not with_model:
        return Limits(None, WHISPER_SECONDS * SAMPLE_RATE, WHISPER_TOKENS, None)
    processor = load_processor(config)
    longest = int(load_model_config(config).max_target_positions)
    return Limits(config.model, int(processor.feature_extractor.n_samples), longest, processor)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What training would drop."""

    drops: list[Drop]
    stops: str | None
    """The error that a search would stop with: too much is dropped, or a split has nothing left."""


def find_left_out(
    config: TrainConfig, table: ClipTable, entries: Sequence[Entry], limits: Limits, *, whole: bool
) -> LeftOut:
    """The clips that a search would drop, as it would; counts the tokens of the others.

    Args:
        config: its settings of the texts count.
        table: the clips as loaded, with those that have no text.
        entries: the same clips, with what was heard; `tokens` of them is set.
        limits: of the model.
        whole: whether all were listened to, so that the share of drops can be judged.
    """
    drops = [
        Drop(entry.split, entry.name, entry.sound.reason, entry.sound.detail)
        for entry in entries
        if isinstance(entry.sound, Unusable)
    ]
    drops += table.drops
    usable: dict[str, list[Entry]] = {split: [] for split in table.splits}
    for entry in entries:
        if not isinstance(entry.sound, Unusable):
            usable[entry.split].append(entry)
    left = {split: len(chosen) for split, chosen in usable.items()}
    for split, chosen in usable.items():
        if limits.processor is None:
            continue
        index: dict[str, Any] = {
            "name": [entry.name for entry in chosen],
            "text": [entry.text for entry in chosen],
        }
        index["origin"] = Origins.of([entry.clip for entry in chosen], index)
        labels, dropped = make_labels(config, limits.processor, limits.max_tokens, split=split, index=index)
        for row, tokens in zip(labels.rows.tolist(), labels.lengths().tolist(), strict=True):
            chosen[row].tokens = tokens
        left[split] -= len(dropped)
        drops += dropped
    stops = None
    if whole:
        try:
            check_usable(config, drops, left=left, window=limits.window)
            check_drops(config, drops, total=table.total + len(table.drops), window=limits.window)
        except DataError as error:
            stops = str(error)
    return LeftOut(drops, stops)


def find_dropped(left_out: LeftOut, total: int) -> list[Finding]:
    """What a search would do without, or stop for."""
    drops = left_out.drops
    told = ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    title = f"would be left out: {len(drops):,} of {total:,} clips: {told}"
    if left_out.stops is not None:
        title = f"a search would stop: {left_out.stops}"
    suspects = [(drop, f"{DROP_REASONS[drop.reason]}: {drop.detail}") for drop in drops]
    return make_finding("dropped", suspects, told=title)
