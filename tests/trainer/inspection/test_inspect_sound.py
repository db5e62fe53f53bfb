"""What is heard in one clip."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
import soxr

from trainer.config import TrainConfig
from trainer.data.audio import AudioSource, decode_each, read_audio
from trainer.data.clips import load_clips
from trainer.inspection.sound import Sound, listen

RATE = 16_000


@pytest.fixture(scope="module")
def speech() -> list[np.ndarray]:
    """Clips of the demo with some words: float32 (samples,) at 16 kHz."""
    clips = [
        clip for clip in load_clips(TrainConfig(max_train_clips=60)).splits["train"] if len(clip.text) > 15
    ]
    return [read_audio(clip.source()) for clip in clips[:8]]


CODINGS = {
    "opus": (48_000, "OGG", "OPUS"),
    "telephone": (8000, "WAV", "ULAW"),
    "compact disc": (44_100, "WAV", "PCM_16"),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_clipping_shows_in_every_format(coding: str, speech: list[np.ndarray]) -> None:
    rate, kind, subtype = CODINGS[coding]

    def share_clipped(audio: np.ndarray) -> float:
        target = io.BytesIO()
        soundfile.write(target, soxr.resample(audio, RATE, rate), rate, format=kind, subtype=subtype)
        [(source, found)] = decode_each([AudioSource(target.getvalue())], max_seconds=30)
        sound = listen(source, found)
        assert isinstance(sound, Sound)
        return sound.clipped

    for audio in speech:
        loudest = audio / np.abs(audio).max()
        assert share_clipped(0.9 * loudest) < 0.001 < share_clipped(np.clip(5 * loudest, -1, 1))
