"""What is known of a data set once it was looked at."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from trainer.config import TrainConfig
from trainer.inspection.characters import Character
from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding
from trainer.inspection.limits import LeftOut, Limits
from trainer.inspection.rates import RateModel
from trainer.sources import language_code

_KINDS = (
    *("dropped", "language_setting", "shared_audio", "shared_text", "same_audio_other_text", "text_too_long"),
    *(
        "text_too_short",
        "other_script",
        "other_language",
        "no_transcript",
        "silent",
        "odd_characters",
        "markup",
    ),
    *(
        "clipped",
        "channels_cancel",
        "quiet",
        "long_silence",
        "offset",
        "same_audio",
        "same_text",
        "small_split",
    ),
)
"""Findings in the order in which they matter."""


@dataclasses.dataclass(frozen=True)
class SplitFacts:
    """What there is of one split."""

    clips: int
    seconds: float
    """Of the clips that were listened to; of a sample, what that comes to for all."""
    words: int
    texts: int
    """Different texts, but for case and punctuation."""
    speakers: int | None
    """None where the data does not say who speaks."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """All that was found out about a data set."""

    config: TrainConfig
    """The settings that it was loaded with."""
    limits: Limits
    entries: list[Entry]
    splits: dict[str, SplitFacts]
    languages: dict[str, int]
    """Clips by the code of their language, as far as the data says."""
    notes: list[str]
    """Sentences about what was chosen, filtered or made."""
    measured: int
    """Clips that were listened to."""
    listening_seconds: float
    left_out: LeftOut
    alphabet: list[Character]
    rates: dict[str, RateModel]
    """What is usual, by the code of the language."""
    findings: list[Finding]
    """The worst first."""

    @property
    def warnings(self) -> list[Finding]:
        """Findings that are most likely faults."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def code_of(self, entry: Entry) -> str:
        """The code of a clip's language, as far as the data says."""
        return text_language(self.config, entry.language)

    def formats(self) -> Counter[tuple[int, int, str]]:
        """How many of the clips that were listened to have which rate, channels and format."""
        return Counter(
            (entry.sound.rate, entry.sound.channels, entry.sound.kind)
            for entry in self.entries
            if entry.sound is not None and entry.sound.rate
        )


def text_language(config: TrainConfig, told: str) -> str:
    """The code of the language that a text is in.

    Args:
        config: its language counts where the data tells none, or none that Whisper knows.
        told: what the data has in its column.
    """
    if config.task == "translate":
        return "en"
    return language_code(told) or config.language or "en"


def split_facts(entries: Sequence[Entry]) -> dict[str, SplitFacts]:
    """What there is of each split."""
    facts = {}
    by_split: dict[str, list[Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    for split, mine in by_split.items():
        known = [entry.sound.seconds for entry in mine if entry.sound is not None and entry.sound.seconds]
        heard = sum(entry.sound is not None for entry in mine)
        facts[split] = SplitFacts(
            clips=len(mine),
            seconds=sum(known) * len(mine) / heard if heard else 0.0,
            words=sum(len(entry.text.split()) for entry in mine),
            texts=len({entry.key for entry in mine}),
            speakers=len({entry.speaker for entry in mine if entry.speaker}) or None,
        )
    return facts


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Warnings before notes, and what matters most first."""
    order = {kind: place for place, kind in enumerate(_KINDS)}
    return sorted(findings, key=lambda one: (one.level != "warning", order.get(one.kind, len(order))))
