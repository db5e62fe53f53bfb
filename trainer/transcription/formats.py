"""Transcripts as text, JSON and subtitles (SRT, WebVTT)."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from typing import Any

from trainer.transcription.transcripts import Segment, Transcript


def as_text(transcript: Transcript) -> str:
    """A line a segment; nothing where nothing was said."""
    return "".join(f"{segment.text}\n" for segment in transcript.segments)


def as_dict(transcript: Transcript, model: str) -> dict[str, Any]:
    """Plain values for JSON; times in seconds."""
    return {
        "file": str(transcript.recording.path),
        "model": model,
        "language": transcript.language,
        "seconds": round(transcript.seconds, 3),
        "text": transcript.text,
        "segments": [segment_dict(segment) for segment in transcript.segments],
    }


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
    "json": lambda transcript, model: (
        json.dumps(as_dict(transcript, model), ensure_ascii=False, indent=2) + "\n"
    ),
    "srt": lambda transcript, _: as_srt(transcript),
    "vtt": lambda transcript, _: as_vtt(transcript),
}
"""The content of one file, by the name of the format; of the transcript and the model's name."""
SUFFIX = {"text": ".txt", "json": ".json", "srt": ".srt", "vtt": ".vtt"}
