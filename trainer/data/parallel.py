"""Work on the audio of many clips: in this process, or in several that are handed a few clips at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from trainer.data.audio import AudioError
from trainer.data.clips import Clip
from trainer.errors import DataError

if TYPE_CHECKING:
    from concurrent.futures import Future

OutcomeT = TypeVar("OutcomeT")

#: Path or content of a clip's audio, or why there is none.
Source: TypeAlias = "str | bytes | AudioError"

_CHUNK = 8
"""Clips handed to a process at a time."""


def over_clips(
    compute: Callable[[Source], OutcomeT],
    clips: Sequence[Clip],
    *,
    doing: str,
    workers: int | None,
    small: int,
    start: Callable[[], None] | None = None,
) -> Generator[OutcomeT, None, None]:
    """What comes of every clip's audio, in the clips' order; close it where it is not read to its end.

    Args:
        compute: what is done with one.
        clips: of any splits.
        doing: the same in words, for the error: `computes features`.
        workers: processes; `None`: one for each core that this process may use.
        small: clips up to which `None` is this process alone: others take some seconds to start.
        start: called first in every other process.

    Raises:
        DataError: a process died.
    """
    count = (1 if len(clips) <= small else _cores()) if workers is None else workers
    if count <= 1:
        yield from (compute(_source(clip)) for clip in clips)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # A forked copy of a process that has run torch may wait for ever for a lock of a thread that it has not.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), start)
    # So many chunks wait at a time, so that audio is not all read into memory ahead of the work.
    waiting: deque[Future[list[OutcomeT]]] = deque()
    try:
        for first in range(0, len(clips), _CHUNK):
            sources = [_source(clip) for clip in clips[first : first + _CHUNK]]
            waiting.append(pool.submit(_compute_all, compute, sources))
            if len(waiting) >= 3 * count:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            f"a process that {doing} died, most likely for lack of memory; free some and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _compute_all(compute: Callable[[Source], OutcomeT], sources: list[Source]) -> list[OutcomeT]:
    return [compute(source) for source in sources]


def _source(clip: Clip) -> Source:
    """Path or content of the audio. Embedded audio may itself name a file that is not there."""
    return clip.source() or AudioError("unreadable_audio", "no audio is given")


def _cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
