"""What all commands share on the command line: how help looks and how mistakes are told."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainer.config import check_value
from trainer.errors import ConfigError, UserError
from trainer.files import write_whole
from tune.experiments.storage import DEFAULT_STORAGE, Storage
from tune.util.errors import option_name
from tune.util.files import check_folder, writing

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 110
FLAGS = ("model", "data", "language", "epochs", "max_steps", "deepspeed")
"""Settings of a search and a training that have flags of their own."""


class Parser(argparse.ArgumentParser):
    """Tells mistakes as every other one is told: one line, exit code 2, no usage in front of it."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        wrapped = "\n".join(textwrap.fill(line, WIDTH) for line in description.splitlines())
        super().__init__(
            prog=prog,
            description=wrapped,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 28, WIDTH),
            allow_abbrev=False,
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith("unrecognized arguments: --"):
            from trainer.yaml_nodes import nearest

            word = message.split()[2].split("=", maxsplit=1)[0]
            alike = nearest(word, re.findall(r"--[a-z][a-z-]*", self.format_help()))
            hint = f"; did you mean {alike}?" if alike and alike != word else ""
        raise ConfigError(f"{message}{hint}; see {self.prog} --help")


def add_storage(parser: Any, default: str | None = DEFAULT_STORAGE) -> None:
    """`--storage`, the place of all experiments; it is parsed to a `Storage`."""
    parser.add_argument(
        "--storage",
        type=Storage.parse,
        default=default,
        metavar="DIR",
        help="folder of all experiments, s3://bucket/prefix or gs://bucket/prefix (default: ./experiments)",
    )


def add_tracking_uri(
    parser: Any,
    text: str = "MLflow store (default: $MLFLOW_TRACKING_URI, else mlflow.db in the storage; "
    "with --resume the one that the experiment has)",
) -> None:
    parser.add_argument("--tracking-uri", metavar="URI", help=text)


