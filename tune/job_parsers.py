"""Arguments of the commands for jobs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tune.arguments import Parser, add_dashboard
from tune.job_records import STOP_SECONDS

_SUBMIT_EPILOG = """\
sent are: the program itself, a space file and other settings named in the arguments, files given by --file. Not sent:
the current folder, data and models, environment variables. What a job needs of secrets (HF_TOKEN,
MLFLOW_TRACKING_PASSWORD, AWS_SECRET_ACCESS_KEY ...) must be in the environment of the cluster's nodes.

example:
  tune-whisper submit --address http://HEAD:8265 --follow -- --space lr_batch --trials 32 --model small \\
    --language be --data google/fleurs --set data_config=be_by --storage s3://BUCKET/experiments
"""


def _job_parser(command: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    parser = Parser(prog=f"tune-whisper {command}", description=description, epilog=epilog)
    add_dashboard(parser)
    return parser


def submit_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper submit` before `--`."""
    parser = _job_parser(
        "submit",
        "Send a search (or a training: -- train ...) to a Ray cluster as a job; it goes on when this machine is off.",
        _SUBMIT_EPILOG,
    )
    parser.usage = "tune-whisper submit [options] -- ARGUMENTS OF THE SEARCH"
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: the experiment's)")
    parser.add_argument("--follow", action="store_true", help="show what the job prints until it ends")
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        type=Path,
        metavar="PATH",
        help="a further file for the job's working directory; can be repeated",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an environment variable of the job, readable by all on the cluster; can be repeated",
    )
    parser.add_argument(
        "--no-install",
        action="store_true",
        help="install nothing: the nodes have the packages (default: pip installs the versions of this machine; "
        "what a node has already is not fetched again)",
    )
    parser.add_argument(
        "--allow-version-mismatch",
        action="store_true",
        help="send it to a cluster with another Ray or Python all the same (not to vertex_ray://, "
        "whose SDK refuses that itself)",
    )
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="experiment, job name or submission id")


def status_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper status`."""
    parser = _job_parser("status", "Show the state of a job.")
    _add_job(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def logs_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper logs`."""
    parser = _job_parser(
        "logs", "Show what a job has printed. With --follow the exit code is the job's: 0 succeeded, 1 not."
    )
    _add_job(parser)
    parser.add_argument("--follow", action="store_true", help="go on until the job ends")
    return parser


def stop_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper stop`."""
    parser = _job_parser(
        "stop", "Stop a job: the search ends cleanly, and its best trial so far can be exported."
    )
    _add_job(parser)
    parser.add_argument(
        "--wait",
        type=float,
        default=STOP_SECONDS + 30.0,
        metavar="S",
        help=f"seconds to wait for its end (default: {STOP_SECONDS + 30}); it is killed after {STOP_SECONDS}",
    )
    return parser


def list_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper list`."""
    parser = _job_parser("list", "List the jobs that were sent to a cluster, the newest first.")
    parser.add_argument("--all", action="store_true", help="also jobs that others sent")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser
