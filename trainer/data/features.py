"""Log-mel features as Whisper hears them: computed without the padding, and padded back to the same numbers.

The feature extractor of Whisper fills every clip with silence up to its window (30 s), which makes 0.96 MB of
float32 of a clip of any length. Silence is one constant per clip, so it is kept as a number (`fill`), not as
frames. Those of a data set are computed in parallel, into files that are mapped into memory later.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.audio import SAMPLE_RATE, AudioError, hear
from trainer.data.clips import ClipTable
from trainer.data.grouping import audio_key
from trainer.data.parallel import Source, over_clips
from trainer.threads import one_torch_thread

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import WhisperFeatureExtractor

FEATURE_TOLERANCE = 1e-3
"""Largest difference of padded-back features from the extractor's float32: float16's rounding up to 4."""


def window_seconds(extractor: WhisperFeatureExtractor) -> float:
    """Longest clip that the model hears, in seconds."""
    return float(extractor.n_samples / SAMPLE_RATE)


def extract_features(extractor: WhisperFeatureExtractor, audio: np.ndarray) -> tuple[np.ndarray, float]:
    """Features of one clip without the silence that fills the window.

    Args:
        extractor: the model's own.
        audio: float32 (samples,), 16 kHz mono.

    Returns:
        float16 (n_mels, frames), where frames x hop is a little more than the clip, and the constant that
        all later frames of the window have.

    Raises:
        AudioError: the clip is longer than the window.
    """
    import numpy as np

    if len(audio) > extractor.n_samples:
        raise AudioError(
            "too_long_audio",
            f"{len(audio) / SAMPLE_RATE:.2f} s, over the model's window of {window_seconds(extractor):g} s",
        )
    # A frame sees n_fft / 2 samples to either side of its centre. With that much silence behind the clip,
    # rounded up to whole frames, every frame left out sees silence only, and none that is kept sees the clip
    # mirrored at its end (the transform pads by reflection) that it would not see in the full window.
    hop = extractor.hop_length
    length = min(extractor.n_samples, -(-(len(audio) + extractor.n_fft // 2) // hop) * hop)
    # The extractor warns where the rate is not given; `max_length` makes it pad to our length instead of its
    # window.
    features = extractor(audio, sampling_rate=SAMPLE_RATE, max_length=length, return_tensors="np")[
        "input_features"
    ][0]
    # The extractor lifts everything to 8 below the loudest (in log10, before its (x + 4) / 4), and log10 of
    # silence is -10: in its scale 2 below the largest feature, and never under -1.5.
    fill = max(float(features.max()) - 2.0, -1.5)
    return features.astype(np.float16), fill


def pad_features(arrays: Sequence[np.ndarray], fills: Sequence[float], n_frames: int) -> torch.Tensor:
    """A batch as the model takes it: each clip's features, then its constant up to the window.

    Args:
        arrays: one (n_mels, frames) per clip, frames at most `n_frames`.
        fills: the constant of each clip.
        n_frames: frames of the window (`extractor.nb_max_frames`, 3000 for Whisper).

    Returns:
        float32 tensor (batch, n_mels, n_frames), within `FEATURE_TOLERANCE` of the extractor's own.
    """
    import numpy as np
    import torch

    batch = np.empty((len(arrays), arrays[0].shape[0], n_frames), dtype=np.float32)
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


CODE_VERSION = 3
"""Part of the cache's key: raise it whenever the same clip would give other features or another layout."""

_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""

#: Of one clip: features, fill, seconds, key of its audio, whether channels cancel each other; or why it is dropped.
_Outcome: TypeAlias = "tuple[np.ndarray, float, float, int, bool] | tuple[str, str]"


def build_features(
    folder: Path,
    *,
    table: ClipTable,
    extractor: WhisperFeatureExtractor,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Write the features of all clips into `folder`.

    For each split `<split>.f16` holds (n_mels, frames) float16 of one clip after the other, and
    `<split>.index.parquet` where each begins, its frames, fill, seconds, name, text and the key of
    its audio.

    Returns:
        The manifest: splits, number of mel bands, clips in all, those dropped, and how many have channels that cancel
        each other.

    Raises:
        DataError: a worker process died.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    outcomes = over_clips(
        functools.partial(_compute, extractor),
        [clip for clips in table.splits.values() for clip in clips],
        doing="computes features",
        workers=workers,
        small=_SMALL,
        start=_use_one_thread,
    )
    drops: list[dict[str, str]] = []
    done = cancelled = 0
    # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
    with one_torch_thread(), contextlib.closing(outcomes):
        for role, clips in table.splits.items():
            index: dict[str, list[Any]] = {
                name: [] for name in ("offset", "frames", "fill", "seconds", "name", "text", "audio")
            }
            offset = 0
            with (folder / f"{role}.f16").open("wb") as file:
                for clip, outcome in zip(clips, outcomes, strict=False):
                    done += 1
                    if len(outcome) == 2:
                        drops.append(
                            {"split": role, "name": clip.name, "reason": outcome[0], "detail": outcome[1]}
                        )
                    else:
                        features, fill, seconds, audio, cancels = outcome
                        cancelled += cancels
                        file.write(features.tobytes())
                        row = (offset, features.shape[1], fill, seconds, clip.name, clip.text, audio)
                        for values, value in zip(index.values(), row, strict=True):
                            values.append(value)
                        offset += features.size
                    if on_progress is not None:
                        on_progress(done, table.total)
            pq.write_table(pa.table(index, schema=_index_schema()), folder / f"{role}.index.parquet")
    splits = {role: len(clips) for role, clips in table.splits.items()}
    counts = {"total": table.total, "cancelled": cancelled}
    return {"splits": splits, "n_mels": int(extractor.feature_size), "drops": drops} | counts


def _index_schema() -> Any:
    import pyarrow as pa

    types = {"offset": pa.int64(), "frames": pa.int32(), "fill": pa.float32(), "seconds": pa.float32()}
    return pa.schema([*types.items(), ("name", pa.string()), ("text", pa.string()), ("audio", pa.uint64())])


def _compute(extractor: WhisperFeatureExtractor, source: Source) -> _Outcome:
    try:
        if isinstance(source, AudioError):
            raise source
        heard = hear(source, max_seconds=window_seconds(extractor))
        features, fill = extract_features(extractor, heard.samples)
    except AudioError as error:
        return error.reason, str(error)
    return features, fill, len(heard.samples) / SAMPLE_RATE, audio_key(source), heard.cancelled


def _use_one_thread() -> None:
    """The processes share the cores already; threads of each on top would only be in each other's way."""
    import torch

    torch.set_num_threads(1)
