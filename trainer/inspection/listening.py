"""Listening to many clips: in several processes, in order, with no more audio in memory than is being worked on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.audio import AudioError
from trainer.data import Clip
from trainer.errors import DataError
from trainer.inspection.sound import Sound, Unusable, listen

if TYPE_CHECKING:
    from concurrent.futures import Future

_SMALL = 300
"""Up to so many clips are done in this process: others take a second to start."""
_CHUNK = 16
"""Clips handed to a process at a time."""


def listen_to(
    clips: Sequence[Clip], *, max_samples: int, workers: int | None = None
) -> Iterator[Sound | Unusable]:
    """What is heard in each clip, in their order.

    Args:
        clips: of any splits.
        max_samples: the model's window at 16 kHz.
        workers: processes; by default one for each core that this process may use, or this one alone for few clips.

    Raises:
        DataError: a process died.
    """
    count = workers or (1 if len(clips) <= _SMALL else _cores())
    if count == 1:
        for clip in clips:
            yield listen(_source(clip), max_samples=max_samples)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Forked processes would inherit locks of threads that they have not.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))
    waiting: deque[Future[list[Sound | Unusable]]] = deque()
    try:
        for first in range(0, len(clips), _CHUNK):
            sources = [_source(clip) for clip in clips[first : first + _CHUNK]]
            waiting.append(pool.submit(_listen_to_chunk, sources, max_samples))
            if len(waiting) >= 4 * count:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that listens to clips died, most likely for lack of memory; free some and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _listen_to_chunk(sources: list[str | bytes | AudioError], max_samples: int) -> list[Sound | Unusable]:
    return [listen(source, max_samples=max_samples) for source in sources]


def _source(clip: Clip) -> str | bytes | AudioError:
    """Path or content of the audio. Embedded audio may itself name a file that is not there."""
    return clip.source() or AudioError("unreadable_audio", "no audio is given")


def _cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
