"""What is heard in one clip."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from trainer.config import TrainConfig
from trainer.data.audio import AudioSource, decode_each, read_audio
from trainer.data.clips import load_clips
from trainer.data.drops import Drop
from trainer.inspection.sound import Sound, listen

RATE = 16_000
WINDOW = 30 * RATE


def coded(audio: np.ndarray, rate: int = RATE, kind: str = "FLAC", coding: str | None = None) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, audio, rate, format=kind, subtype=coding)
    return target.getvalue()


@pytest.fixture(scope="module")
def speech() -> list[np.ndarray]:
    """Clips of the demo with some words: float32 (samples,) at 16 kHz."""
    clips = [
        clip for clip in load_clips(TrainConfig(max_train_clips=60)).splits["train"] if len(clip.text) > 15
    ]
    return [read_audio(clip.source()) for clip in clips[:30]]


def listened(source: str | bytes | Path) -> Sound | Drop:
    [(given, found)] = decode_each([AudioSource(source)], max_seconds=WINDOW / RATE)
    return listen(given, found)


def heard(audio: np.ndarray, rate: int = RATE, kind: str = "FLAC", coding: str | None = None) -> Sound:
    found = listened(coded(audio, rate, kind, coding))
    assert isinstance(found, Sound)
    return found


CODINGS = {
    "flac": (RATE, "FLAC", None),
    "opus": (48_000, "OGG", "OPUS"),
    "telephone": (8000, "WAV", "ULAW"),
    "compact disc": (44_100, "WAV", "PCM_16"),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_clipping_shows_in_every_format(coding: str, speech: list[np.ndarray]) -> None:
    rate, kind, subtype = CODINGS[coding]
    for audio in speech[:8]:
        plain = soxr.resample(0.9 * audio / np.abs(audio).max(), RATE, rate)
        loud = soxr.resample(np.clip(5 * audio / np.abs(audio).max(), -1, 1), RATE, rate)
        assert heard(plain, rate, kind, subtype).clipped < 0.001
        assert heard(loud, rate, kind, subtype).clipped > 0.001
