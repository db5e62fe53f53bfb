"""Work on the audio of many clips: in this process, or in several that are handed a few clips, or a recording, each."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

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


@dataclasses.dataclass(frozen=True)
class Task(Generic[OutcomeT]):
    """What each process does with the clips that it is handed."""

    compute: Work[OutcomeT]
    """With one."""
    max_seconds: float | None = None
    """Longest clip wanted."""
    start: Callable[[], None] | None = None
    """Called first in every process but the one that asks."""

    def run(self, sources: Iterable[AudioSource]) -> Iterator[OutcomeT]:
        """What comes of each."""
        heard = hear_each(sources, max_seconds=self.max_seconds)
        return (self.compute(source, found) for source, found in heard)


def over_clips(
    task: Task[OutcomeT], clips: Sequence[Clip], *, doing: str, workers: int | None, small: int
) -> Generator[OutcomeT, None, None]:
    """What comes of every clip's audio, in the clips' order; close it where it is not read to its end.

    Args:
        task: what is done with one.
        clips: of any splits.
        doing: the same in words, for the error: `computes features`.
        workers: how many processes; by default one for each core, or this one alone where there is little to do.
        small: clips up to which there is little to do: other processes take some seconds to start.

    Raises:
        DataError: a process died.
    """
    alone = workers <= 1 if isinstance(workers, int) else len(clips) <= small
    if alone or (workers is None and cores() == 1):
        yield from task.run(clip.source() for clip in clips)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    size = workers or cores()
    # A forked copy of a process that has run torch may wait for ever for a lock of a thread that it has not.
    pool = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _begin, (task.start,))
    # So many chunks wait at a time, so that audio is not all read into memory ahead of the work.
    waiting: deque[Future[list[OutcomeT]]] = deque()
    try:
        for sources in _jobs(clip.source() for clip in clips):
            waiting.append(pool.submit(_run, task, sources))
            # What comes of a recording is large.
            if len(waiting) > (size if len(sources) > _CHUNK else 3 * size):
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            f"a process that {doing} died, most likely for lack of memory; free some and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check_main_guard() -> None:
    """Refuse to work in a process of ours that still imports the script which has started it, and waits for it.

    Raises:
        DataError: the script has no main guard.
    """
    import multiprocessing

    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python's own check reads it
        raise DataError('a script needs `if __name__ == "__main__":` above what trains: processes import it')


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


def _run(task: Task[OutcomeT], sources: list[AudioSource]) -> list[OutcomeT]:
    return list(task.run(sources))


def cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
