"""Computing the features of a data set, in parallel, into files that are mapped into memory later."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.audio import SAMPLE_RATE, AudioError, read_audio
from trainer.data.clips import Clip, ClipTable
from trainer.data.features import extract_features, window_seconds
from trainer.errors import DataError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    import numpy as np
    from transformers import WhisperFeatureExtractor

CODE_VERSION = 1
"""Part of the cache's key: raise it whenever the same clip would give other features or another layout."""

_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""
_CHUNK = 8
"""Clips handed to a worker at a time."""

#: Of one clip: features, fill and seconds, or the reason and detail of its drop.
_Outcome: TypeAlias = "tuple[np.ndarray, float, float] | tuple[str, str]"
_Compute: TypeAlias = Callable[[Sequence[Clip]], Iterator[_Outcome]]


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

    count = workers if workers is not None else _cores()
    count = 1 if table.total <= _SMALL and workers is None else max(1, count)
    drops: list[dict[str, str]] = []
    done = 0
    with _computing(extractor, count) as outcomes:
        for role, clips in table.splits.items():
            index: dict[str, list[Any]] = {
                name: [] for name in ("offset", "frames", "fill", "seconds", "name", "text")
            }
            offset = 0
            with (folder / f"{role}.f16").open("wb") as file:
                for clip, outcome in zip(clips, outcomes(clips), strict=True):
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


def _cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def _computing(extractor: WhisperFeatureExtractor, workers: int) -> Iterator[_Compute]:
    """What runs clips through the extractor, in this process or in several; outcomes keep their order."""
    import torch

    if workers == 1:
        threads = torch.get_num_threads()
        # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
        torch.set_num_threads(1)
        try:
            yield lambda clips: (_compute(extractor, _source(clip)) for clip in clips)
        finally:
            torch.set_num_threads(threads)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # A forked copy of a process that has run torch may wait for ever for a lock of a thread that it has not.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, _start_worker, (extractor,))
    try:
        yield lambda clips: _compute_in_pool(pool, clips, in_flight=3 * workers)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compute_in_pool(pool: ProcessPoolExecutor, clips: Sequence[Clip], in_flight: int) -> Iterator[_Outcome]:
    from concurrent.futures.process import BrokenProcessPool

    # So many chunks wait at a time, so that audio is not all read into memory ahead of the work.
    waiting: deque[Future[list[_Outcome]]] = deque()
    try:
        for first in range(0, len(clips), _CHUNK):
            chunk = [_source(clip) for clip in clips[first : first + _CHUNK]]
            waiting.append(pool.submit(_compute_chunk, chunk))
            if len(waiting) >= in_flight:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that computes features died, most likely for lack of memory; free some and run again"
        ) from error


def _source(clip: Clip) -> str | bytes | AudioError:
    """Path or content of the audio. Embedded audio may itself name a file that is not there."""
    source = clip.source()
    return source or AudioError("unreadable_audio", "no audio is given")


def _compute(extractor: WhisperFeatureExtractor, source: str | bytes | AudioError) -> _Outcome:
    try:
        if isinstance(source, AudioError):
            raise source
        audio = read_audio(source, max_seconds=window_seconds(extractor))
        features, fill = extract_features(extractor, audio)
    except AudioError as error:
        return error.reason, str(error)
    return features, fill, len(audio) / SAMPLE_RATE


_worker_extractor: WhisperFeatureExtractor


def _start_worker(extractor: WhisperFeatureExtractor) -> None:
    import torch

    global _worker_extractor  # noqa: PLW0603 - sent once to each process, not with every chunk
    _worker_extractor = extractor
    # The processes share the cores already; threads of each on top would only be in each other's way.
    torch.set_num_threads(1)


def _compute_chunk(sources: list[str | bytes | AudioError]) -> list[_Outcome]:
    return [_compute(_worker_extractor, source) for source in sources]
