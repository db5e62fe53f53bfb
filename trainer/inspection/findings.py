"""What an inspection says of a data set, in plain words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

_KINDS = {
    "dropped": (
        "{what}",
        "correct them, or leave them: a search skips such clips, up to max_dropped_share",
    ),
    "language_setting": (
        "most texts look {found}, but are treated as {named}",
        "give the right language by --language: the model is trained with it on every clip",
    ),
    "shared_audio": (
        "the same audio in two splits: {clips}",
        "remove one of each: a clip that was trained on says little about the model",
    ),
    "shared_text": (
        "the same text in two splits: {what}",
        "remove them from one of the splits: WER on sentences that were learned is too low",
    ),
    "same_audio_other_text": (
        "the same audio with different texts: {clips}",
        "one of the texts is wrong: listen, and keep the right one",
    ),
    "text_misfit": (
        "text too long or too short for its audio: {clips}",
        "wrong text, or audio that is cut off or has more in it: listen, then correct or remove them",
    ),
    "other_language": (
        "text in another language or script: {clips}",
        "wrong text, or filler: correct or remove them (names and single foreign words can look like that too)",
    ),
    "silent": (
        "no speech in {clips}: silence, or steady noise",
        "listen to them and remove them: a model learns from them to write text where nothing is said",
    ),
    "odd_characters": (
        "odd characters in the texts of {clips}",
        "replace or remove the characters: a model learns to write them, and WER counts their words as wrong",
    ),
    "markup": (
        "markup in the text of {clips}: tags, entities or remarks that nobody speaks",
        "take it out of the texts: the model would learn it",
    ),
    "clipped": (
        "clipped: {clips}, recorded or amplified above full scale",
        "record or export them again with a lower level; mild clipping can stay if such audio will be transcribed",
    ),
    "quiet": (
        "very quiet: {clips}; the loud parts of the data are usually at {usual:.0f} dBFS",
        "listen to them: the model does not depend on the level, but noise can hide such quiet speech",
    ),
    "long_silence": (
        "long silence in {clips}",
        "cut it off: Whisper tends to invent text for silence, and it costs time in every epoch",
    ),
    "same_audio": (
        "the same audio more than once: {clips}",
        "keep one of each, unless they are meant to count double",
    ),
    "small_split": (
        "{what}",
        "make it larger: with 1,000 {unit} an error rate is known to 3 points, with 5,000 to a little over one",
    ),
}
"""Title and advice by kind, in the order in which they matter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A clip that a finding is about."""

    split: str
    name: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something about the data that is most likely a fault."""

    kind: str
    """For programs: `silent`, `shared_text` ..."""
    title: str
    """What was found, with its number, as a sentence without the full stop."""
    advice: str
    suspects: list[Suspect]


def make_finding(kind: str, suspects: Iterable[tuple[Any, str]] | None, **values: object) -> list[Finding]:
    """One finding of a kind, or none where there are no clips that it could be about.

    Args:
        kind: one of `_KINDS`.
        suspects: entries or drops, each with what was found; None for what is about no single clips.
        values: what stands in the title and the advice.
    """
    title, advice = _KINDS[kind]
    clips = [Suspect(clip.split, clip.name, detail) for clip, detail in suspects or ()]
    if suspects is not None and not clips:
        return []
    values["clips"] = "1 clip" if len(clips) == 1 else f"{len(clips):,} clips"
    return [Finding(kind, title.format(**values), advice.format(**values), clips)]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    order = {kind: number for number, kind in enumerate(_KINDS)}
    return sorted(findings, key=lambda one: order[one.kind])
