"""`tune-whisper train`: one training outside any search, on several workers where asked."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.command import EXIT_USER_ERROR
from trainer.errors import ConfigError
from tune.commands.options import (
    FLAGS,
    Parser,
    add_how,
    add_training,
    add_where,
    check_resume,
    given_options,
    read_settings,
)
from tune.commands.search import exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from tune.runs.outcome import Outcome
    from tune.runs.plan import Plan

_EPILOG = """\
examples:
  tune-whisper train --data my_recordings.csv --language be --model small --workers 2
  tune-whisper train --from EXPERIMENT --model large-v3 --epochs 5 --set max_train_clips=null --deepspeed

Options and --set override CONFIG, and CONFIG overrides --from. Batch sizes are those of one worker.
"""
_ELSEWHERE = {"workers": "use --workers", "evaluate_at": "use --set evaluations=N",
              "output_dir": "use --storage and --name", "train_on": "use --from and --on"}  # fmt: skip
_FIXED = ("config", "origin", "trial", "on", *FLAGS, "set", "workers", "name")
"""What a training that goes on has decided."""


def train_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper train",
        description="Fine-tune Whisper once, without a search. The result is an experiment, as with a search.",
        epilog=_EPILOG,
    )
    what = parser.add_argument_group("what to train")
    add = what.add_argument
    add("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file with one KEY: VALUE per line")
    add("--from", dest="origin", metavar="EXPERIMENT", help="take the settings of an experiment's best trial")
    add("--trial", metavar="ID", help="with --from: this trial instead of the best run")
    add(
        "--on",
        choices=["train+validation"],
        metavar="train+validation",
        help="with --from: train on the clips of both splits, for as many epochs as the trial had trained when it was "
        "best; measured on the test split",
    )
    add(
        "--resume",
        metavar="NAME",
        help="instead of all this: go on with an interrupted or failed training from its last checkpoint",
    )
    add_training(what)
    where = parser.add_argument_group("where results go")
    add = where.add_argument
    add("--name", metavar="NAME", help="name (default: the model's name and the time)")
    add_where(where)
    how = parser.add_argument_group("how it runs")
    add = how.add_argument
    add("--workers", type=int, metavar="N", help="processes that train together, one GPU each (default: 1)")
    add(
        "--gpus-per-worker",
        type=float,
        metavar="F",
        help="1 or 0; with a single worker also a GPU fraction (default: 1; 0 if there are none)",
    )
    add("--cpus-per-worker", type=float, metavar="F", help="CPUs per worker (default: 1, more with GPUs)")
    add_how(how, "training")
    return parser


def train(words: list[str]) -> int:
    if not words:
        train_parser().print_help()
        return EXIT_USER_ERROR
    return exit_code(run(words))


def run(words: list[str], planned: Callable[[Plan], object] = lambda plan: None) -> Outcome:
    """The training that the words ask for; `planned` is called before anything starts."""
    arguments = train_parser().parse_args(words)
    settings = read_options(arguments)

    from tune.runs.resume import resume
    from tune.util.console import make_console

    console, resumed = make_console(), None
    if arguments.resume is not None:
        name, take_over = arguments.resume, arguments.take_over
        with console.status(f"reading the experiment {name} ..."):
            given, address = given_options(arguments), arguments.address
            resumed = resume(name, arguments.storage, given, "training", address=address, take_over=take_over)
        plan = resumed.plan
    else:
        with console.status("checking the settings and the model ..."):
            plan = plan_training(arguments, settings)

    planned(plan)
    from tune.runs import search
    from tune.runs.training_display import print_training_summary

    outcome = search.run(plan, console, resumed.experiment if resumed else None)
    print_training_summary(outcome, console)
    return outcome


def plan_training(arguments: argparse.Namespace, asked: dict[str, Any]) -> Plan:
    """The plan of a new training; `asked` are the settings given by flags and `--set`."""
    from tune.experiments.experiment import Experiment
    from tune.experiments.options import SearchOptions
    from tune.runs.finish import find_finished
    from tune.runs.plan import make_plan
    from tune.runs.training_settings import notes_on_taken, training_settings
    from tune.space.space import space_of_one

    storage, origin = arguments.storage, None
    if arguments.origin is not None:
        origin = Experiment.read(find_finished(arguments.origin, storage))
    merged = training_settings(asked, arguments.config, origin, trial=arguments.trial, on=arguments.on)
    workers = merged.settings.pop("workers", None) or 1
    if arguments.workers is not None:
        workers = arguments.workers
    options = SearchOptions(
        kind="training", settings=merged.settings, trials=1, finalists=0, workers_per_trial=workers
    ).changed(given_options(arguments))
    space, notes = space_of_one(merged.settings), merged.notes
    plan = make_plan(options, space, storage, arguments.name, address=arguments.address, notes=notes)
    if origin is not None and merged.taken is not None:
        notes = notes_on_taken(asked, origin.name, merged.taken, plan.base)
        plan = dataclasses.replace(plan, notes=(*plan.notes, *notes))
    return plan


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """`TrainConfig` fields from the flags and `--set`.

    Raises:
        ConfigError: arguments that exclude each other, or a setting that is unknown or not allowed.
    """
    check_resume(arguments, _FIXED)
    if arguments.origin is None:
        for option, value in (("--trial", arguments.trial), ("--on", arguments.on)):
            if value is not None:
                raise ConfigError(
                    f"{option}: needs --from EXPERIMENT, whose settings it uses; add that or remove {option}"
                )
    for item in arguments.set:
        key = item.partition("=")[0].strip()
        if key in _ELSEWHERE:
            raise ConfigError(f"--set {item}: cannot be set this way; {_ELSEWHERE[key]}")
    return read_settings(arguments)
