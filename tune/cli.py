"""The command `tune-whisper`: arguments in, exit code out. Imports nothing heavy on the way to `--help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainer.config import ConfigError, UserError, check_value

_EXIT_USER_ERROR = 2
_EXIT_FAILED = 1
_EXIT_INTERRUPTED = 130

_EPILOG = """\
other commands:
  tune-whisper export EXPERIMENT --output DIR   write the best model as a Hugging Face folder
  tune-whisper ui [EXPERIMENT]                  compare the trials in the MLflow UI
  each has its own --help

example:
  tune-whisper --space lr_batch.yaml --trials 32 --model small --language be --data my_recordings.csv
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with defaults on wide lines, the epilog as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


class _Parser(argparse.ArgumentParser):
    """Tells mistakes as every other one is told: one line, exit code 2, no usage in front of it."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def search_parser() -> argparse.ArgumentParser:
    """Arguments of the search itself."""
    parser = _Parser(
        prog="tune-whisper",
        description="Search hyperparameters for fine-tuning Whisper: every trial is a real fine-tuning, judged by WER.",
        epilog=_EPILOG,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to search")
    what.add_argument(
        "--space", required=True, metavar="NAME_OR_PATH", help="search space: a YAML file or a packaged name"
    )
    what.add_argument("--trials", type=int, default=8, metavar="N", help="trials to run (default: 8)")
    what.add_argument(
        "--model", metavar="M", help="hub id, folder, or tiny ... large-v3-turbo (default: demo)"
    )
    what.add_argument("--data", metavar="D", help="hub data set, folder or manifest (default: demo)")
    what.add_argument("--language", metavar="L", help="spoken language, as be or belarusian (default: en)")
    budget = what.add_mutually_exclusive_group()
    budget.add_argument(
        "--epochs",
        metavar="E",
        help="budget of a trial in passes over the training data (default: 3, demo: 4)",
    )
    budget.add_argument("--max-steps", metavar="S", help="budget of a trial in optimiser steps")
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="fix any other setting; can be repeated",
    )
    what.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of searcher and training (default: 0)"
    )
    _add_where_and_how(parser)
    return parser


def _add_where_and_how(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where it goes")
    where.add_argument("--experiment", metavar="NAME", help="name (default: the space's name and the time)")
    _add_storage(where)
    where.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store (default: $MLFLOW_TRACKING_URI, else in the experiment)",
    )
    how = parser.add_argument_group("how it runs")
    how.add_argument(
        "--gpus-per-trial",
        type=float,
        metavar="F",
        help="GPUs of a trial, fractions allowed (default: 1, or 0 without)",
    )
    how.add_argument(
        "--cpus-per-trial", type=float, metavar="F", help="CPUs of a trial (default: 1, more with GPUs)"
    )
    how.add_argument(
        "--max-concurrent", type=int, metavar="N", help="trials at a time (default: as many as fit)"
    )
    how.add_argument("--dry-run", action="store_true", help="check everything, show the plan, run nothing")


def export_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper export`."""
    parser = _Parser(
        prog="tune-whisper export",
        description="Write the best checkpoint as a Hugging Face folder with a model card.",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="name of the experiment")
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="folder to write; must not exist"
    )
    _add_storage(parser)
    parser.add_argument("--trial", metavar="ID", help="another trial than the best")
    return parser


def ui_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper ui`."""
    parser = _Parser(
        prog="tune-whisper ui",
        description="Open the MLflow UI on an experiment, on this machine only.",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="name (default: the newest)")
    _add_storage(parser)
    parser.add_argument("--port", type=int, metavar="P", help="port (default: 5000, or the next free one)")
    return parser


def _add_storage(parser: Any) -> None:
    parser.add_argument(
        "--storage",
        type=Path,
        default=Path("experiments"),
        metavar="DIR",
        help="folder of all experiments (default: ./experiments)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line each and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands = {"export": _export, "ui": _ui}
    command = commands.get(words[0]) if words else None
    try:
        if words and command is None and not words[0].startswith("-"):
            raise ConfigError(
                f"{words[0]!r}: no such command; there are {' and '.join(commands)}, and --space starts a search"
            )
        return command(words[1:]) if command else _search(words)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return _EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _search(words: list[str]) -> int:
    parser = search_parser()
    if not words:
        parser.print_help()
        return _EXIT_USER_ERROR
    arguments = parser.parse_args(words)

    from tune.display import make_console
    from tune.plan import SearchRequest, check_numbers, make_plan

    request = SearchRequest(
        space=arguments.space,
        trials=arguments.trials,
        storage=arguments.storage,
        experiment=arguments.experiment,
        tracking_uri=arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"),
        settings=_settings(arguments),
        gpus_per_trial=arguments.gpus_per_trial,
        cpus_per_trial=arguments.cpus_per_trial,
        max_concurrent=arguments.max_concurrent,
        seed=arguments.seed,
    )
    check_numbers(request)
    console = make_console()
    with console.status("checking the space and the model ..."):
        plan = make_plan(request)
    if arguments.dry_run:
        from tune.dry_run import show_plan

        show_plan(plan, console)
        return 0

    from tune.experiment import run_search
    from tune.summary import print_summary

    outcome = run_search(plan, console)
    print_summary(outcome, console)
    if outcome.mlflow_problem:
        print(f"warning: {outcome.mlflow_problem}", file=sys.stderr)
    if outcome.interrupted:
        return _EXIT_INTERRUPTED
    return 0 if outcome.best else _EXIT_FAILED


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """`TrainConfig` fields from the flags and `--set`."""
    from tune.search_space import parse_set

    flags = {
        name: getattr(arguments, name)
        for name in ("model", "data", "language", "epochs", "max_steps")
        if getattr(arguments, name) is not None
    }
    for name, value in flags.items():
        try:
            flags[name] = check_value(name, value)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{name}=", f"--{name.replace('_', '-')} ", 1)) from error
    given = parse_set(arguments.set)
    for name in flags.keys() & given.keys():
        raise ConfigError(f"--set {name}: is given as --{name.replace('_', '-')} too; remove one")
    if "seed" in given:
        raise ConfigError("--set seed: use --seed")
    return flags | given


def _export(words: list[str]) -> int:
    arguments = export_parser().parse_args(words)
    from tune.display import make_console
    from tune.export import export_trial

    export_trial(arguments.storage, arguments.experiment, arguments.output, arguments.trial, make_console())
    return 0


def _ui(words: list[str]) -> int:
    arguments = ui_parser().parse_args(words)
    from tune.ui import run_ui

    return run_ui(arguments.experiment, arguments.storage, arguments.port)
