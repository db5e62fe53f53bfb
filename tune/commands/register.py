"""`tune-whisper register`: an exported model into MLflow's registry, to be loaded by name and served."""

from __future__ import annotations

import argparse
from pathlib import Path

from tune.commands.options import Parser, add_storage, add_tracking_uri
from tune.registry.register import register as register_model
from tune.runs.finish import find_finished
from tune.util.console import make_console

_EPILOG = """\
The model is logged onto the MLflow run of its trial, if the store has it; docs/mlflow.md shows how it is loaded,
served and called.

example:
  tune-whisper export EXPERIMENT --output whisper-be
  tune-whisper register whisper-be --name whisper-be --alias champion
"""


def register_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper register",
        description="Log an exported model in MLflow and register it under a name and an alias.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="DIR", help="folder that tune-whisper export wrote")
    add("--name", required=True, metavar="NAME", help="name of the registered model")
    add("--alias", metavar="ALIAS", help="alias for this version, such as champion")
    add_storage(parser)
    add_tracking_uri(
        parser, "MLflow store (default: the one of the model's experiment, else $MLFLOW_TRACKING_URI)"
    )
    return parser


def register(words: list[str]) -> int:
    arguments = register_parser().parse_args(words)

    register_model(
        arguments.model,
        arguments.storage,
        arguments.name,
        arguments.alias,
        make_console(),
        tracking_uri=arguments.tracking_uri,
        find=find_finished,
    )
    return 0
