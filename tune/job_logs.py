"""The output of a job: once, or as it comes until the job ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from tune.job_records import ENDED, job_state
from tune.remote.client import JobError, cluster_errors

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_LOOK_SECONDS = 30.0
"""A connection that a sleeping laptop or a proxy lost without a word is noticed after this time."""
_LOST_SECONDS = 120.0
"""A cluster that does not answer for so long is given up."""


def read_logs(client: JobSubmissionClient, submission_id: str) -> str:
    """All that a job has printed so far; raises `JobError`."""
    with cluster_errors(client.get_address()):
        return str(client.get_job_logs(submission_id))


def follow_logs(client: JobSubmissionClient, submission_id: str, write: Callable[[str], None]) -> JobDetails:
    """Give `write` what the job prints until it ends, over lost connections, each character once.

    Returns:
        The job as it ended.

    Raises:
        JobError: the cluster does not answer any more.
    """
    written = 0
    answered = time.monotonic()
    while True:
        written = asyncio.run(_tail(client, submission_id, write, written))
        try:
            with cluster_errors(client.get_address()):
                job = client.get_job_info(submission_id)
        except JobError:
            if time.monotonic() - answered > _LOST_SECONDS:
                raise
            time.sleep(5)
            continue
        answered = time.monotonic()
        if job_state(job) in ENDED:
            # The connection may have been lost before the last lines, which are known now.
            rest = read_logs(client, submission_id)[written:]
            if rest:
                write(rest)
            return job
        time.sleep(1)


async def _tail(
    client: JobSubmissionClient, submission_id: str, write: Callable[[str], None], written: int
) -> int:
    """Follow one connection to its end; it begins with all that was printed, of which `written` is known."""
    seen = 0
    stream = client.tail_job_logs(submission_id)
    while True:
        text = await _next_text(client, submission_id, stream)
        if text is None:
            return written
        write(text[max(0, written - seen) :])
        seen += len(text)
        written = max(written, seen)


async def _next_text(
    client: JobSubmissionClient, submission_id: str, stream: AsyncIterator[str]
) -> str | None:
    """What is printed next; None at the end of the connection, told or lost: the job's own state tells which."""
    import aiohttp

    coming: asyncio.Future[str] = asyncio.ensure_future(anext(stream))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=_LOOK_SECONDS)
            if done:
                return coming.result()
            if await asyncio.to_thread(_has_ended, client, submission_id):
                return None
    except (StopAsyncIteration, aiohttp.ClientError, RuntimeError, OSError):
        return None
    finally:
        coming.cancel()


def _has_ended(client: JobSubmissionClient, submission_id: str) -> bool:
    """Whether there is no more to come, also because the cluster is gone."""
    try:
        with cluster_errors(client.get_address()):
            return job_state(client.get_job_info(submission_id)) in ENDED
    except JobError:
        return True
