"""What is heard in one clip."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from trainer.config import TrainConfig
from trainer.data.audio import AudioError, AudioSource, hear_each, read_audio
from trainer.data.clips import load_clips
from trainer.inspection.sound import Sound, Unusable, is_silent, listen

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


def listened(source: str | bytes | Path) -> Sound | Unusable:
    [(given, found)] = hear_each([AudioSource(source)], max_seconds=WINDOW / RATE)
    return listen(given, found, max_samples=WINDOW)


def heard(audio: np.ndarray, rate: int = RATE, kind: str = "FLAC", coding: str | None = None) -> Sound:
    found = listened(coded(audio, rate, kind, coding))
    assert isinstance(found, Sound)
    return found


def test_levels() -> None:
    time = np.arange(2 * 44_100) / 44_100
    tone = np.sin(2 * np.pi * 440 * time) * 0.1
    found = heard(np.stack([tone, tone], axis=1), 44_100, "WAV", "PCM_24")
    assert found.seconds == pytest.approx(2, abs=1e-3)
    assert found.loud == pytest.approx(-23.01, abs=0.1)  # 20 dB below full scale, 3 more for a sine
    assert found.variation < 0.5


def test_silence_and_steady_noise_are_no_speech(speech: list[np.ndarray]) -> None:
    for level in (0.0, 1e-4, 0.1):
        assert is_silent(heard(level * np.random.default_rng(0).standard_normal(2 * RATE)))
    assert not any(is_silent(heard(audio)) for audio in speech)
    assert not is_silent(heard(0.005 * speech[0])), "very quiet speech is speech"


CODINGS = {
    "flac": (RATE, "FLAC", None),
    "mp3": (RATE, "MP3", None),
    "vorbis": (RATE, "OGG", "VORBIS"),
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


def test_clipping_below_full_scale_in_one_channel_and_in_floating_point(speech: list[np.ndarray]) -> None:
    loud = np.clip(5 * speech[0] / np.abs(speech[0]).max(), -1, 1)
    assert heard(0.4 * loud).clipped > 0.001
    assert heard(np.stack([loud, 0.01 * speech[0]], axis=1)).clipped > 0.001
    loud = 3 * speech[0] / np.abs(speech[0]).max()
    assert heard(loud, kind="WAV", coding="FLOAT").clipped == 0, "goes beyond full scale without harm"
    assert heard(loud, kind="WAV", coding="PCM_16").clipped > 0.001


def test_a_few_samples() -> None:
    for samples in (1, 319, 321):
        assert heard(np.full(samples, 0.1)).seconds == samples / RATE


def test_silence_before_after_and_between(speech: list[np.ndarray]) -> None:
    plain = heard(speech[0])
    half = np.array_split(speech[0], 2)
    pause = 1e-4 * np.random.default_rng(0).standard_normal(3 * RATE)
    found = heard(np.concatenate([pause[:RATE], half[0], pause, half[1], pause[: 2 * RATE]]))
    assert found.lead == pytest.approx(plain.lead + 1, abs=0.1)
    assert found.tail == pytest.approx(plain.tail + 2, abs=0.1)
    assert found.pause == pytest.approx(3, abs=0.1)
    assert found.spoken == pytest.approx(plain.spoken, abs=0.3)


def test_what_training_drops_is_told_as_training_tells_it(tmp_path: Path) -> None:
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    long = coded(np.zeros(WINDOW + 20))
    for source in (str(tmp_path / "missing.wav"), str(tmp_path / "broken.wav"), b"none", long):
        with pytest.raises(AudioError) as error:
            read_audio(source, max_seconds=30)
        found = listened(source)
        assert isinstance(found, Unusable)
        assert (found.reason, found.detail) == (error.value.reason, str(error.value))
    assert found.seconds == pytest.approx(30.00125)
    assert listened(b"") == Unusable("unreadable_audio", "no audio is given")
