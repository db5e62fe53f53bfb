"""Work on the audio of many clips: in this process, or in several that are handed a few clips, or a recording, each."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from trainer.data.audio import AudioError, AudioSource, DecodedAudio, decode_each
from trainer.data.clip import Clip
from trainer.errors import DataError

OutcomeT = TypeVar("OutcomeT")

_CHUNK, _PARTS = 8, 500
"""Files, and parts of one recording, handed to a process at a time: a longer recording is decoded more than once."""


def over_clips(
    compute: Callable[[AudioSource, DecodedAudio | AudioError], OutcomeT],
    clips: Sequence[Clip],
    *,
    max_seconds: float,
    doing: str,
    small: int,
    workers: int | None = None,
) -> Generator[OutcomeT, None, None]:
    """What comes of every clip's audio, in the clips' order; close it where it is not read to its end.

    Args:
        compute: is given where a clip's audio is, and what was decoded, or why nothing was.
        clips: of any splits.
        max_seconds: longest clip wanted.
        doing: what a process does, for the error: `computes features`.
        small: clips up to which there is little to do: other processes take some seconds to start.
        workers: how many processes; by default one for each core, or this one alone where there is little to do.

    Raises:
        DataError: a process died.
    """
    size = workers or (1 if len(clips) <= small else _cores())
    if size == 1:
        for source, decoded in decode_each((clip.source() for clip in clips), max_seconds=max_seconds):
            yield compute(source, decoded)
        return
    # A forked copy of a process that has run torch may wait for ever for a lock of a thread that it has not.
    pool = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _begin)
    # So many chunks wait at a time, so that audio is not all read into memory ahead of the work.
    waiting: deque[Future[list[OutcomeT]]] = deque()
    try:
        for sources in _jobs(clip.source() for clip in clips):
            waiting.append(pool.submit(_run, compute, max_seconds, sources))
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
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python's own check reads it
        raise DataError('a script needs `if __name__ == "__main__":` above what trains: processes import it')


def _jobs(sources: Iterable[AudioSource]) -> Iterator[list[AudioSource]]:
    """A few files each, or parts of one."""
    recordings = itertools.groupby(sources, lambda each: (each.file, each.channel) if each.span else None)
    for recording, group in recordings:
        while job := list(itertools.islice(group, _PARTS if recording else _CHUNK)):
            yield job


def _begin() -> None:
    """First in every other process: it ends with the one that it works for, also where that is killed.

    It would wait for work for ever, for each of them holds the pipe open on which the others would see the end.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(
    compute: Callable[[AudioSource, DecodedAudio | AudioError], OutcomeT],
    max_seconds: float,
    sources: list[AudioSource],
) -> list[OutcomeT]:
    return [compute(source, decoded) for source, decoded in decode_each(sources, max_seconds=max_seconds)]


def _cores() -> int:
    """Cores that this process may use, fewer than the machine has inside a container or a job."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
