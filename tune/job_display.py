"""How jobs are shown: to people, and to programs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tune.display import clock
from tune.job_records import job_name, job_state

if TYPE_CHECKING:
    from ray.job_submission import JobDetails


def job_table(jobs: Sequence[JobDetails]) -> Table:
    """One line for each job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "state", "started", "took", "what"):
        table.add_column(column, overflow="fold")
    for job in jobs:
        known = job.metadata or {}
        what = ", ".join(known[key] for key in ("command", "space", "config") if known.get(key))
        cells = (
            job_name(job),
            job_state(job),
            _moment(job.start_time),
            _took(job),
            what or job.entrypoint or "",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def as_dict(job: JobDetails) -> dict[str, Any]:
    """A job for programs; names and meaning stay as they are."""
    return {
        "job": job.submission_id,
        "name": job_name(job),
        "state": job_state(job),
        "started": _iso(job.start_time),
        "ended": _iso(job.end_time),
        "exit_code": getattr(job, "driver_exit_code", None),
        "entrypoint": job.entrypoint,
        "message": job.message,
        "metadata": job.metadata or {},
    }


def _iso(milliseconds: int | None) -> str | None:
    if not milliseconds:
        return None
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc).isoformat(
        timespec="seconds"
    )


def _moment(milliseconds: int | None) -> str:
    if not milliseconds:
        return ""
    return f"{datetime.datetime.fromtimestamp(milliseconds / 1000):%Y-%m-%d %H:%M:%S}"


def _took(job: JobDetails) -> str:
    if not job.start_time:
        return ""
    end = job.end_time / 1000 if job.end_time else datetime.datetime.now().timestamp()
    return clock(max(0.0, end - job.start_time / 1000))


def state_and_times(job: JobDetails) -> str:
    """A job's state, since when, and how long it took or has taken: `running since ... (03:25)`."""
    since = (
        f"{_moment(job.end_time)} after {_took(job)}" if job.end_time else f"since {_moment(job.start_time)}"
    )
    return f"{job_state(job)} {since}" + ("" if job.end_time else f" ({_took(job)})")
