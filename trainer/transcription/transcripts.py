"""What a transcription comes to: a recording's segments, or why it could not be read."""

from __future__ import annotations

import dataclasses
from typing import Literal

from trainer.languages import LANGUAGES
from trainer.scoring.characters import WITHOUT_SPACES
from trainer.transcription.recordings import Recording

__all__ = ["WITHOUT_SPACES", "Doubt", "Failure", "Segment", "Transcript", "language_name"]

Doubt = Literal["repeats", "breaks off"]
"""Why a text is doubtful: it says the same over and over, or the model reached its longest transcript."""


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

    @property
    def text(self) -> str:
        """The whole text in one line."""
        gap = "" if self.language in WITHOUT_SPACES else " "
        return gap.join(segment.text for segment in self.segments)

    @property
    def missing_seconds(self) -> float:
        """By how much the recording is shorter than its header says; 0 where that is next to nothing."""
        missing = self.recording.seconds - self.seconds
        return missing if missing > 1.0 else 0.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A recording that could not be read to its end."""

    recording: Recording
    reason: str


def language_name(code: str | None) -> str:
    """The English name of a language that Whisper writes; `None` is what models that know English only have."""
    return LANGUAGES[code or "en"].title()
