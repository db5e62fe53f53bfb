"""The jobs that a cluster knows: finding, naming and stopping them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tune.remote.client import JobError, cluster_errors

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

PREFIX = "tune-whisper-"
"""Submission ids of our jobs: this and the job's name."""
STOP_SECONDS = 60
"""Time that a search gets to end cleanly once it is stopped; Ray's own 3 s would cut off its last writes."""
ENDED = ("succeeded", "failed", "stopped")
"""States after which nothing changes any more."""


def list_jobs(client: JobSubmissionClient, *, everyone: bool = False) -> list[JobDetails]:
    """Jobs that were sent by `tune-whisper submit` (`everyone`: all submitted jobs), the newest first."""
    with cluster_errors(client.get_address()):
        jobs = [job for job in client.list_jobs() if job.submission_id]
    ours = [job for job in jobs if everyone or is_ours(job)]
    return sorted(ours, key=lambda job: job.start_time or 0, reverse=True)


def is_ours(job: JobDetails) -> bool:
    """Whether `tune-whisper submit` sent the job."""
    return str(job.submission_id).startswith(PREFIX) or "tune_whisper" in (job.metadata or {})


def find_job(client: JobSubmissionClient, name: str) -> JobDetails:
    """The job with this submission id, else the newest with this name or experiment.

    Raises:
        JobError: there is none.
    """
    jobs = list_jobs(client, everyone=True)
    for job in jobs:
        if job.submission_id == name:
            return job
    for job in jobs:
        if is_ours(job) and (name == job_name(job) or name == (job.metadata or {}).get("experiment")):
            return job
    names = [job_name(job) for job in jobs if is_ours(job)][:5]
    known = f"the newest are {', '.join(names)}" if names else "it has none of ours"
    raise JobError(f"{name}: the cluster has no such job; {known} (tune-whisper list shows all)")


def job_name(job: JobDetails) -> str:
    """The name that a job was given; the submission id of others' jobs."""
    return str((job.metadata or {}).get("name") or job.submission_id)


def job_state(job: JobDetails) -> str:
    """`pending`, `running`, `succeeded`, `failed` or `stopped`."""
    return str(getattr(job.status, "value", job.status)).lower()


def stop_job(client: JobSubmissionClient, job: JobDetails, *, wait: float) -> JobDetails:
    """Ask a job to end, and wait until it has.

    Args:
        client: of the job's cluster.
        job: one of its jobs.
        wait: seconds to wait at most; the job gets `STOP_SECONDS` before it is killed.

    Returns:
        The job as it is then.

    Raises:
        JobError: it has not ended in time.
    """
    submission_id = str(job.submission_id)
    deadline = time.monotonic() + wait
    with cluster_errors(client.get_address()):
        client.stop_job(submission_id)
        while True:
            now = client.get_job_info(submission_id)
            if job_state(now) in ENDED:
                return now
            if time.monotonic() > deadline:
                raise JobError(
                    f"{submission_id}: was asked to stop {wait:.0f} s ago and is still {job_state(now)}; "
                    "ask again later with tune-whisper status"
                )
            time.sleep(0.5)


def free_submission_id(client: JobSubmissionClient, name: str) -> str:
    """A submission id for a job of this name: Ray never takes one twice, also not after a failure.

    Raises:
        JobError: a job of this name is waiting or running.
    """
    jobs = {str(job.submission_id): job for job in list_jobs(client, everyone=True)}
    for job in jobs.values():
        if job_name(job) == name and job_state(job) not in ENDED:
            raise JobError(
                f"{name}: a job of this name is {job_state(job)} on the cluster; choose another --experiment "
                f"or --name, or stop it with tune-whisper stop {name}"
            )
    wanted = PREFIX + name
    number = 1
    while wanted in jobs:
        number += 1
        wanted = f"{PREFIX}{name}-{number}"
    return wanted
