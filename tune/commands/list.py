"""`tune-whisper list`: the experiments of a storage, or the jobs of a cluster."""

from __future__ import annotations

import argparse
import datetime
import json
import os

from rich.markup import escape
from rich.table import Table

from trainer.errors import ConfigError
from tune.commands.jobs import list_jobs
from tune.commands.options import Parser, add_dashboard, add_storage
from tune.experiments.listing import ExperimentLine, list_experiments
from tune.experiments.storage import DEFAULT_STORAGE, Storage
from tune.remote.client import ADDRESSES
from tune.util.console import clock, make_console, say

_EPILOG = """\
states of an experiment:
  running, starting   a process is working on it (in an object store: its files changed in the last ten minutes)
  interrupted         no process is working on it, and trials remain; go on with tune-whisper search --resume
                      EXPERIMENT, with a training by tune-whisper train --resume EXPERIMENT
  finished            all its trials have ended, or a budget, a target or a plateau ended it
  failed              it ended because trials failed, or no trial reached an evaluation
  damaged             one of its files is missing or cannot be read

With --address, RAY_API_SERVER_ADDRESS or RAY_ADDRESS the jobs of that cluster are listed instead.
"""
_STYLES = {
    "running": "cyan",
    "starting": "cyan",
    "interrupted": "yellow",
    "finished": "green",
    "failed": "red",
    "damaged": "red",
}


def list_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper list",
        description="List all experiments of a storage, or the jobs of a cluster, the newest first.",
        epilog=_EPILOG,
    )
    add_storage(parser, default=None)
    parser.add_argument("--json", action="store_true", help="print JSON")
    jobs = parser.add_argument_group("jobs of a cluster")
    add_dashboard(jobs)
    jobs.add_argument("--all", action="store_true", help="also jobs that tune-whisper did not send")
    return parser


def list_all(words: list[str]) -> int:
    arguments = list_parser().parse_args(words)
    of_jobs = [name for name in ("address", "all", "project", "location") if getattr(arguments, name)]
    if arguments.storage is not None and of_jobs:
        raise ConfigError(f"--{of_jobs[0]}: is for jobs, --storage for experiments; give one of them")
    if of_jobs or (
        arguments.storage is None and any("://" in os.environ.get(name, "") for name in ADDRESSES)
    ):
        return list_jobs(arguments)
    return _list_experiments(arguments.storage or Storage.parse(DEFAULT_STORAGE), as_json=arguments.json)


def _list_experiments(storage: Storage, *, as_json: bool) -> int:
    if storage.folder is not None and storage.folder.exists():
        storage.check()
    lines = list_experiments(storage)
    if as_json:
        print(json.dumps([line.to_dict() for line in lines], indent=2))
        return 0
    console = make_console()
    if lines:
        console.print(experiment_table(lines))
    else:
        say(
            console,
            f"no experiments in {storage.text}; start one with tune-whisper search --space lr_batch, or give "
            "another folder by --storage",
        )
    for line in lines:
        if line.state == "damaged":
            say(console, f"warning: {line.name}: {line.note}")
    return 0


def experiment_table(lines: list[ExperimentLine]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("experiment", "state"):
        table.add_column(name, overflow="fold")
    for name in ("trials", "baseline %", "best %", "gain", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for line in lines:
        ended, asked = line.trials_ended, line.trials_asked
        kind = "training " * (line.kind == "training") + "translation " * (line.task == "translate")
        began = datetime.datetime.fromisoformat(line.started).astimezone() if line.started else None
        table.add_row(
            escape(line.name),
            f"[{_STYLES[line.state]}]{kind}{line.state}[/]",
            "" if asked is None else str(asked) if ended == asked else f"{ended} of {asked}",
            *("" if rate is None else f"{rate:.2f}" for rate in (line.baseline, line.best, line.gain)),
            "" if line.seconds is None else clock(line.seconds),
            f"{began:%Y-%m-%d %H:%M}" if began else "",
        )
    return table
