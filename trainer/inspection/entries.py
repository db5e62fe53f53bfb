"""The clips of a data set as the inspection goes through them, with speaker and language where the data tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from trainer.columns import LANGUAGE_NAMES, SPEAKER_NAMES, Part, parse_row_filter, values_of
from trainer.config import TrainConfig
from trainer.data import Clip, ClipTable
from trainer.inspection.sound import Sound, Unusable
from trainer.inspection.texts import count_units, text_keys
from trainer.tables import Table


@dataclasses.dataclass(slots=True)
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
    names: dict[int, tuple[str | None, str | None]] = {}
    entries = []
    for split, clips in table.splits.items():
        keys = text_keys([clip.text for clip in clips])
        for clip, key in zip(clips, keys, strict=True):
            # All clips of one table share its columns.
            if id(clip.columns) not in names:
                names[id(clip.columns)] = (
                    _named(SPEAKER_NAMES, clip.columns),
                    _named(LANGUAGE_NAMES, clip.columns),
                )
            speaker, language = (clip.cell(name) if name else "" for name in names[id(clip.columns)])
            entries.append(Entry(split, clip, key, count_units(clip.text), speaker, language))
    return entries


def _named(wanted: Iterable[str], columns: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in columns}
    return next((by_lower[name] for name in wanted if name in by_lower), None)


def keep_all_languages(config: TrainConfig, tables: Mapping[str, Sequence[Table]]) -> TrainConfig:
    """Settings that take the clips of all languages of the data, where it has several and nobody chose among them.

    A search takes those of one language; who inspects the data without naming one wants to see all.
    """
    parts: list[Part] = [(table, range(len(table))) for group in tables.values() for table in group]
    wanted = parse_row_filter(config.row_filter)
    column = _named(LANGUAGE_NAMES, [name for table, _ in parts for name in table.columns])
    if column is None or column in wanted or any(column not in table.columns for table, _ in parts):
        return config
    values = values_of(parts, column)
    if len(values) < 2 or any("," in value or "=" in value for value in values):
        return config
    given = [config.row_filter] if config.row_filter else []
    return config.replace(row_filter=",".join([*given, *(f"{column}={value}" for value in values)]))
