"""Work on the audio of many clips: in this process, or in several that are handed a few clips, or a recording, each."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from trainer.data.audio import AudioError, AudioSource, Heard, hear_each
from trainer.data.clips import Clip
from trainer.errors import DataError

if TYPE_CHECKING:
    from concurrent.futures import Future

OutcomeT = TypeVar("OutcomeT")

#: What is done with a clip: where its audio is, and what was heard, or why nothing was.
Work: TypeAlias = "Callable[[AudioSource, Heard | AudioError], OutcomeT]"

_CHUNK = 8
"""Clips handed to a process at a time."""
_LONGEST_JOB = 3600.0
"""Seconds of clips of one recording that are handed to a process: one that is longer is decoded once an hour."""


def over_clips(
    compute: Work[OutcomeT],
    clips: Sequence[Clip],
    *,
    doing: str,
    workers: int | None,
    small: int,
    max_seconds: float | None = None,
    start: Callable[[], None] | None = None,
) -> Generator[OutcomeT, None, None]:
    """What comes of every clip's audio, in the clips' order; close it where it is not read to its end.

    Args:
        compute: what is done with one.
        clips: of any splits.
        doing: the same in words, for the error: `computes features`.
        workers: processes; `None`: one for each core that this process may use.
        max_seconds: longest clip wanted.
        small: clips up to which `None` is this process alone: others take some seconds to start.
        start: called first in every other process.

    Raises:
        DataError: a process died.
    """
    count = (1 if len(clips) <= small else _cores()) if workers is None else workers
    if count <= 1:
        heard = hear_each((clip.source() for clip in clips), max_seconds=max_seconds)
        yield from (compute(source, found) for source, found in heard)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # A forked copy of a process that has run torch may wait for ever for a lock of a thread that it has not.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (start,))
    # So many chunks wait at a time, so that audio is not all read into memory ahead of the work.
    waiting: deque[Future[list[OutcomeT]]] = deque()
    try:
        for sources in _jobs(clip.source() for clip in clips):
            waiting.append(pool.submit(_compute_all, compute, sources, max_seconds))
            # What comes of a recording is large.
            if len(waiting) > (count if len(sources) > _CHUNK else 3 * count):
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            f"a process that {doing} died, most likely for lack of memory; free some and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _jobs(sources: Iterable[AudioSource]) -> Iterator[list[AudioSource]]:
    """A few files each, or the parts of one."""
    job: list[AudioSource] = []
    seconds = 0.0
    for source in sources:
        if job and source.is_part and (source.file, source.channel) == (job[0].file, job[0].channel):
            full = seconds >= _LONGEST_JOB
        else:
            full = len(job) >= _CHUNK or source.is_part or (bool(job) and job[0].is_part)
        if full and job:
            yield job
            job, seconds = [], 0.0
        job.append(source)
        seconds += (source.end or source.start) - source.start
    if job:
        yield job


def _begin(start: Callable[[], None] | None) -> None:
    """First in every other process: it ends with the one that it works for, also where that is killed.

    It would wait for work for ever, for each of them holds the pipe open on which the others would see the end.
    """
    import multiprocessing

    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if start is not None:
        start()


def _compute_all(
    compute: Work[OutcomeT], sources: list[AudioSource], max_seconds: float | None
) -> list[OutcomeT]:
    return [compute(source, found) for source, found in hear_each(sources, max_seconds=max_seconds)]


def _cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
