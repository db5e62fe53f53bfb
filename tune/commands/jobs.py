"""`tune-whisper submit`, `status`, `logs`, `stop` and `list`: searches as jobs of a Ray cluster."""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trainer.command import EXIT_FAILED, EXIT_INTERRUPTED
from trainer.errors import ConfigError
from tune.commands.job_request import read_request
from tune.commands.options import Parser, add_dashboard
from tune.remote import jobs as cluster_jobs
from tune.remote.client import (
    JobError,
    cluster_address,
    cluster_errors,
    cluster_versions,
    connect,
    version_difference,
)
from tune.remote.jobs import ENTRYPOINT, find_job, job_name, job_state
from tune.remote.package import check_environment, pinned_requirements, stage
from tune.remote.vertex import job_client
from tune.util.console import clock, make_console, say
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_SUBMIT_EPILOG = """\
These files are sent: the program itself, the files of --space, CONFIG and --deepspeed, and those given by --file. Not
sent are the current folder, data, models and environment variables. Secrets that a job needs (HF_TOKEN,
MLFLOW_TRACKING_PASSWORD, AWS_SECRET_ACCESS_KEY ...) must be in the environment of the cluster's nodes.

example:
  tune-whisper submit --address http://HEAD:8265 --follow -- search --space lr_batch --trials 32 --model small \\
    --language be --data google/fleurs --set data_config=be_by --storage s3://BUCKET/experiments
"""

_DESCRIPTIONS = {
    "submit": "Send a search (or a training: -- train ...) to a Ray cluster as a job; it goes on when this machine "
    "is switched off.",
    "status": "Show the state of a job.",
    "logs": "Show what a job has printed. With --follow the exit code is 0 if the job succeeded, else 1.",
    "stop": "Stop a job: the search ends cleanly, and its best trial so far can be exported.",
}


def job_parser(command: str) -> argparse.ArgumentParser:
    """Arguments of `tune-whisper COMMAND`; those of `submit` stand before `--`."""
    epilog = _SUBMIT_EPILOG if command == "submit" else None
    parser = Parser(prog=f"tune-whisper {command}", description=_DESCRIPTIONS[command], epilog=epilog)
    add_dashboard(parser)
    add = parser.add_argument
    if command == "submit":
        _add_sending(parser)
    else:
        add("job", metavar="JOB", help="experiment or submission id")
    if command == "status":
        add("--json", action="store_true", help="print JSON with the fields of Ray's JobDetails")
    elif command in ("submit", "logs"):
        add("--follow", action="store_true", help="show what the job prints until it ends")
    return parser


def _add_sending(parser: argparse.ArgumentParser) -> None:
    parser.usage = "tune-whisper submit [options] -- search ARGUMENTS"
    add = parser.add_argument
    file_help = "another file for the job's working directory; can be repeated"
    add("--file", type=Path, action="append", default=[], metavar="PATH", help=file_help)
    env_help = "an environment variable of the job, visible to all users of the cluster; can be repeated"
    add("--env", action="append", default=[], metavar="NAME=VALUE", help=env_help)
    add(
        "--no-install",
        action="store_true",
        help="install nothing, because the nodes have the packages (default: pip installs the versions of this "
        "machine; packages that a node already has are not downloaded again)",
    )
    add(
        "--allow-version-mismatch",
        action="store_true",
        help="send it even if the cluster has another version of Ray or Python",
    )


def connect_to(arguments: argparse.Namespace) -> JobSubmissionClient:
    """A client for the cluster that arguments of `add_dashboard` name."""
    address = cluster_address(arguments.address)
    if not address.startswith("vertex_ray://"):
        return connect(address)

    return job_client(address, arguments.project, arguments.location)


