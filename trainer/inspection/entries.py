"""The clips of a data set as the inspection goes through them, and which of them training would leave out.

That is told by the code that leaves them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.drops import DROP_REASONS, Drop, check_drops, check_usable, count_by_reason
from trainer.data.grouping import text_key
from trainer.data.labels import make_labels
from trainer.data.prepared import Origins
from trainer.errors import DataError
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.sound import Sound
from trainer.inspection.texts import count_units
from trainer.model.processor import load_processor, window_seconds
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
    language: str
    """Whisper's code of what its text is written in, as far as data and settings say."""
    key: str
    """Its text without case and punctuation."""
    units: int
    """Letters and digits of its text."""
    sound: Sound | Drop | None = None
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
    def heard(self) -> Sound | None:
        """What was measured, where the audio can be used."""
        return self.sound if isinstance(self.sound, Sound) else None


def make_entry(split: str, clip: Clip, language: str) -> Entry:
    """A clip of which nothing is known but its text."""
    key = text_key(clip.text)
    return Entry(split, clip, language, key, count_units(key))


def make_entries(config: TrainConfig, table: ClipTable) -> list[Entry]:
    """All usable clips, split by split."""
    origins = {clip.origin for clips in table.splits.values() for clip in clips}
    languages = {origin: origin.config(config).written_language for origin in origins}
    return [
        make_entry(split, clip, languages[clip.origin])
        for split, clips in table.splits.items()
        for clip in clips
    ]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a clip may be for a model."""

    model: str | None
    """None: Whisper's usual limits, without a tokenizer to count by."""
    window: float
    """Seconds."""
    max_tokens: int
    """Most tokens of a text, with those around it."""
    processor: Processor | None


def find_limits(config: TrainConfig, *, with_model: bool) -> Limits:
    """The limits of `config.model`, or those that all of Whisper's own models have.

    Raises:
        ModelError: the model cannot be found, or does not know the language.
    """
    if not with_model:
        return Limits(None, WHISPER_SECONDS, WHISPER_TOKENS, None)
    processor = load_processor(config)
    longest = int(load_model_config(config).max_target_positions)
    return Limits(config.model, window_seconds(processor.feature_extractor), longest, processor)


def find_left_out(
    config: TrainConfig, table: ClipTable, entries: Sequence[Entry], limits: Limits, *, whole: bool
) -> tuple[list[Drop], str | None]:
    """The clips that a search would drop, and the error that it would stop with; counts the tokens of the others.

    Args:
        config: its settings of the texts count.
        table: the clips as loaded, with those that have no text.
        entries: the same clips, with what was heard; `tokens` of them is set.
        limits: of the model.
        whole: whether all were listened to, so that the share of drops can be judged.
    """
    unusable, too_long, left = list[Drop](), list[Drop](), {}
    for split in table.splits:
        mine = [entry for entry in entries if entry.split == split]
        usable = [entry for entry in mine if not isinstance(entry.sound, Drop)]
        bad = ((one.name, one.sound) for one in mine)
        unusable += [
            dataclasses.replace(drop, split=split, name=name) for name, drop in bad if isinstance(drop, Drop)
        ]
        longer = _count_tokens(config, limits, split, usable)
        left[split] = len(usable) - len(longer)
        too_long += longer
    drops = [*unusable, *table.drops, *too_long]
    stops = None
    if whole:
        try:
            check_usable(config, drops, left=left, window=limits.window)
            check_drops(config, drops, total=table.total + len(table.drops), window=limits.window)
        except DataError as error:
            stops = str(error)
    return drops, stops


def _count_tokens(config: TrainConfig, limits: Limits, split: str, entries: Sequence[Entry]) -> list[Drop]:
    """Set `tokens` of these clips; the clips whose texts are too long."""
    if limits.processor is None:
        return []
    index: dict[str, Any] = {
        "name": [entry.name for entry in entries],
        "text": [entry.text for entry in entries],
    }
    index["origin"] = Origins.of([entry.clip for entry in entries])
    labels, drops = make_labels(config, limits.processor, limits.max_tokens, split=split, index=index)
    for row, tokens in zip(labels.rows.tolist(), labels.lengths().tolist(), strict=True):
        entries[row].tokens = tokens
    return drops


def find_dropped(drops: Sequence[Drop], stops: str | None, total: int) -> list[Finding]:
    """What a search would do without, or stop for."""
    told = ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    title = f"would be left out: {len(drops):,} of {total:,} clips: {told}"
    if stops is not None:
        title = f"a search would stop: {stops}"
    suspects = [(drop, f"{DROP_REASONS[drop.reason]}: {drop.detail}") for drop in drops]
    return make_finding("dropped", suspects, told=title)
