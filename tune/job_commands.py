"""`tune-whisper submit`, `status`, `logs`, `stop` and `list`: searches as jobs of a Ray cluster."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.arguments import EXIT_FAILED, EXIT_INTERRUPTED
from tune.display import make_console, say
from tune.errors import ConfigError
from tune.job_display import as_dict, job_table, state_and_times
from tune.job_parsers import list_parser, logs_parser, status_parser, stop_parser, submit_parser
from tune.job_records import (
    ENDED,
    STOP_SECONDS,
    find_job,
    free_submission_id,
    job_name,
    job_state,
    stop_job,
)
from tune.job_records import list_jobs as find_jobs
from tune.remote.client import JobError, check_versions, cluster_address, cluster_errors, connect
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

    from tune.job_arguments import JobRequest

_ENVIRONMENT = {
    # From SIGTERM to SIGKILL when the job is stopped.
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
    # A variable that the search sets for its workers goes before the same one of the job; Ray would refuse both.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}


def _client(arguments: argparse.Namespace) -> JobSubmissionClient:
    """A client for the cluster that the arguments name."""
    return connect(cluster_address(arguments.address), arguments.project, arguments.location)


def submit(words: list[str]) -> int:
    """Send a search as a job; returns the exit code."""
    cut = words.index("--") if "--" in words else len(words)
    if "--" not in words and not {"-h", "--help"} & set(words):
        raise ConfigError(
            "submit: put -- before the search's arguments: tune-whisper submit --address URL -- --space ..."
        )
    arguments = submit_parser().parse_args(words[:cut])
    from tune.job_arguments import read_request
    from tune.job_secrets import check_environment

    environment = check_environment(arguments.env, tuple(_ENVIRONMENT))
    request = read_request(words[cut + 1 :], arguments.name)
    for path in arguments.file:
        if path.name in request.files:
            raise ConfigError(f"--file {path}: another file of this name goes along; rename one")
        request.files[path.name] = path
    address = cluster_address(arguments.address)
    console = make_console()
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as folder, console.status("checking ..."):
        from tune.job_package import pinned_requirements, stage

        requirements = [] if arguments.no_install else pinned_requirements(deepspeed=request.deepspeed)
        staged = stage(Path(folder), request.files, requirements)
        client = _client(arguments)
        if not arguments.allow_version_mismatch:
            check_versions(client)
        submission_id = free_submission_id(client, request.name)
        runtime_env: dict[str, Any] = {"working_dir": folder, "env_vars": environment | _ENVIRONMENT}
        if requirements:
            runtime_env["pip"] = requirements
        _send(client, request, submission_id, runtime_env)
    for note in request.notes:
        say(console, f"note: {note}")
    say(
        console,
        f"sent {submission_id} to {hide_password(address)}: {_what_was_sent(request, staged, requirements)}",
    )
    _say_next(request, arguments.address, console)
    return _follow(client, submission_id, address) if arguments.follow else 0


def _send(
    client: JobSubmissionClient, request: JobRequest, submission_id: str, runtime_env: dict[str, Any]
) -> None:
    """Submit, with no CPU and no GPU for the driver, so that a head with none of either takes it."""
    with cluster_errors(client.get_address()):
        try:
            client.submit_job(
                entrypoint=shlex.join(["python", "-m", "tune.job_driver", *request.words]),
                submission_id=submission_id,
                runtime_env=runtime_env,
                metadata=dict(request.metadata),
                entrypoint_num_cpus=0,
                entrypoint_num_gpus=0,
            )
        except RuntimeError as error:
            if "already exists" not in str(error):
                raise
            raise JobError(
                f"{submission_id}: the cluster has got a job of this name just now; choose another --name"
            ) from error


def _what_was_sent(request: JobRequest, staged: Sequence[str], requirements: Sequence[str]) -> str:
    ours = len(staged) - len(request.files)
    own = ", ".join(str(path) for path in request.files.values())
    parts = [f"the program ({ours} files)" + (f", {own}" if own else "")]
    parts.append(f"{len(requirements)} pinned packages to install" if requirements else "nothing to install")
    return "; ".join(parts)


def _say_next(request: JobRequest, given: str | None, console: Any) -> None:
    address = f" --address {hide_password(given)}" if given else ""
    if request.experiment and request.storage:
        say(console, f"experiment {request.experiment} in {request.storage}")
    say(console, f"follow  tune-whisper logs {request.name} --follow{address}")
    say(console, f"state   tune-whisper status {request.name}{address}")
    say(console, f"stop    tune-whisper stop {request.name}{address}")
    if request.experiment and request.storage:
        storage = shlex.quote(request.storage)
        say(
            console, f"export  tune-whisper export {request.experiment} --storage {storage} --output my-model"
        )


def _follow(client: JobSubmissionClient, submission_id: str, address: str) -> int:
    """Show the output until the job ends; Ctrl-C ends the showing only."""
    from tune.job_logs import follow_logs

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        job = follow_logs(client, submission_id, write)
    except KeyboardInterrupt:
        print(
            f"\nno longer following; the job goes on: tune-whisper logs {submission_id} --follow "
            f"--address {hide_password(address)}",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output (head, less) has seen enough; Python would complain once more when it exits.
        sys.stdout = None  # type: ignore[assignment]
        return EXIT_FAILED
    print(f"{submission_id} {state_and_times(job)}", file=sys.stderr)
    return 0 if job_state(job) == "succeeded" else EXIT_FAILED


def status(words: list[str]) -> int:
    """Show one job; returns the exit code."""
    arguments = status_parser().parse_args(words)
    job = find_job(_client(arguments), arguments.job)
    if arguments.json:
        print(json.dumps(as_dict(job), indent=2))
        return 0
    console = make_console()
    say(console, f"job         {job.submission_id}")
    say(console, f"state       {state_and_times(job)}")
    for key in ("experiment", "space", "trials", "config"):
        if (job.metadata or {}).get(key):
            say(console, f"{key:<11} {job.metadata[key]}")
    say(console, f"entrypoint  {hide_password(job.entrypoint or '')}")
    if job_state(job) == "failed" and job.message:
        first = next((line for line in hide_password(job.message).splitlines() if line.strip()), "")
        say(console, f"reason      {first[:300]}; see tune-whisper logs {job_name(job)}")
    return 0


def logs(words: list[str]) -> int:
    """Show a job's output; returns the exit code."""
    arguments = logs_parser().parse_args(words)
    address = cluster_address(arguments.address)
    client = _client(arguments)
    submission_id = str(find_job(client, arguments.job).submission_id)
    if arguments.follow:
        return _follow(client, submission_id, address)
    from tune.job_logs import read_logs

    sys.stdout.write(read_logs(client, submission_id))
    return 0


def stop(words: list[str]) -> int:
    """Stop a job; returns the exit code."""
    arguments = stop_parser().parse_args(words)
    client = _client(arguments)
    job = find_job(client, arguments.job)
    console = make_console()
    if job_state(job) in ENDED:
        say(console, f"{job.submission_id} had ended already: {state_and_times(job)}")
        return 0
    with console.status(f"stopping {job.submission_id} ..."):
        job = stop_job(client, job, wait=arguments.wait)
    say(console, f"{job.submission_id} {state_and_times(job)}")
    return 0


def list_jobs(words: list[str]) -> int:
    """List a cluster's jobs; returns the exit code."""
    arguments = list_parser().parse_args(words)
    jobs = find_jobs(_client(arguments), everyone=arguments.all)
    if arguments.json:
        print(json.dumps([as_dict(job) for job in jobs], indent=2))
        return 0
    console = make_console()
    if not jobs:
        say(
            console,
            "no jobs" if arguments.all else "no jobs of tune-whisper (--all lists those of others too)",
        )
        return 0
    console.print(job_table(jobs))
    return 0
