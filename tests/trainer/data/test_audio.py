"""Audio of any usual kind becomes 16 kHz mono."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from make_data import tone

from trainer.data.audio import AudioError, read_audio

FORMATS = [
    ("wav", "PCM_16"),
    ("wav", "FLOAT"),
    ("wav", "PCM_24"),
    ("flac", "PCM_16"),
    ("ogg", "VORBIS"),
    ("ogg", "OPUS"),
    ("mp3", "MPEG_LAYER_III"),
]


def pitch_of(audio: np.ndarray) -> float:
    """The strongest frequency in Hz, of 16 kHz audio."""
    spectrum = np.abs(np.fft.rfft(audio * np.hanning(len(audio))))
    return float(np.argmax(spectrum) * 16_000 / len(audio))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_formats_and_channels(tmp_path: Path, kind: str, subtype: str, channels: int) -> None:
    path = tmp_path / f"clip.{kind}"
    rate = 48_000 if subtype == "OPUS" else 44_100
    soundfile.write(path, tone(1.0, rate=rate, channels=channels), rate, subtype=subtype)
    audio = read_audio(path)
    assert audio.dtype == np.float32
    assert audio.ndim == 1
    assert abs(len(audio) - 16_000) < 1_600  # MP3 adds up to two of its frames of silence
    assert abs(pitch_of(audio) - 220) < 2
    assert np.array_equal(audio, read_audio(path.read_bytes()))


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000])
def test_rates(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone(1.0, rate=rate), rate, subtype="FLOAT")
    audio = read_audio(str(path))
    assert len(audio) == 16_000
    assert abs(pitch_of(audio) - 220) < 1.5
    # The same note, whatever the rate: apart from the ends and the noise.
    expected = tone(1.0)
    assert np.abs(audio - expected)[200:-200].max() < 0.12


def test_16_khz_mono_is_untouched(tmp_path: Path) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone(0.5), 16_000, subtype="FLOAT")
    assert np.array_equal(read_audio(path), tone(0.5))


@pytest.mark.parametrize("subtype", ["GSM610", "G721_32"])
def test_recordings_in_which_libsndfile_cannot_seek(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "call.wav"
    soundfile.write(path, tone(140.0, rate=8_000), 8_000, subtype=subtype)  # two blocks
    audio = read_audio(path)
    assert abs(len(audio) - 140 * 16_000) < 1_000
    assert abs(pitch_of(audio) - 220) < 2
    assert np.array_equal(audio, read_audio(path.read_bytes(), max_seconds=141))


def test_stereo_is_averaged(tmp_path: Path) -> None:
    left, right = tone(0.5, pitch=200), tone(0.5, pitch=500)
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.stack([left, right], axis=1), 16_000, subtype="FLOAT")
    assert np.allclose(read_audio(path), (left + right) / 2, atol=1e-7)


def test_unusable_files_say_why(tmp_path: Path) -> None:
    text = tmp_path / "text.wav"
    text.write_text("this is no audio at all, whatever its name says")
    nothing = tmp_path / "nothing.wav"
    nothing.touch()
    silent = tmp_path / "silent.wav"
    soundfile.write(silent, np.zeros(0, np.float32), 16_000)
    broken = tmp_path / "broken.wav"
    soundfile.write(broken, np.array([0.1, np.nan, 0.2], np.float32), 16_000, subtype="FLOAT")
    cases = [
        (text, "unreadable_audio", "cannot be decoded"),
        (tmp_path / "missing.wav", "unreadable_audio", "file not found"),
        (tmp_path, "unreadable_audio", "not a file"),
        (b"no audio", "unreadable_audio", "cannot be decoded"),
        (nothing, "empty_audio", "the file is empty"),
        (silent, "empty_audio", "no samples"),
        (broken, "unreadable_audio", "not finite"),
    ]
    for source, reason, words in cases:
        with pytest.raises(AudioError, match=words) as caught:
            read_audio(source)
        assert caught.value.reason == reason
        assert "\n" not in str(caught.value)


def test_long_audio_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    soundfile.write(path, tone(3.0, rate=22_050), 22_050)
    assert len(read_audio(path, max_seconds=3.0)) == 48_000
    with pytest.raises(AudioError, match=r"3\.00 s, over the model's window of 2 s") as caught:
        read_audio(path, max_seconds=2.0)
    assert caught.value.reason == "too_long_audio"