def add_settings(parser: Any, text: str) -> None:
    """`--set`, once for each setting; read by `tune.space.reader.parse_set`."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_results(parser: Any, files: str) -> None:
    """`--output`, a folder for what was found out, and `--json`."""
    help_text = f"folder for {files}; created if missing"
    parser.add_argument("--output", type=output_folder, metavar="DIR", help=help_text)
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else to standard output")


def output_folder(text: str) -> Path:
    """A folder that can be written to, not made yet where it is missing; raises `UserError`."""
    folder = Path(text).expanduser()
    try:
        check_folder(f"--output {text}", folder)
    except ConfigError as error:  # a ValueError, which argparse would put into words of its own
        raise UserError(str(error)) from error
    return folder


def hand_out(
    arguments: argparse.Namespace,
    content: Mapping[str, Any],
    show: Callable[[Console], None],
    json_file: str,
    files: Mapping[str, Callable[[], str]],
) -> None:
    """Print what was found out, as JSON or for people, and write the files of `--output`, each whole or not at all.

    They are written in order: a page that cannot be drawn must not cost the figures.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from tune.util.console import make_console, say

    console, folder = make_console(), arguments.output
    try:
        if arguments.json:
            print(json.dumps(content, ensure_ascii=False, allow_nan=False))
        else:
            show(console)
    finally:  # also where nobody reads on, or the terminal cannot show a letter
        if folder is not None:
            with writing(f"--output {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
                text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
                write_whole(folder / json_file, f"{text}\n")
                for name, make in files.items():
                    write_whole(folder / name, make())
    if folder is None:
        return
    shown = make_console(error=True) if arguments.json else console
    say(shown, f"written   {', '.join(str(folder / name) for name in (json_file, *files))}")


def add_training(group: Any) -> None:
    """`--model`, `--data`, `--language` and the budget: what a search and a training have in common."""
    add = group.add_argument
    add("--model", metavar="M", help="hub id, folder, or tiny ... large-v3-turbo (default: demo)")
    add("--data", metavar="D", help="table (.csv, .jsonl, ...), folder or hub data set (default: demo)")
    add("--language", metavar="L", help="spoken language, such as be, pt-BR or belarusian (default: en)")
    add = group.add_mutually_exclusive_group().add_argument
    add("--epochs", metavar="E", help="length of each training in epochs (default: 3)")
    add("--max-steps", metavar="S", help="length of each training in optimiser steps")
    add_settings(group, "any other setting; can be repeated")


def add_where(group: Any) -> None:
    """Of both, too: the storage, and where results are shown."""
    add_storage(group)
    add_tracking_uri(group)
    add = group.add_argument
    add(
        "--track",
        nargs="+",
        choices=("mlflow", "tensorboard", "wandb"),
        metavar="STORE",
        help="where results are written: one or several of mlflow, tensorboard, wandb (default: mlflow)",
    )
    add(
        "--notify",
        metavar="URL",
        help="address to which a new best, failures and the end are posted, as JSON with a `text` "
        "(default: $TUNE_WHISPER_NOTIFY)",
    )


def add_how(group: Any, what: str) -> None:
    """Of both, too: cluster, DeepSpeed, failures of a search's trials or of a training, which is `what`."""
    add = group.add_argument
    add(
        "--deepspeed",
        nargs="?",
        const="ds_config.json",
        metavar="FILE",
        help="train with DeepSpeed (default FILE: the packaged ds_config.json, ZeRO 2)",
    )
    add(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster to run on (default: $RAY_ADDRESS, else this machine)",
    )
    add(
        "--max-failures",
        type=int,
        metavar="N",
        help=f"how often a {what} that fails is restarted from its last checkpoint (default: 2)",
    )
    add(
        "--save-every",
        type=float,
        metavar="MINUTES",
        help=f"save a checkpoint of a {what} every MINUTES minutes, not only at evaluations (default: off)",
    )
    add(
        "--take-over",
        action="store_true",
        help="with --resume and an object store: go on even if another machine still seems to run it",
    )


def check_resume(arguments: argparse.Namespace, decided: Iterable[str]) -> None:
    """Refuse what an experiment has decided that goes on, and what goes with `--resume` alone.

    Raises:
        ConfigError: something of it is given.
    """
    if arguments.resume is None:
        if arguments.take_over:
            raise ConfigError("--take-over: needs --resume EXPERIMENT; add that or remove --take-over")
        return
    for name in decided:
        if getattr(arguments, name) not in (None, [], False):
            option = {"config": "CONFIG", "origin": "--from"}.get(name, option_name(name))
            raise ConfigError(
                f"{option}: cannot be given with --resume: {arguments.resume!r} keeps what it began with; remove it"
            )


def add_dashboard(group: Any) -> None:
    """`--address` of a cluster's dashboard, where jobs are sent, with `--project` and `--location`."""
    add = group.add_argument
    add(
        "--address",
        metavar="URL",
        help="the cluster's dashboard, http://HEAD:8265, or vertex_ray://NAME "
        "(default: $RAY_API_SERVER_ADDRESS, $RAY_ADDRESS)",
    )
    add_vertex(group, "with vertex_ray://: ")


def add_vertex(group: Any, when: str = "") -> None:
    """`--project` and `--location` of a cluster on Vertex AI; `when` says when they count."""
    add = group.add_argument
    add("--project", metavar="P", help=f"{when}Google Cloud project (default: the environment's)")
    add("--location", metavar="L", help=f"{when}region (default: the environment's, else us-central1)")


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments that are options as `SearchOptions.changed` takes them, as far as they are given.

    But for settings and guards, which are parsed; with the addresses that the environment has. What is resumed has
    its MLflow store.
    """
    from tune.experiments.options import SearchOptions

    names = {field.name for field in dataclasses.fields(SearchOptions)} - {"settings", "guard"}
    names |= {"gpus_per_worker", "cpus_per_worker"}
    given = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    for name, variable in (("tracking_uri", "MLFLOW_TRACKING_URI"), ("notify", "TUNE_WHISPER_NOTIFY")):
        if name == "tracking_uri" and arguments.resume:
            continue
        if name not in given and os.environ.get(variable):
            given[name] = os.environ[variable]
    return given


def read_settings(arguments: argparse.Namespace, flags: Iterable[str] = FLAGS) -> dict[str, Any]:
    """`TrainConfig` fields from the flags of these names and from `--set`, each from one of them only.

    Raises:
        ConfigError: a value is not allowed, a key is unknown or given by both.
    """
    from tune.space.reader import parse_set

    settings = parse_set(arguments.set)
    for name in flags:
        value = getattr(arguments, name)
        if value is None:
            continue
        if name in settings:
            raise ConfigError(f"--set {name}: is given as {option_name(name)} too; remove one")
        try:
            settings[name] = check_value(name, value)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"{name}=", f"{option_name(name)} ", 1)) from error
    return settings
