"""What phones, browsers and cameras record is heard as its WAV, at the same time, or dropped with a reason."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips
from make_data import encode, lag

from trainer.data.audio import AudioError, AudioFile, read_audio
from trainer.data.drops import DROP_REASONS

RATE = 16_000
#: Coding, container, rate, and how like the original the sound is at least (correlation).
KINDS = [
    ("aac", "ipod", 44_100, 0.9),
    ("aac", "adts", 44_100, 0.9),
    ("aac", "matroska", 48_000, 0.9),
    ("aac", "mpegts", 44_100, 0.9),
    ("aac", "flv", 44_100, 0.9),
    ("alac", "ipod", 44_100, 0.999),
    ("libopus", "webm", 48_000, 0.9),
    ("libopencore_amrnb", "amr", 8_000, 0.6),
    ("libopencore_amrnb", "3gp", 8_000, 0.6),
    ("wmav2", "asf", 44_100, 0.9),
    ("mp3", "avi", 44_100, 0.9),
    ("mp2", "mpeg", 44_100, 0.9),
]


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """float32 (samples,) at 16 kHz: a few seconds of the demo's speech."""
    return np.concatenate([audio for audio, _ in demo_clips()[:4]])


@pytest.mark.parametrize(("coding", "container", "rate", "likeness"), KINDS)
def test_a_format_is_heard_as_its_wav_and_a_cut_is_told(
    speech: np.ndarray, coding: str, container: str, rate: int, likeness: float
) -> None:
    content = encode(speech, coding, container, rate=rate)
    audio = read_audio(content)
    shift, like = lag(audio, speech)
    assert abs(shift) <= 0.05 * RATE
    assert like > likeness
    assert len(audio) == pytest.approx(len(speech), abs=0.05 * RATE)
    try:
        audio = read_audio(content[: int(0.6 * len(content))])
    except AudioError as error:
        assert error.reason in ("incomplete_audio", "unreadable_audio", "empty_audio")
        assert "\n" not in str(error)
    else:  # of some formats nobody can tell
        assert container in ("amr", "asf", "mpegts", "mpeg", "adts", "flv", "avi")
        assert len(audio) < 0.7 * len(speech)


@pytest.mark.parametrize("rate", [16_000, 48_000])
@pytest.mark.parametrize("container", ["ogg", "webm"])
def test_the_pre_skip_of_opus_is_no_sound(speech: np.ndarray, container: str, rate: int) -> None:
    """To within a millisecond, also of files that are joined."""
    content = encode(speech, "libopus", container, rate=rate)
    for audio in (read_audio(content), *([read_audio(content * 2)[-len(speech) :]] * (container == "ogg"))):
        assert len(audio) == pytest.approx(len(speech), abs=RATE // 1000)
        assert abs(lag(audio, speech)[0]) <= RATE // 1000


def test_a_film_with_sound_that_begins_late_and_pauses(speech: np.ndarray) -> None:
    """Subtitles count from the first picture."""
    silence = np.zeros(RATE, np.float32)
    content = encode(speech, "aac", "mp4", rate=48_000, picture=True, late=1.0)
    audio = read_audio(content)
    shift, _ = lag(audio, np.concatenate([silence, speech]))
    assert abs(shift) <= RATE // 100
    assert np.abs(audio[: RATE // 2]).max() < 1e-3


def test_a_film_without_sound_has_no_clip(speech: np.ndarray) -> None:
    with pytest.raises(AudioError, match="no sound") as caught:
        read_audio(encode(speech, None, "mp4", picture=True))
    assert caught.value.reason == "empty_audio"


def test_a_channel_can_be_chosen(tmp_path: Path, speech: np.ndarray) -> None:
    """Of a call each side has its own."""
    other = np.roll(speech[::-1], 5_000)
    both = np.stack([speech, other])
    wav = tmp_path / "call.wav"
    soundfile.write(wav, both.T, RATE, subtype="FLOAT")
    (tmp_path / "call.m4a").write_bytes(encode(both, "alac", "ipod"))
    for path in (wav, tmp_path / "call.m4a"):
        for channel, expected in ((1, speech), (2, other), (None, both.mean(0))):
            audio = np.concatenate(list(AudioFile(path, channel).stream()))
            assert np.abs(audio - expected).max() < 1e-4
        with pytest.raises(AudioError, match="has 2 channels, not 3") as caught:
            next(AudioFile(path, 3).stream())
        assert caught.value.reason == "missing_channel"


def test_damage_never_ends_in_a_traceback(speech: np.ndarray) -> None:
    """Bytes are changed in the header and anywhere, and some are added."""
    random, short = np.random.default_rng(0), speech[: 2 * RATE]
    files = [encode(short, coding, container, rate=rate) for coding, container, rate, _ in KINDS]
    for kind in ("WAV", "RF64", "AIFF", "CAF", "FLAC", "OGG", "MP3"):
        buffer = io.BytesIO()
        soundfile.write(buffer, short, RATE, format=kind)
        files.append(buffer.getvalue())
    for whole in files:
        for number in range(12):
            content = bytearray(whole)
            end = 64 if number % 2 else len(content)
            for place in random.integers(0, end, int(random.integers(1, 20))):
                content[place] ^= int(random.integers(1, 256))
            start = int(random.integers(len(content)))
            content[start:start] = bytes(int(random.integers(0, 3_000)))
            try:
                audio = read_audio(bytes(content), max_seconds=30)
                assert len(audio) and np.isfinite(audio).all()
            except AudioError as error:
                assert error.reason in DROP_REASONS and "\n" not in str(error)
