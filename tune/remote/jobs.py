"""Jobs of a Ray cluster: sending one, and finding, following and stopping those that were sent."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tune.remote.client import JobError, cluster_errors

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_PREFIX = "tune-whisper-"
"""Submission ids of our jobs: this and the job's name."""
ENTRYPOINT = "python -m tune.job_driver "
"""Before the arguments, what a job runs."""
_STOP_SECONDS = 60
"""Time that a search gets to end cleanly once it is stopped; Ray's own 3 s would cut off its last writes."""
_LOST_SECONDS = 120.0
"""A cluster that does not answer for so long is given up."""
_LONGEST_PAUSE = 10.0
"""Seconds between two looks at a log that is followed."""
ENVIRONMENT = {
    # From SIGTERM to SIGKILL when the job is stopped.
    "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS),
    # A variable that the search sets for its workers goes before the same one of the job; Ray would refuse both.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}


def send(
    client: JobSubmissionClient,
    name: str,
    words: Sequence[str],
    folder: Path,
    requirements: Sequence[str],
    environment: Mapping[str, str],
) -> str:
    """Submit, with no CPU and no GPU for the driver, so that a head with none of either takes it.

    Args:
        name: of the job: the experiment's.
        words: the arguments of `tune-whisper` there.
        folder: becomes the job's working directory.
        requirements: what pip installs there first.

    Returns:
        The submission id: the name, with a number where it was used before, since Ray never takes one twice.

    Raises:
        JobError: the cluster does not take it, or a job of this name is waiting or running.
    """
    jobs = list_jobs(client)
    for job in jobs:
        if job_name(job) == name and not job.status.is_terminal():
            raise JobError(
                f"{name}: a job of this name is {job_state(job)} on the cluster; choose another name, or stop it "
                f"with tune-whisper stop {name}"
            )
    used = {job.submission_id for job in jobs}
    ids = itertools.chain([_PREFIX + name], (f"{_PREFIX}{name}-{number}" for number in itertools.count(2)))
    with cluster_errors(client.get_address()):
        sent = client.submit_job(
            entrypoint=ENTRYPOINT + shlex.join(words),
            submission_id=next(each for each in ids if each not in used),
            runtime_env={
                "working_dir": str(folder),
                "env_vars": {**environment, **ENVIRONMENT},
                **({"pip": list(requirements)} if requirements else {}),
            },
            metadata={"name": name},
            entrypoint_num_cpus=0,
            entrypoint_num_gpus=0,
        )
    return str(sent)


def list_jobs(client: JobSubmissionClient, *, everyone: bool = False) -> list[JobDetails]:
    """Jobs that were sent by `tune-whisper submit` (`everyone`: all submitted jobs), the newest first."""
    with cluster_errors(client.get_address()):
        jobs = [
            job
            for job in client.list_jobs()
            if job.submission_id and (everyone or job.submission_id.startswith(_PREFIX))
        ]
    return sorted(jobs, key=lambda job: job.start_time or 0, reverse=True)


def find_job(client: JobSubmissionClient, name: str) -> JobDetails:
    """The newest job with this name, or the one with this submission id; raises `JobError` where there is none."""
    for job in list_jobs(client, everyone=True):
        if name in (job_name(job), job.submission_id):
            return job
    raise JobError(f"{name}: the cluster has no such job; tune-whisper list --all shows all")


def job_name(job: JobDetails) -> str:
    """The name that a job was given; the submission id of others' jobs."""
    return str((job.metadata or {}).get("name") or job.submission_id)


def job_state(job: JobDetails) -> str:
    """`pending`, `running`, `succeeded`, `failed` or `stopped`."""
    return str(job.status.value).lower()


def stop_job(client: JobSubmissionClient, submission_id: str) -> JobDetails:
    """Ask a job to end and wait until it has, at most a minute, after which it is killed; the job as it is then."""
    deadline = time.monotonic() + _STOP_SECONDS + 30
    with cluster_errors(client.get_address()):
        client.stop_job(submission_id)
        while not (job := client.get_job_info(submission_id)).status.is_terminal():
            if time.monotonic() > deadline:
                raise JobError(f"{submission_id}: was asked to stop and is still {job_state(job)}; ask again")
            time.sleep(0.5)
    return job


def follow_logs(client: JobSubmissionClient, submission_id: str, write: Callable[[str], None]) -> JobDetails:
    """Give `write` what the job prints until it ends, each character once; the job as it ended.

    Asked for again and again, not streamed: a connection that a sleeping laptop or a proxy lost without a word needs no
    care then. About a tenth of the time goes into asking, so that long logs do not fill the line.

    Raises:
        JobError: the cluster has not answered for two minutes.
    """
    written, answered = 0, time.monotonic()
    while True:
        asked = time.monotonic()
        try:
            with cluster_errors(client.get_address()):
                job = client.get_job_info(submission_id)  # first: the log is whole if it had ended
                text = client.get_job_logs(submission_id)
        except JobError:
            if time.monotonic() - answered > _LOST_SECONDS:
                raise
            time.sleep(5)
            continue
        answered = time.monotonic()
        if text[written:]:
            write(text[written:])
            written = len(text)
        if job.status.is_terminal():
            return job
        time.sleep(min(_LONGEST_PAUSE, max(1.0, 10 * (answered - asked))))
