"""Features kept without padding are, padded back, what Hugging Face's extractor gives."""

from __future__ import annotations

import numpy as np
import pytest
from make_data import SHARED_DATA, tone

from trainer.data.audio import AudioError, read_audio
from trainer.data.features import FEATURE_TOLERANCE, extract_features, extractor_settings, pad_features

WINDOW = 480_000


@pytest.fixture(scope="module")
def extractor():
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()


def agree(extractor, audio: np.ndarray) -> tuple[float, np.ndarray]:
    """Largest difference from the extractor's own padded features; and the features kept."""
    full = extractor(audio, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    features, fill = extract_features(extractor, audio)
    padded = pad_features([features], [fill], extractor.nb_max_frames)[0].numpy()
    assert padded.shape == full.shape == (extractor.feature_size, extractor.nb_max_frames)
    assert padded.dtype == np.float32
    frames = features.shape[1]
    # What was left out is no rounding matter: it is the constant itself.
    assert np.abs(padded[:, frames:] - full[:, frames:]).max(initial=0) < 1e-6
    return float(np.abs(padded - full).max()), features


LENGTHS = [1, 159, 160, 161, 200, 399, 400, 16_000, 16_001, 100_000]
NEAR_FULL = [
    WINDOW - 401,
    WINDOW - 400,
    WINDOW - 361,
    WINDOW - 201,
    WINDOW - 200,
    WINDOW - 199,
    WINDOW - 1,
    WINDOW,
]


@pytest.mark.parametrize("samples", LENGTHS + NEAR_FULL)
def test_padded_back_equals_the_extractor(extractor, samples: int) -> None:
    audio = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
    difference, features = agree(extractor, audio)
    assert difference <= FEATURE_TOLERANCE / 2  # below 2 in size float16 rounds to half of the bound
    assert features.dtype == np.float16
    assert features.shape[1] <= samples // 160 + 3


@pytest.mark.parametrize(
    "audio",
    [
        np.zeros(8_000, np.float32),
        np.ones(8_000, np.float32),
        np.full(8_000, 1e-7, np.float32),
        np.concatenate([np.zeros(8_000), np.sin(np.arange(8_000))]).astype(np.float32),
        np.sign(np.sin(np.arange(16_000) / 5)).astype(np.float32),
    ],
    ids=["silence", "constant", "almost-silence", "starts-late", "clipped"],
)
def test_extremes(extractor, audio: np.ndarray) -> None:
    difference, _ = agree(extractor, audio)
    assert difference <= FEATURE_TOLERANCE


@pytest.mark.parametrize(("mels", "seconds"), [(128, 30), (80, 3)])
def test_other_extractors(mels: int, seconds: int) -> None:
    from transformers import WhisperFeatureExtractor

    other = WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    for samples in (5_000, seconds * 16_000 - 100, seconds * 16_000):
        assert agree(other, tone(samples / 16_000))[0] <= FEATURE_TOLERANCE / 2
    with pytest.raises(AudioError, match="over the model's window") as caught:
        extract_features(other, np.zeros(seconds * 16_000 + 1, np.float32))
    assert caught.value.reason == "too_long_audio"


def test_real_speech_from_a_stereo_file(extractor) -> None:
    path = SHARED_DATA / "jfk" / "jfk.flac"
    if not path.is_file():
        pytest.skip(f"{path} is not here: the project's shared test data is absent")
    audio = read_audio(path)
    assert audio.shape == (176_000,)
    difference, features = agree(extractor, audio)
    assert difference <= FEATURE_TOLERANCE / 2
    assert features.nbytes < 0.19 * 80 * 3000 * 4  # 11 of 30 seconds, at half the size of float32


def test_a_batch_has_each_clip_in_its_row(extractor) -> None:
    pairs = [extract_features(extractor, tone(seconds)) for seconds in (0.2, 1.0, 0.5)]
    batch = pad_features([features for features, _ in pairs], [fill for _, fill in pairs], 3000)
    assert batch.shape == (3, 80, 3000)
    for row, (features, fill) in zip(batch.numpy(), pairs, strict=True):
        frames = features.shape[1]
        assert np.array_equal(row[:, :frames], features.astype(np.float32))
        assert np.all(row[:, frames:] == np.float32(fill))


def test_settings_tell_extractors_apart() -> None:
    from transformers import WhisperFeatureExtractor

    settings = [
        extractor_settings(WhisperFeatureExtractor(**options))
        for options in ({}, {"feature_size": 128}, {"chunk_length": 10}, {"n_fft": 512}, {"dither": 1e-5})
    ]
    assert all(first != second for at, first in enumerate(settings) for second in settings[:at])
    assert settings[0] == extractor_settings(WhisperFeatureExtractor())
