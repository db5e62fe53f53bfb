"""The clips of a data set as the inspection goes through them, and which of them training would leave out.

That is told by the code that leaves them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.drops import Drop, check_drops, check_usable
from trainer.data.grouping import text_key
from trainer.data.labels import make_labels
from trainer.data.prepared import Origins
from trainer.errors import DataError
from trainer.inspection.sound import Sound
from trainer.inspection.texts import count_units
from trainer.model.pretrained import load_model_config
from trainer.model.processor import Processor, load_processor, window_seconds


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    split: str
    clip: Clip
    language: str
    """Whisper's code of what its text is written in, as far as data and settings say."""
    sound: Sound | Drop | None = None
    """None where it was not listened to."""
    tokens: int | None = None
    """Tokens that the model learns, its prefix and end included; None where they are too many or were not counted."""
    key: str = dataclasses.field(init=False)
    """Its text without case and punctuation."""
    units: int = dataclasses.field(init=False)
    """Letters and digits of its text."""

    def __post_init__(self) -> None:
        self.key = text_key(self.clip.text)
        self.units = count_units(self.key)

    @property
    def name(self) -> str:
        return self.clip.name

    @property
    def text(self) -> str:
        return self.clip.text


Groups = Mapping[str, Sequence[Entry]]
"""Clips by split, or by the code of their language."""


def measured_clips(entries: Iterable[Entry]) -> list[tuple[Entry, Sound]]:
    """The clips that were listened to and can be used, with what was measured."""
    return [(entry, entry.sound) for entry in entries if isinstance(entry.sound, Sound)]


def speech(entries: Iterable[Entry]) -> list[tuple[Entry, Sound]]:
    """Those of them that are not silent."""
    return [(entry, sound) for entry, sound in measured_clips(entries) if not sound.is_silent]


def make_entries(config: TrainConfig, table: ClipTable) -> list[Entry]:
    """All usable clips, split by split."""
    origins = {clip.origin for clips in table.splits.values() for clip in clips}
    languages = {origin: origin.config(config).written_language for origin in origins}
    return [
        Entry(split, clip, languages[clip.origin]) for split, clips in table.splits.items() for clip in clips
    ]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a clip may be for a model; by itself for every Whisper model that OpenAI published."""

    model: str | None = None
    window: float = 30
    """Seconds."""
    max_tokens: int = 448
    """Most tokens of a text, with those around it."""
    processor: Processor | None = None
    """What tokens are counted with, where there is a model."""


def find_limits(config: TrainConfig) -> Limits:
    """The limits of `config.model`.

    Raises:
        ModelError: the model cannot be found, or does not know the language.
    """
    processor = load_processor(config)
    longest = int(load_model_config(config.model).max_target_positions)
    return Limits(config.model, window_seconds(processor.feature_extractor), longest, processor)


def find_left_out(
    config: TrainConfig, table: ClipTable, by_split: Groups, limits: Limits, *, whole: bool
) -> tuple[list[Drop], str | None]:
    """The clips that a search would drop, and the error that it would stop with; counts the tokens of the others.

    The share of drops can be judged where the `whole` data was listened to.
    """
    unusable, too_long, left = list[Drop](), list[Drop](), dict[str, list[Entry]]()
    for split, mine in by_split.items():
        unusable += [
            dataclasses.replace(entry.sound, split=split, name=entry.name)
            for entry in mine
            if isinstance(entry.sound, Drop)
        ]
        usable = [entry for entry in mine if not isinstance(entry.sound, Drop)]
        left[split] = usable
        if limits.processor is not None:
            index: dict[str, Any] = {
                "name": [entry.name for entry in usable],
                "text": [entry.text for entry in usable],
                "origin": Origins.of([entry.clip for entry in usable]),
            }
            labels, longer = make_labels(
                config, limits.processor, limits.max_tokens, split=split, index=index
            )
            left[split] = [usable[row] for row in labels.rows.tolist()]
            for entry, tokens in zip(left[split], labels.tokens, strict=True):
                entry.tokens = len(tokens)
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
