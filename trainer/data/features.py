"""Log-mel features as Whisper hears them: computed without the padding, and padded back to the same numbers.

The feature extractor of Whisper fills every clip with silence up to its window (30 s), which makes 0.96 MB of
float32 of a clip of any length. Silence is one constant per clip, so it is kept as a number (`fill`), not as
frames.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.data.audio import SAMPLE_RATE, refuse_long
from trainer.model.processor import window_seconds

if TYPE_CHECKING:
    import torch
    from transformers import WhisperFeatureExtractor


def count_frames(extractor: WhisperFeatureExtractor, samples: int) -> int:
    """Feature frames of a clip of so many samples.

    A frame sees n_fft / 2 samples to either side of its centre. With that much silence behind the clip, rounded up to
    whole frames, every frame left out sees silence only, and none that is kept sees the clip mirrored at its end (the
    transform pads by reflection) that it would not see in the full window.
    """
    hop = extractor.hop_length
    return int(min(extractor.n_samples // hop, -(-(samples + extractor.n_fft // 2) // hop)))


def extract_features(extractor: WhisperFeatureExtractor, audio: np.ndarray) -> tuple[np.ndarray, float]:
    """Features of one clip without the silence that fills the window.

    Returns:
        float16 (n_mels, frames), with the frames that `count_frames` says, and the constant that all later frames of
        the window have.

    Raises:
        AudioError: the clip is longer than the window.
    """
    refuse_long(len(audio) / SAMPLE_RATE, window_seconds(extractor))
    length = count_frames(extractor, len(audio)) * extractor.hop_length
    # The extractor warns where the rate is not given; `max_length` makes it pad to our length instead of its
    # window.
    features = extractor(audio, sampling_rate=SAMPLE_RATE, max_length=length, return_tensors="np")[
        "input_features"
    ][0]
    # The extractor lifts everything to 8 below the loudest (in log10, before its (x + 4) / 4), and log10 of
    # silence is -10: in its scale 2 below the largest feature, and never under -1.5.
    fill = max(float(features.max()) - 2.0, -1.5)
    return features.astype(np.float16), fill


def pad_features(
    arrays: Sequence[np.ndarray], fills: Sequence[float], n_frames: int, *, half: bool = False
) -> torch.Tensor:
    """A batch as the model takes it: each clip's features, then its constant up to the window.

    Args:
        arrays: one (n_mels, frames) per clip, frames at most `n_frames`.
        fills: the constant of each clip.
        n_frames: frames of the window (`extractor.nb_max_frames`, 3000 for Whisper).
        half: as float16, in which features are stored: half the bytes to copy to a GPU, which can widen them.

    Returns:
        float32 or float16 tensor (batch, n_mels, n_frames), within 1e-3 of the extractor's own: float16's
        rounding up to 4.
    """
    import torch

    kind = np.float16 if half else np.float32
    batch = np.empty((len(arrays), arrays[0].shape[0], n_frames), dtype=kind)
    for row, (array, fill) in enumerate(zip(arrays, fills, strict=True)):
        frames = array.shape[1]
        batch[row, :, :frames] = array
        batch[row, :, frames:] = fill
    return torch.from_numpy(batch)


def extractor_settings(extractor: WhisperFeatureExtractor) -> dict[str, Any]:
    """Everything of the extractor that shapes features, as plain values for the key of the cache."""
    names = ("feature_size", "hop_length", "n_fft", "n_samples", "sampling_rate", "padding_value", "dither")
    settings = {name: getattr(extractor, name) for name in names}
    return settings | {"mel_filters": hashlib.sha256(extractor.mel_filters.tobytes()).hexdigest()}
