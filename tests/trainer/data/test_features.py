"""Features kept without padding are, padded back, what Hugging Face's extractor gives."""

from __future__ import annotations

import numpy as np
import pytest
from make_data import tone

from trainer.data.audio import AudioError
from trainer.data.features import FEATURE_TOLERANCE, extract_features, extractor_settings, pad_features

WINDOW = 480_000


@pytest.fixture(scope="module")
def extractor():
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()


def difference(extractor, audio: np.ndarray) -> float:
    """Largest difference from the extractor's own padded features."""
    full = extractor(audio, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    features, fill = extract_features(extractor, audio)
    frames = features.shape[1]
    assert features.dtype == np.float16
    assert frames <= len(audio) // 160 + 3
    # In a batch with one that is shorter.
    short, short_fill = extract_features(extractor, tone(0.2))
    padded = pad_features([short, features], [short_fill, fill], extractor.nb_max_frames)[1].numpy()
    assert padded.shape == full.shape == (extractor.feature_size, extractor.nb_max_frames)
    assert padded.dtype == np.float32
    # What was left out is no rounding matter: it is the constant itself.
    assert np.abs(padded[:, frames:] - full[:, frames:]).max(initial=0) < 1e-6
    return float(np.abs(padded - full).max())


@pytest.mark.parametrize(
    "samples",
    [
        *(1, 159, 160, 161, 399, 400, 16_001),
        *(WINDOW - less for less in (401, 400, 201, 200, 1, 0)),
    ],
)
def test_padded_back_equals_the_extractor(extractor, samples: int) -> None:
    audio = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
    # Below 2 in size float16 rounds to half of the bound.
    assert difference(extractor, audio) <= FEATURE_TOLERANCE / 2


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
    assert difference(extractor, audio) <= FEATURE_TOLERANCE


@pytest.mark.parametrize(("mels", "seconds"), [(128, 30), (80, 3)])
def test_other_extractors(extractor, mels: int, seconds: int) -> None:
    from transformers import WhisperFeatureExtractor

    other = WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    for samples in (5_000, seconds * 16_000 - 100, seconds * 16_000):
        assert difference(other, tone(samples / 16_000)) <= FEATURE_TOLERANCE / 2
    with pytest.raises(AudioError, match="over the model's window") as caught:
        extract_features(other, np.zeros(seconds * 16_000 + 1, np.float32))
    assert caught.value.reason == "too_long_audio"
    assert extractor_settings(other) != extractor_settings(extractor)
