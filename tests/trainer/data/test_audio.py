"""Audio of any usual kind becomes 16 kHz mono."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from make_data import pitch_of, tone

from trainer.data.audio import AudioError, AudioFile, AudioSource, DecodedAudio, Span, decode_each, read_audio

FORMATS = (
    "wav.PCM_16 wav.FLOAT wav.PCM_24 wav.PCM_U8 wav.ULAW wav.IMA_ADPCM aiff.PCM_16 caf.FLOAT flac.PCM_16"
)
FORMATS += " ogg.VORBIS ogg.OPUS mp3.MPEG_LAYER_III"


@pytest.mark.parametrize("name", FORMATS.split())
def test_formats(tmp_path: Path, name: str) -> None:
    kind, subtype = name.split(".")
    path = tmp_path / f"clip.{kind}"
    rate = 48_000 if subtype == "OPUS" else 44_100
    soundfile.write(path, tone(1.0, rate=rate, channels=2), rate, subtype=subtype)
    audio = read_audio(path)
    assert audio.dtype == np.float32
    assert audio.ndim == 1
    assert abs(len(audio) - 16_000) < 1_600  # MP3 adds up to two of its frames of silence
    assert abs(pitch_of(audio) - 220) < 2
    assert np.array_equal(audio, read_audio(path.read_bytes()))


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 96_000])
def test_rates(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "clip.wav"
    soundfile.write(path, tone(1.0, rate=rate), rate, subtype="FLOAT")
    audio = read_audio(str(path))
    assert len(audio) == 16_000
    assert abs(pitch_of(audio) - 220) < 1.5
    # The same note, whatever the rate: apart from the ends and the noise.
    expected = tone(1.0)
    assert np.abs(audio - expected)[200:-200].max() < 0.12
    assert rate != 16_000 or np.array_equal(audio, expected)


def test_telephone_recordings(tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    soundfile.write(path, tone(140.0, rate=8_000), 8_000, subtype="GSM610")  # many blocks
    audio = read_audio(path)
    assert abs(len(audio) - 140 * 16_000) < 1_000
    assert abs(pitch_of(audio) - 220) < 2
    assert np.array_equal(audio, read_audio(path.read_bytes(), max_seconds=141))


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


def encoded(
    seconds: float, kind: str, subtype: str | None = None, *, rate: int = 16_000, pitch: float = 220.0
) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone(seconds, rate=rate, pitch=pitch), rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def without_length(content: bytes) -> bytes:
    """As a program writes a header that writes to a pipe."""
    changed = bytearray(content)
    if content[:4] == b"fLaC":
        changed[21] &= 0xF0
        changed[22:26] = bytes(4)
    elif content[:4] == b"RIFF":
        place = content.index(b"data") + 4
        changed[4:8] = changed[place : place + 4] = bytes(4)
    else:  # the first frame of the MP3
        del changed[:288]
    return bytes(changed)


@pytest.mark.parametrize("kind", ["WAV", "RF64", "W64", "AIFF", "AU", "CAF", "FLAC", "MP3", "OGG"])
def test_a_file_that_is_cut_off_is_no_clip(kind: str) -> None:
    """Its text would be taught with half of its sound."""
    content = encoded(4.0, kind)
    assert read_audio(content).size == pytest.approx(64_000, abs=800)
    with pytest.raises(AudioError, match=r"announces 4|ends inside a page|after \d|malformed") as caught:
        read_audio(content[: len(content) // 2])
    assert caught.value.reason == ("unreadable_audio" if kind == "CAF" else "incomplete_audio")


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3"])
def test_a_length_that_is_not_announced(tmp_path: Path, kind: str) -> None:
    """A guess by the bit rate of the first frames is none."""
    content = without_length(encoded(4.0, kind))
    assert read_audio(content).size == pytest.approx(64_000, abs=2_000)
    path = tmp_path / "stream"
    path.write_bytes(content)
    file = AudioFile(path)
    assert sum(map(len, file.stream())) == pytest.approx(64_000, abs=2_000)
    assert file.incomplete is None
    # Half of it is all that anybody knows of.
    half = content[: len(content) // 2]
    if kind != "FLAC":
        assert read_audio(half).size == pytest.approx(32_000, abs=2_400)


@pytest.mark.parametrize("kind", ["MP3", "OGG"])
def test_joined_files_are_read_to_the_end(kind: str) -> None:
    """As `cat` joins them."""
    content = encoded(2.0, kind, pitch=300) + encoded(1.5, kind, pitch=800)
    audio = read_audio(content)
    assert audio.size == pytest.approx(56_000, abs=3_000)
    assert [pitch_of(audio[start : start + 12_000]) for start in (8_000, 40_000)] == pytest.approx(
        [300, 800], abs=2
    )
    with pytest.raises(AudioError, match=r"3\.\d\d s, over the model's window of 3 s"):
        read_audio(content, max_seconds=3)


def test_bytes_around_the_samples_are_no_sound() -> None:
    for kind in ("WAV", "FLAC", "MP3"):
        for filling in (b"\0", bytes(3_000), b"TAG" + bytes(125)):
            assert read_audio(encoded(1.0, kind) + filling).size == pytest.approx(16_000, abs=600)
    tag = b"ID3\x03\0\0" + bytes([0, 0, 1, 44]) + bytes(172)
    assert read_audio(tag + encoded(1.0, "MP3")).size == pytest.approx(16_000, abs=600)
    with pytest.raises(AudioError):  # not half of what is in it
        read_audio(encoded(1.0, "WAV") * 2)


def test_all_parts_of_a_recording_that_cannot_be_read_have_its_error(tmp_path: Path) -> None:
    """Those after the first were said to hold no sound, or to end after the recording."""
    spans = [Span(second, second + 2) for second in (0, 6, 8)]
    found = [
        one for _, one in decode_each(AudioSource(tmp_path / "missing.wav", None, span) for span in spans)
    ]
    assert {one.reason for one in found if isinstance(one, AudioError)} == {"unreadable_audio"}
    samples = tone(12.0)
    samples[7 * 16_000] = np.nan
    soundfile.write(tmp_path / "clip.wav", samples, 16_000, subtype="FLOAT")
    sound, *found = [
        one for _, one in decode_each(AudioSource(tmp_path / "clip.wav", None, span) for span in spans)
    ]
    assert isinstance(sound, DecodedAudio)
    assert [str(one) for one in found] == [str(found[0])] * 2
    assert [one.reason for one in found if isinstance(one, AudioError)] == ["unreadable_audio"] * 2


@pytest.mark.parametrize("channels", [2, 4])
def test_channels_that_cancel_each_other(tmp_path: Path, channels: int) -> None:
    """Opposite phase: the mean would be silence."""
    speech = tone(1.0)
    opposite = np.stack([0.5 * speech, -0.5 * speech] * (channels // 2), axis=1)
    path = tmp_path / "clip.wav"
    soundfile.write(path, opposite + 0.05, 16_000, subtype="FLOAT")  # with an offset, which is no sound
    [(_, found)] = decode_each([AudioSource(path)])
    assert isinstance(found, DecodedAudio) and found.cancelled
    assert np.allclose(found.samples, 0.5 * speech + 0.05, atol=1e-6)
    for other in (0.5 * speech, 0 * speech, -0.05 * speech, tone(1.0, pitch=500)):
        soundfile.write(path, np.stack([0.5 * speech, other], axis=1), 16_000, subtype="FLOAT")
        [(_, found)] = decode_each([AudioSource(path)])
        assert isinstance(found, DecodedAudio) and not found.cancelled
        assert np.allclose(found.samples, (0.5 * speech + other) / 2, atol=1e-6)


def test_rates_that_are_damage() -> None:
    content = bytearray(encoded(0.5, "WAV"))
    for rate in (1, 2_000_000_000):
        content[24:28] = rate.to_bytes(4, "little")
        with pytest.raises(AudioError, match=f"announces {rate} samples a second"):
            read_audio(bytes(content), max_seconds=30)


def test_opus_is_decoded_at_its_own_rate() -> None:
    """As by libsndfile; of FFmpeg's 48 kHz, resampled, the highest mel band is another."""
    content = io.BytesIO()
    soundfile.write(content, tone(1.0, pitch=300), 16_000, format="OGG", subtype="OPUS")
    samples = soundfile.read(io.BytesIO(content.getvalue()), dtype="float32")[0]
    assert np.array_equal(read_audio(content.getvalue()), samples)
