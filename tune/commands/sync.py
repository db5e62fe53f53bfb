"""`tune-whisper sync`: bring to MLflow, or another tracker, what a killed or impatient search left in its log."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import TYPE_CHECKING

from tune.commands.options import Parser, add_storage, add_tracking_uri
from tune.util.errors import EXIT_FAILED

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.tracking.tracker import Orders

_PATIENCE = 30.0
"""Seconds without an answer after which the rest is left for another time."""
_PLACES = {"mlflow": "MLflow store", "optuna": "Optuna study", "tensorboard": "TensorBoard folder"}


def sync_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper sync`."""
    parser = Parser(
        prog="tune-whisper sync",
        description="Deliver to MLflow what waits in the log because the store was away when the search ended.",
        epilog="An experiment that goes on with --resume delivers it by itself.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="name of the experiment")
    add_storage(parser)
    add_tracking_uri(
        parser,
        "the experiment's own MLflow store, where it has moved or its address holds a password, which is "
        "kept nowhere (default: the one in experiment.yaml, with the password that MLFLOW_TRACKING_URI has for it)",
    )
    return parser


def sync(words: list[str]) -> int:
    """Run `tune-whisper sync`; the exit code: 0, or 1 where a store refused some records for good.

    Raises:
        ExperimentError: there is no such experiment, its log is damaged or not there.
        StorageError: the object store that holds it cannot be read or written.
        TrackingError: a store is away or another one, or a search delivers to it now.
    """
    arguments = sync_parser().parse_args(words)
    from tune.experiments.folder import EVENTS_FILE
    from tune.experiments.log import read_log
    from tune.experiments.results import write_results
    from tune.experiments.saved import find_experiment, no_log
    from tune.util.errors import TrackingError

    folder = find_experiment(arguments.experiment, arguments.storage)
    if not (folder.path / EVENTS_FILE).is_file():
        raise no_log(folder)
    state = read_log(folder.path / EVENTS_FILE)
    orders = _orders(folder, arguments)
    refused, problems = 0, []
    for name in orders.trackers:
        try:
            refused += _deliver(name, orders, state.events, other=bool(arguments.tracking_uri))
        except TrackingError as error:
            problems.append(str(error))
    if state.ended is not None:
        write_results(folder, state)  # with the ids of MLflow's runs
    folder.upload()
    if problems:
        raise TrackingError("\n".join(problems))
    return EXIT_FAILED if refused else 0


def _orders(folder: ExperimentFolder, arguments: argparse.Namespace) -> Orders:
    from tune.experiments.mlflow_store import absolute_tracking_uri
    from tune.experiments.settings import read_settings, read_tracking_uri
    from tune.tracking.tracker import Orders

    settings, given = read_settings(folder), arguments.tracking_uri
    uri = read_tracking_uri(folder) if given is None else absolute_tracking_uri(given)
    return Orders(
        folder=str(folder.path),
        name=folder.name,
        storage=arguments.storage.address,
        trackers=settings.track,
        tracking_uri=uri,
        optuna_url=settings.optuna_storage,
        patience=_PATIENCE,
    )


def _deliver(name: str, orders: Orders, events: int, *, other: bool) -> int:
    """Deliver to one store what waits for it; how many records it refused.

    Raises:
        TrackingError: it is away or, where `other` is told, has no run of the experiment that one has.
    """
    from tune.tracking.follower import StoreFollower
    from tune.tracking.tracker import make_tracker
    from tune.util.console import make_console
    from tune.util.errors import TrackingError
    from tune.util.redact import hide_password

    ended = threading.Event()
    ended.set()
    follower = StoreFollower(make_tracker(name, orders), orders, ended)
    status, where = follower.status, hide_password(orders.tracking_uri) if name == "mlflow" else _PLACES[name]
    before, refused = status.delivered, status.refused
    try:
        follower.connect()
        begun = status.delivered, status.progress
        if name == "mlflow" and other and before and not status.delivered:
            raise TrackingError(
                f"MLflow store {where}: has no run of {orders.name!r}; --tracking-uri must name the store that "
                "the search used"
            )
        with make_console(error=True).status(f"delivering {events - begun[0]:,} events ...") as shown:
            follower.follow(lambda: shown.update(f"delivered {status.delivered:,} of {events:,} events ..."))
    finally:
        follower.close()
    told = status.delivered - begun[0]
    if not follower.complete:
        raise TrackingError(
            f"{status.problem}; {told:,} events were delivered, {events - status.delivered:,} still wait; run it again"
        )
    if (status.delivered, status.progress) == begun:
        print(f"nothing waits for the {_PLACES[name]} of {orders.name}")
    else:
        print(f"delivered {told:,} events of {orders.name} to {where}")
    if status.refused > refused:
        number = status.refused - refused
        print(f"warning: {number:,} records were refused for good. {status.reason}", file=sys.stderr)
    return status.refused - refused
