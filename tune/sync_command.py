"""`tune-whisper sync`: bring to MLflow, or another tracker, what a killed or impatient search left in its log."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import TYPE_CHECKING

from tune.arguments import EXIT_FAILED, Parser, add_storage, add_tracking_uri

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tune.experiment_folder import ExperimentFolder
    from tune.tracking.follower import StoreFollower
    from tune.tracking.tracker import Orders

_PATIENCE = 30.0
"""Seconds without an answer after which the rest is left for another time."""


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
        ExperimentError: there is no such experiment, its log is damaged, or it is of an older form.
        StorageError: the object store that holds it cannot be read or written.
        TrackingError: a store is away or another one, or a search delivers to it now.
    """
    arguments = sync_parser().parse_args(words)
    from tune.experiments.log import EVENTS_FILE, read_log
    from tune.experiments.saved import find_experiment, old_form_error
    from tune.tracking.follower import StoreFollower
    from tune.tracking.tracker import make_tracker

    folder = find_experiment(arguments.experiment, arguments.storage)
    if not (folder.path / EVENTS_FILE).is_file():
        raise old_form_error(folder, f"experiment {folder.name}", "deliver what waits")
    events = read_log(folder.path / EVENTS_FILE).events
    orders, ended = _orders(folder, arguments), threading.Event()
    ended.set()
    followers = [StoreFollower(make_tracker(name, orders), orders, ended) for name in orders.trackers]
    try:
        for follower in followers:
            before = follower.status.delivered
            follower.connect()
            if arguments.tracking_uri and before and not follower.status.delivered:
                _refuse_other_store(follower, orders)
        begun = [(follower.status.delivered, follower.status.progress) for follower in followers]
        waiting = sum(events - delivered for delivered, _ in begun)
        _deliver(followers, waiting)
    finally:
        for follower in followers:
            follower.close()
    _check(followers, waiting, events)
    if begun == [(follower.status.delivered, follower.status.progress) for follower in followers]:
        print(f"nothing waits for the {' and '.join(map(_place, followers))} of {folder.name}")
        return 0
    _fill_in_runs(folder.path / "results.json", followers)
    folder.upload()
    return _tell(followers, orders, waiting)


def _orders(folder: ExperimentFolder, arguments: argparse.Namespace) -> Orders:
    from tune.experiments.saved import read_settings
    from tune.mlflow_store import absolute_tracking_uri, default_artifact_root, is_server
    from tune.tracking.tracker import Orders, trackers_of
    from tune.ui import read_tracking_uri

    settings = read_settings(folder.path)
    if arguments.tracking_uri is None:
        uri = read_tracking_uri(folder.path)
    else:
        uri = absolute_tracking_uri(arguments.tracking_uri)
    return Orders(
        folder=str(folder.path),
        name=folder.name,
        storage=arguments.storage.address,
        trackers=trackers_of(settings),
        tracking_uri=uri,
        artifact_root=None if is_server(uri) else str(default_artifact_root(folder.path)),
        optuna_url=settings.get("optuna_storage"),
        patience=_PATIENCE,
    )


def _refuse_other_store(follower: StoreFollower, orders: Orders) -> None:
    """Refuse another store than the experiment's, which would be told all of it once more."""
    from tune.errors import TrackingError
    from tune.util.redact import hide_password

    if follower.name == "mlflow":
        raise TrackingError(
            f"MLflow store {hide_password(orders.tracking_uri)}: has no run of {orders.name!r}; "
            "--tracking-uri must name the store that the search used"
        )


def _deliver(followers: list[StoreFollower], waiting: int) -> None:
    """Deliver all that waits, or what can be delivered while each store answers."""
    from tune.display import make_console

    threads = [threading.Thread(target=follower.follow, daemon=True) for follower in followers]
    with make_console(error=True).status(f"delivering {waiting:,} events ...") as status:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.2)
            for thread in threads[1:]:
                thread.join(0.1)
            told = ", ".join(f"{each.name}: event {each.status.delivered:,}" for each in followers)
            status.update(f"delivering {waiting:,} events ... {told}")


def _fill_in_runs(results: Path, followers: list[StoreFollower]) -> None:
    """Write the ids of MLflow's runs, where the search could not know them, into `results.json`."""
    runs: Mapping[str, str] = {}
    for follower in followers:
        runs = follower.status.facts.get("run_ids", runs)
    if not runs or not results.is_file():
        return
    content = json.loads(results.read_text(encoding="utf-8"))
    for entry in (*content.get("trials", ()), *content.get("repeats", ())):
        entry["mlflow_run_id"] = runs.get(entry["trial_id"], entry.get("mlflow_run_id"))
    temporary = results.with_name(f".{results.name}")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(results)


def _check(followers: list[StoreFollower], waiting: int, events: int) -> None:
    """Raise `TrackingError` where a store went away before it had all."""
    from tune.errors import TrackingError

    left = sum(events - follower.status.delivered for follower in followers)
    for follower in followers:
        if not follower.complete:
            raise TrackingError(
                f"{follower.status.problem}; {waiting - left:,} events were delivered, {left:,} still wait; "
                "run it again"
            )


def _tell(followers: list[StoreFollower], orders: Orders, waiting: int) -> int:
    """Say what came of it; the exit code."""
    from tune.util.redact import hide_password

    where = [
        hide_password(orders.tracking_uri) if each.name == "mlflow" else _place(each) for each in followers
    ]
    print(f"delivered {waiting:,} events of {orders.name} to {' and '.join(where)}")
    refused = [follower for follower in followers if follower.refused_now]
    for follower in refused:
        print(
            f"warning: {follower.refused_now:,} records were refused for good. {follower.status.reason}",
            file=sys.stderr,
        )
    return EXIT_FAILED if refused else 0


def _place(follower: StoreFollower) -> str:
    return {"mlflow": "MLflow store", "optuna": "Optuna study"}.get(follower.name, follower.name)
