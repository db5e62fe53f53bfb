"""`tune-whisper sync`: bring to MLflow, or another tracker, what a killed or impatient search left in its log."""

from __future__ import annotations

import argparse

from tune.commands.options import Parser, add_storage, add_tracking_uri
from tune.experiments.experiment import Experiment, find_experiment
from tune.experiments.mlflow_store import absolute_tracking_uri
from tune.experiments.results import run_ids, write_results
from tune.tracking.mlflow import check_known
from tune.tracking.sync import Sync, Target, store_names
from tune.util.console import make_console


def sync_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper sync",
        description="Send results to those stores of an experiment (MLflow and others) that could not be reached while "
        "it ran.",
        epilog="An experiment that goes on (--resume) does the same.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="name of the experiment")
    add_storage(parser)
    add_tracking_uri(
        parser,
        "address of the experiment's MLflow store, if it has moved or needs a password, which is never saved "
        "(default: that of the search, with the password from MLFLOW_TRACKING_URI)",
    )
    return parser


def sync(words: list[str]) -> int:
    arguments = sync_parser().parse_args(words)

    folder = find_experiment(arguments.experiment, arguments.storage)
    experiment, given = Experiment.read(folder), arguments.tracking_uri
    state, optuna = experiment.state, [] if experiment.is_training else ["optuna"]
    if given is None:
        uri = experiment.tracking_uri if "mlflow" in state.options.track else ""
    else:
        uri = absolute_tracking_uri(given)
    target = Target(
        folder=folder,
        option=arguments.storage.option,
        stores=[*state.options.track, *optuna],
        tracking_uri=uri,
    )
    syncing = Sync(target)
    if given is not None and run_ids(folder.path):
        check_known(target.tracking_uri, folder.name, state.created)
    names = store_names(target.stores)
    try:
        with make_console(error=True).status(f"syncing {state.events:,} events with {names} ..."):
            syncing.once()
    finally:
        if state.ended is not None:
            write_results(folder, state)  # with the ids of MLflow's runs
        folder.upload()
    print(f"{names}: all {state.events:,} events of {folder.name} are there")
    return 0
