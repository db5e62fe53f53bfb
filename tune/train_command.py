"""`tune-whisper train`: one training outside any search, on several workers where asked."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import ConfigError, check_value
from tune.arguments import EXIT_FAILED, EXIT_INTERRUPTED, Parser, add_storage

if TYPE_CHECKING:
    from tune.train_plan import TrainRequest

_EPILOG = """\
examples:
  tune-whisper train --data my_recordings.csv --language be --model small --workers 2
  tune-whisper train --from EXPERIMENT --model large-v3 --epochs 5 --set max_train_clips=null --deepspeed

What is given by flags and --set goes before CONFIG, and that before --from. Batch sizes are those of one worker.
"""
_FLAGS = ("model", "data", "language", "epochs", "max_steps", "deepspeed")
_ELSEWHERE = {"workers": "use --workers", "evaluate_at": "use --set evaluations=N",
              "output_dir": "use --storage and --name"}  # fmt: skip
_FIXED = ("config", "origin", "trial", *_FLAGS, "set", "workers", "name")
"""What a training that goes on has decided."""


def train_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper train`."""
    parser = Parser(
        prog="tune-whisper train",
        description="Fine-tune Whisper once, without a search; leaves an experiment as a search does.",
        epilog=_EPILOG,
    )
    what = parser.add_argument_group("what to train")
    what.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file, KEY: VALUE a line")
    what.add_argument(
        "--from", dest="origin", metavar="EXPERIMENT", help="take the settings of an experiment's best trial"
    )
    what.add_argument("--trial", metavar="ID", help="with --from: another trial than the best")
    what.add_argument(
        "--resume",
        metavar="NAME",
        help="instead of all these: go on with an interrupted or failed training from its last checkpoint",
    )
    what.add_argument(
        "--model", metavar="M", help="hub id, folder, or tiny ... large-v3-turbo (default: demo)"
    )
    what.add_argument("--data", metavar="D", help="hub data set, folder or manifest (default: demo)")
    what.add_argument("--language", metavar="L", help="spoken language, as be or belarusian (default: en)")
    budget = what.add_mutually_exclusive_group()
    budget.add_argument(
        "--epochs", metavar="E", help="budget in passes over the training data (default: 3, demo: 4)"
    )
    budget.add_argument("--max-steps", metavar="S", help="budget in optimiser steps")
    what.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting; can be repeated"
    )
    where = parser.add_argument_group("where it goes")
    where.add_argument("--name", metavar="NAME", help="name (default: the model's name and the time)")
    add_storage(where)
    where.add_argument(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store (default: $MLFLOW_TRACKING_URI, else in the experiment)",
    )
    _add_how(parser.add_argument_group("how it runs"))
    return parser


def _add_how(how: Any) -> None:
    how.add_argument(
        "--workers", type=int, metavar="N", help="processes that train together, a GPU each (default: 1)"
    )
    how.add_argument(
        "--deepspeed",
        nargs="?",
        const="ds_config.json",
        metavar="FILE",
        help="train with DeepSpeed (default FILE: the packaged ds_config.json, ZeRO 2)",
    )
    how.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="F",
        help="1 or 0; a share of one for a single worker (default: 1, or 0 without GPUs)",
    )
    how.add_argument(
        "--cpus-per-worker", type=float, metavar="F", help="CPUs of a worker (default: 1, more with GPUs)"
    )
    how.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster to run on (default: $RAY_ADDRESS, else this machine)",
    )
    how.add_argument(
        "--max-failures",
        type=int,
        default=2,
        metavar="N",
        help="times that a training which fails goes on from its last checkpoint (default: 2)",
    )


def train(words: list[str]) -> int:
    """Run `tune-whisper train`; the exit code.

    Raises:
        UserError: something that was given cannot be used.
    """
    arguments = train_parser().parse_args(words)
    request = read_request(arguments)

    # Before anything imports ray.train, which reads it then.
    from tune.train_workers import use_train_v2

    use_train_v2()

    from tune.display import make_console
    from tune.train_plan import make_train_plan

    console = make_console()
    if arguments.resume is not None:
        from tune.train_resume import load_training
        from tune.training import resume_training

        with console.status(f"looking at what {arguments.resume} left ..."):
            resumed = load_training(request, arguments.resume)
        outcome = resume_training(resumed, console)
    else:
        with console.status("checking the settings and the model ..."):
            plan = make_train_plan(request)

        from tune.training import run_training

        outcome = run_training(plan, console)

    from tune.train_results import print_training_summary

    print_training_summary(outcome, console)
    if outcome.mlflow_problem:
        make_console(error=True).print(f"warning: {outcome.mlflow_problem}", markup=False, soft_wrap=True)
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    return 0 if outcome.record.status == "completed" else EXIT_FAILED


def read_request(arguments: argparse.Namespace) -> TrainRequest:
    """What was asked for, from the parsed arguments.

    Raises:
        ConfigError: arguments that exclude each other, or a setting that is unknown or not allowed.
    """
    from tune.train_plan import TrainRequest

    if arguments.resume is not None:
        given = [name for name in _FIXED if getattr(arguments, name) not in (None, [])]
        if given:
            raise ConfigError(
                f"{_option(given[0])}: cannot be given with --resume, which goes on as {arguments.resume!r} began; "
                "remove it"
            )
    elif arguments.trial is not None and arguments.origin is None:
        raise ConfigError("--trial: goes with --from EXPERIMENT, whose trial it names; add that or remove it")
    return TrainRequest(
        config=arguments.config,
        origin=arguments.origin,
        trial=arguments.trial,
        settings=_settings(arguments),
        workers=arguments.workers,
        gpus_per_worker=arguments.gpus_per_worker,
        cpus_per_worker=arguments.cpus_per_worker,
        storage=arguments.storage,
        name=arguments.name,
        tracking_uri=arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"),
        address=arguments.address,
        max_failures=arguments.max_failures,
    )


def _option(name: str) -> str:
    return {"config": "CONFIG", "origin": "--from"}.get(name, f"--{name.replace('_', '-')}")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """`TrainConfig` fields from the flags and `--set`."""
    from tune.search_space import parse_set

    for item in arguments.set:
        key = item.partition("=")[0].strip()
        if key in _ELSEWHERE:
            raise ConfigError(f"--set {item}: cannot be set so; {_ELSEWHERE[key]}")
    flags = {name: getattr(arguments, name) for name in _FLAGS if getattr(arguments, name) is not None}
    for name, value in flags.items():
        try:
            flags[name] = check_value(name, value)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{name}=", f"{_option(name)} ", 1)) from error
    given = parse_set(arguments.set)
    for name in flags.keys() & given.keys():
        raise ConfigError(f"--set {name}: is given as {_option(name)} too; remove one")
    return flags | given