def submit(words: list[str]) -> int:
    cut = words.index("--") if "--" in words else len(words)
    if cut == len(words) and not {"-h", "--help"} & set(words):
        raise ConfigError(
            "submit: put -- before the command to send: tune-whisper submit --address URL -- search --space ..."
        )
    arguments = job_parser("submit").parse_args(words[:cut])

    environment = check_environment(arguments.env)
    request = read_request(words[cut + 1 :])
    address = hide_password(cluster_address(arguments.address))
    console = make_console()
    files = [*request.files, *arguments.file]
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as folder, console.status("checking ..."):
        requirements = [] if arguments.no_install else pinned_requirements(request.extras)
        stage(Path(folder), files)
        client = connect_to(arguments)
        difference = version_difference(*cluster_versions(client))
        if difference and not arguments.allow_version_mismatch:  # what is pinned here would not fit there
            raise JobError(
                f"--address {address}: {difference}; submit from an environment with the cluster's versions, or "
                "send it anyway with --allow-version-mismatch"
            )
        submission_id = cluster_jobs.send(
            client, request.name, request.words, Path(folder), requirements, environment
        )
    for note in request.notes:
        say(console, f"note: {note}")
    sent = ", ".join(["the program", *(path.name for path in files)])
    install = f"{len(requirements)} pinned packages to install" if requirements else "nothing to install"
    say(console, f"sent {submission_id} to {address}: {sent}; {install}")
    at = f" --address {hide_password(arguments.address)}" if arguments.address else ""
    say(console, f"follow  tune-whisper logs {request.name} --follow{at}    (or status, or stop)")
    storage = f"--storage {shlex.quote(request.storage)}"
    say(console, f"export  tune-whisper export {request.name} {storage} --output my-model")
    return _follow(client, submission_id, address) if arguments.follow else 0


def _follow(client: JobSubmissionClient, submission_id: str, address: str) -> int:
    """Show the output until the job ends; Ctrl-C ends the showing only."""
    try:
        job = cluster_jobs.follow_logs(client, submission_id, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        print(
            f"\nno longer following; the job goes on: tune-whisper logs {submission_id} --follow "
            f"--address {address}",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    print(_ended(job), file=sys.stderr)
    return 0 if job_state(job) == "succeeded" else EXIT_FAILED


def _ended(job: JobDetails) -> str:
    return f"{job.submission_id} {job_state(job)} after {_took(job)}"


def status(words: list[str]) -> int:
    arguments = job_parser("status").parse_args(words)
    job = find_job(connect_to(arguments), arguments.job)
    if arguments.json:
        print(_as_json(vars(job)))
        return 0
    console = make_console()
    console.print(_job_table([job]))
    if job_state(job) == "failed" and job.message:
        reason = hide_password(job.message).strip().partition("\n")[0]
        say(console, f"reason: {reason[:300]}; see tune-whisper logs {job_name(job)}")
    return 0


def logs(words: list[str]) -> int:
    arguments = job_parser("logs").parse_args(words)
    address = cluster_address(arguments.address)
    client = connect_to(arguments)
    submission_id = str(find_job(client, arguments.job).submission_id)
    if arguments.follow:
        return _follow(client, submission_id, hide_password(address))
    with cluster_errors(address):
        sys.stdout.write(client.get_job_logs(submission_id))
    return 0


def stop(words: list[str]) -> int:
    arguments = job_parser("stop").parse_args(words)
    client = connect_to(arguments)
    job = find_job(client, arguments.job)
    console = make_console()
    if not job.status.is_terminal():
        with console.status(f"stopping {job.submission_id} ..."):
            job = cluster_jobs.stop_job(client, str(job.submission_id))
    say(console, _ended(job))
    return 0


def list_jobs(arguments: argparse.Namespace) -> int:
    jobs = cluster_jobs.list_jobs(connect_to(arguments), everyone=arguments.all)
    if arguments.json:
        print(_as_json([vars(job) for job in jobs]))
    elif jobs:
        make_console().print(_job_table(jobs))
    else:
        of_us = "" if arguments.all else " of tune-whisper (--all lists other jobs too)"
        say(make_console(), f"no jobs{of_us}")
    return 0


def _as_json(fields: object) -> str:
    """Fields of Ray's `JobDetails`; times are milliseconds since 1970."""
    return json.dumps(fields, indent=2, default=vars)


def _job_table(jobs: Sequence[JobDetails]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "state", "started", "took", "what"):
        table.add_column(column, overflow="fold")
    for job in jobs:
        started = datetime.datetime.fromtimestamp((job.start_time or 0) // 1000).astimezone()
        what = hide_password((job.entrypoint or "").removeprefix(ENTRYPOINT))
        cells = (job_name(job), job_state(job), str(started) if job.start_time else "", _took(job), what)
        table.add_row(*map(Text, cells))
    return table


def _took(job: JobDetails) -> str:
    if not job.start_time:
        return ""
    return clock(max(0.0, (job.end_time or time.time() * 1000) - job.start_time) / 1000)
