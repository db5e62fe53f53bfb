"""What a transcription comes to: a recording's segments, or why it could not be read; as text, JSON and subtitles."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from html import escape
from typing import Any, Literal

from trainer.languages import WITHOUT_SPACES
from trainer.transcription.recordings import Recording

Doubt = Literal["repeats", "breaks off"]
"""Why a text is doubtful: it says the same over and over, or the model reached its longest transcript."""
Empty = Literal["silence", "no speech", "no text"]
"""Why a transcript is empty: every sample is the same, nobody speaks, or the model wrote nothing of what is said."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """What was said from one pause to the next. Seconds from the beginning of the recording."""

    start: float
    end: float
    text: str
    doubt: Doubt | None = None


@dataclasses.dataclass(frozen=True)
class Transcript:
    """All that was said in one recording."""

    recording: Recording
    seconds: float
    """Length of what could be read."""
    language: str | None
    """Whisper's code; `None` where nothing was said and none was given."""
    segments: tuple[Segment, ...]
    empty: Empty | None = None
    """Why there are none."""
    incomplete: str | None = None
    """How much of the recording could not be read: it is cut off or damaged."""
    cancelled: bool = False
    """Whether its channels cancel each other, so that one of them was taken."""

    @property
    def text(self) -> str:
        """The whole text in one line."""
        gap = "" if self.language in WITHOUT_SPACES else " "
        return gap.join(segment.text for segment in self.segments)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A recording that could not be read."""

    recording: Recording
    reason: str


def as_text(transcript: Transcript) -> str:
    """A line a segment; nothing where nothing was said."""
    return "".join(f"{segment.text}\n" for segment in transcript.segments)


def as_dict(transcript: Transcript | Failure, **models: Any) -> dict[str, Any]:
    """Plain values for JSON; times in seconds. `models` stand behind the file's name.

    A failure has an `error`, and a recording that is cut off says `incomplete`.
    """
    named = {"file": str(transcript.recording.path)} | models
    if isinstance(transcript, Failure):
        return named | {"error": transcript.reason}
    missing = {"incomplete": transcript.incomplete} if transcript.incomplete else {}
    return named | {
        "language": transcript.language,
        "seconds": round(transcript.seconds, 3),
        **missing,
        "text": transcript.text,
        "segments": [segment_dict(segment) for segment in transcript.segments],
        **({"empty": transcript.empty} if transcript.empty else {}),
    }


def as_json(content: dict[str, Any]) -> str:
    """A file of JSON that people can read too."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def segment_dict(segment: Segment) -> dict[str, Any]:
    """One segment's times, text, and `doubt` where there is any."""
    found: dict[str, Any] = {
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
    }
    return found | ({"doubt": segment.doubt} if segment.doubt else {})


def as_srt(transcript: Transcript) -> str:
    """SubRip: numbered, with a comma before the milliseconds."""
    return "\n".join(
        f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{segment.text}\n"
        for number, segment in enumerate(transcript.segments, start=1)
    )


def as_vtt(transcript: Transcript) -> str:
    """WebVTT, with `&`, `<` and `>` escaped as its specification asks."""
    cues = "".join(
        f"\n{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{escape(segment.text, quote=False)}\n"
        for segment in transcript.segments
    )
    return f"WEBVTT\n{cues}"


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds: `01:02:03,456`."""
    whole = round(seconds * 1000)
    return f"{whole // 3_600_000:02d}:{whole // 60_000 % 60:02d}:{whole // 1000 % 60:02d}{point}{whole % 1000:03d}"


FORMATS: dict[str, Callable[[Transcript, str], str]] = {
    "text": lambda transcript, _: as_text(transcript),
    "json": lambda transcript, model: as_json(as_dict(transcript, model=model)),
    "srt": lambda transcript, _: as_srt(transcript),
    "vtt": lambda transcript, _: as_vtt(transcript),
}
"""The content of one file, by the name of the format; of the transcript and the model's name."""
SUFFIX = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
