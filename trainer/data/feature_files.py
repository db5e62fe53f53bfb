"""Computing the features of a data set, in parallel, into files that are mapped into memory later."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.audio import SAMPLE_RATE, AudioError, read_audio
from trainer.data.clips import ClipTable
from trainer.data.features import extract_features, window_seconds
from trainer.data.parallel import Source, one_torch_thread, over_clips

if TYPE_CHECKING:
    import numpy as np
    from transformers import WhisperFeatureExtractor

CODE_VERSION = 1
"""Part of the cache's key: raise it whenever the same clip would give other features or another layout."""

_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""

#: Of one clip: features, fill and seconds, or the reason and detail of its drop.
_Outcome: TypeAlias = "tuple[np.ndarray, float, float] | tuple[str, str]"


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
    `<split>.index.parquet` where each begins, its frames, fill, seconds, name and text.

    Returns:
        The manifest: splits, number of mel bands, clips in all and those dropped.

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
    done = 0
    # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
    with one_torch_thread(), contextlib.closing(outcomes):
        for role, clips in table.splits.items():
            index: dict[str, list[Any]] = {
                name: [] for name in ("offset", "frames", "fill", "seconds", "name", "text")
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
                        features, fill, seconds = outcome
                        file.write(features.tobytes())
                        row = (offset, features.shape[1], fill, seconds, clip.name, clip.text)
                        for values, value in zip(index.values(), row, strict=True):
                            values.append(value)
                        offset += features.size
                    if on_progress is not None:
                        on_progress(done, table.total)
            pq.write_table(pa.table(index, schema=_index_schema()), folder / f"{role}.index.parquet")
    splits = {role: len(clips) for role, clips in table.splits.items()}
    return {"splits": splits, "n_mels": int(extractor.feature_size), "total": table.total, "drops": drops}


def _index_schema() -> Any:
    import pyarrow as pa

    types = {"offset": pa.int64(), "frames": pa.int32(), "fill": pa.float32(), "seconds": pa.float32()}
    return pa.schema([*types.items(), ("name", pa.string()), ("text", pa.string())])


def _compute(extractor: WhisperFeatureExtractor, source: Source) -> _Outcome:
    try:
        if isinstance(source, AudioError):
            raise source
        audio = read_audio(source, max_seconds=window_seconds(extractor))
        features, fill = extract_features(extractor, audio)
    except AudioError as error:
        return error.reason, str(error)
    return features, fill, len(audio) / SAMPLE_RATE


def _use_one_thread() -> None:
    """The processes share the cores already; threads of each on top would only be in each other's way."""
    import torch

    torch.set_num_threads(1)
