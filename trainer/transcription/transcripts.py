"""Transcripts of recordings as text, JSON and subtitles, and where two of the same recording differ."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from html import escape
from pathlib import Path
from typing import Any, Literal

from trainer.config import written_language
from trainer.languages import WITHOUT_SPACES
from trainer.scoring.alignment import align, pairs
from trainer.scoring.language_rules import split_characters

Doubt = Literal["repeats", "breaks off"]
"""Why a text is doubtful: it says the same over and over, or the model reached its longest transcript."""
SUFFIXES = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
"""Formats, and the end of a file's name."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """What was said from one pause to the next. Seconds from the beginning of the recording."""

    start: float
    end: float
    text: str
    doubt: Doubt | None = None


@dataclasses.dataclass(frozen=True)
class Transcript:
    path: Path
    seconds: float
    """Length of what could be read."""
    language: str | None
    """Whisper's code of what is spoken; `None` where nobody speaks and none was given."""
    segments: list[Segment]
    incomplete: str | None = None
    """How much of the recording could not be read: it is cut off or damaged."""
    task: str = "transcribe"

    @property
    def text(self) -> str:
        gap = "" if written_language(self.language, self.task) in WITHOUT_SPACES else " "
        return gap.join(segment.text for segment in self.segments if segment.text)

    def to_dict(self, model: str) -> dict[str, Any]:
        """Plain values for JSON; times in seconds."""
        return {
            "file": str(self.path),
            "model": model,
            "language": self.language,
            "seconds": round(self.seconds, 3),
            **({"incomplete": self.incomplete} if self.incomplete else {}),
            "text": self.text,
            "segments": [
                {"start": round(each.start, 3), "end": round(each.end, 3), "text": each.text}
                | ({"doubt": each.doubt} if each.doubt else {})
                for each in self.segments
            ],
        }


def write(transcript: Transcript, form: str, model: str) -> str:
    """The content of a file: a line a segment, JSON, SubRip, or WebVTT with `&`, `<` and `>` escaped."""
    if form == "json":
        return json.dumps(transcript.to_dict(model), ensure_ascii=False, indent=2) + "\n"
    said = [segment for segment in transcript.segments if segment.text]
    if form == "text":
        return "".join(f"{each.text}\n" for each in said)
    point = "," if form == "srt" else "."
    times = [f"{_clock(each.start, point)} --> {_clock(each.end, point)}" for each in said]
    if form == "srt":
        cues = zip(times, said, strict=True)
        return "\n".join(f"{number}\n{at}\n{one.text}\n" for number, (at, one) in enumerate(cues, start=1))
    texts = [escape(each.text, quote=False) for each in said]
    return "WEBVTT\n" + "".join(f"\n{at}\n{text}\n" for at, text in zip(times, texts, strict=True))


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds: `01:02:03,456`."""
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02d}:{whole // 60_000 % 60:02d}:{whole // 1000 % 60:02d}{point}{whole % 1000:03d}"


def mark_differences(base: str, model: str, language: str | None) -> tuple[str, str, int, int]:
    """Both texts of a segment with what differs between asterisks, capitals and punctuation aside.

    Returns:
        The texts; how many words differ (characters, of a language without spaces), and how many there are.
    """
    by_character = language in WITHOUT_SPACES
    left, right = ((split_characters(text) if by_character else text).split() for text in (base, model))
    words = (iter(left), iter(right))
    marked: tuple[list[str], list[str]] = ([], [])
    count = changed = 0
    [pieces] = align([" ".join(map(_fold, left))], [" ".join(map(_fold, right))])
    for kind, *folded in pairs(pieces):
        count, changed = count + 1, changed + (kind != "equal")
        for side, there in enumerate(folded):
            if there:
                word = next(words[side])
                marked[side].append(word if kind == "equal" else f"*{word}*")
    gap = "" if by_character else " "
    return gap.join(marked[0]), gap.join(marked[1]), changed, count


def _fold(word: str) -> str:
    """Without capitals and punctuation; what is nothing else stays as it is."""
    kept = "".join(char for char in word.casefold() if unicodedata.category(char)[0] not in "PS")
    return kept or word
