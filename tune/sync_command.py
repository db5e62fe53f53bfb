"""`tune-whisper sync`: bring to MLflow what a killed or impatient search left waiting on disk."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from tune.arguments import EXIT_FAILED, Parser, add_storage, add_tracking_uri

if TYPE_CHECKING:
    from pathlib import Path

    from tune.mlflow_records import Run
    from tune.mlflow_writer import StoreWriter
    from tune.tracking.mlflow_connection import TrackingStore

_PATIENCE = 30.0
"""Seconds without an answer after which the rest is left for another time."""


def sync_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper sync`."""
    parser = Parser(
        prog="tune-whisper sync",
        description="Deliver to MLflow what waits on disk because the store was away when the search ended.",
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
    """Run `tune-whisper sync`; the exit code: 0, or 1 where the store refused some records for good.

    Raises:
        ExperimentError: there is no such experiment, or a search runs in it now.
        StorageError: the object store that holds it cannot be read or written.
        TrackingError: the MLflow store is away or another one, or the queue cannot be read.
    """
    arguments = sync_parser().parse_args(words)
    from tune.mlflow_journal import JOURNAL_FILE, Journal
    from tune.mlflow_store import absolute_tracking_uri, check_store, hide_password
    from tune.mlflow_writer import StoreWriter
    from tune.results import find_experiment
    from tune.search_state import SearchState
    from tune.tracking.mlflow_connection import TrackingStore
    from tune.ui import read_tracking_uri

    folder = find_experiment(arguments.experiment, arguments.storage)
    SearchState(folder.path).lock()
    journal = Journal(folder.path / JOURNAL_FILE)
    runs = [run for run in journal.open() if run.waiting] if journal.path.exists() else []
    if not runs:
        print(f"nothing waits for the MLflow store of {folder.name}")
        return 0
    if arguments.tracking_uri is None:
        uri = read_tracking_uri(folder.path)
    else:
        uri = absolute_tracking_uri(arguments.tracking_uri)
    check_store(uri)
    store = TrackingStore(uri, folder.name, None)
    store.connect(create=False)
    _check_run(store, folder.path, runs)
    writer = StoreWriter(store, flush_seconds=0.0, patience=_PATIENCE, journal=journal)
    writer.take_over(sorted(runs, key=lambda run: run.key is None))  # the search's own run ends last
    reason = _deliver(writer, sum(run.size for run in runs), journal.path)
    folder.upload()
    print(f"delivered {writer.taken:,} records of {folder.name} to {hide_password(uri)}")
    if writer.lost:
        print(f"warning: {writer.lost:,} records were refused for good. {reason}", file=sys.stderr)
    return EXIT_FAILED if writer.lost else 0


def _check_run(store: TrackingStore, folder: Path, runs: list[Run]) -> None:
    """Refuse another store than the experiment's, which would refuse all records for good."""
    from tune.errors import TrackingError
    from tune.mlflow_store import hide_password
    from tune.search_state import STATE_FILE

    known = [run.run_id or run.waiting[0].content["tags"]["mlflow.parentRunId"] for run in runs]
    state = folder / STATE_FILE
    if state.is_file():
        known.insert(0, json.loads(state.read_text(encoding="utf-8"))["parent_run_id"])
    if not store.has_run(known[0]):
        raise TrackingError(
            f"MLflow store {hide_password(store.uri)}: has no run {known[0]} of {store.experiment!r}; "
            "--tracking-uri must name the store that the search used"
        )


def _deliver(writer: StoreWriter, total: int, journal: Path) -> str | None:
    """Write all that waits; why some of it was refused, if any was.

    Raises:
        TrackingError: the store went away before all was delivered.
    """
    from tune.display import make_console
    from tune.errors import TrackingError

    with make_console(error=True).status(f"delivering {total:,} records ...") as status:
        writer.start()
        reason = writer.close(
            progress=lambda: status.update(f"delivered {writer.taken:,} of {total:,} records ...")
        )
    waiting = writer.unwritten
    if waiting:
        raise TrackingError(
            f"{reason}; {writer.taken:,} records were delivered, {waiting:,} still wait in {journal}; run it again"
        )
    return reason
