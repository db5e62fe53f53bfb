"""`tune-whisper ui`: MLflow's own UI on all experiments of a storage, for this machine only."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from collections.abc import Sequence

from trainer.errors import UserError
from tune.commands.options import Parser, add_storage
from tune.experiments.experiment import Experiment, find_experiment
from tune.experiments.mlflow_store import ARTIFACTS, default_tracking_uri, is_server, trials_page
from tune.experiments.storage import Storage
from tune.tracking.mlflow import find_own
from tune.tracking.mlflow_connection import open_store, store_errors
from tune.tracking.sync import Sync, Target
from tune.util.environment import CREDENTIAL_VARIABLES
from tune.util.errors import TrackingError
from tune.util.redact import hide_password, without_password

_HOST = "127.0.0.1"
_FIRST_PORT = 5000


def ui_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper ui",
        description="Show all experiments of a storage in the MLflow UI, opened at one of them. Only this machine can "
        "reach it.",
    )
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="name (default: the newest)")
    add_storage(parser)
    parser.add_argument("--port", type=int, metavar="P", help="port (default: 5000, or the next free one)")
    return parser


def ui(words: list[str]) -> int:
    """Serve the MLflow UI of a storage, opened at an experiment, until Ctrl-C; of a server, only print its address."""
    arguments = ui_parser().parse_args(words)
    folder = find_experiment(arguments.experiment, arguments.storage)
    name, uri = folder.path.name, Experiment.read(folder).tracking_uri
    if uri == default_tracking_uri(folder.mlflow_home):
        names = [name] if folder.remote else arguments.storage.names()
        _write_missing(names, arguments.storage, uri)
    _, experiment_id = open_store(uri, name)
    page = trials_page(experiment_id) if experiment_id else ""  # the start page: the search is not that far
    if is_server(uri):
        if not page:
            raise TrackingError(f"MLflow store {hide_password(uri)}: has no experiment {name!r}")
        print(f"MLflow UI for {name}: {without_password(uri)}{page}")
        return 0
    port = _choose_port(arguments.port)
    print(f"MLflow UI for {name}: http://{_HOST}:{port}{page}")
    print("It is there in some seconds; Ctrl-C ends it.", file=sys.stderr)
    words = ["-m", "mlflow", "server", "--host", _HOST, "--port", str(port), "--workers", "1"]
    words += ["--artifacts-destination", (folder.mlflow_home / ARTIFACTS).as_uri()]
    words += ["--uvicorn-opts", "--log-level warning"]
    sys.stdout.flush()
    return os.execve(sys.executable, [sys.executable, *words], _environment(uri))


def _write_missing(names: Sequence[str], storage: Storage, uri: str) -> None:
    """Write the experiments that were moved or copied here, and that their store lacks, from their logs."""
    for name in names:
        try:
            client, experiment_id = open_store(uri, name)
            folder = find_experiment(name, storage)
            saved = Experiment.read(folder)
            if saved.tracking_uri != uri:
                continue
            with store_errors(uri):
                known = experiment_id is not None and find_own(client, experiment_id, saved.state.created)
            if not known:
                Sync(Target(folder=folder, option=storage.option, tracking_uri=uri)).once()
        except UserError as problem:  # the others are shown
            print(f"{name} is not shown: {problem}", file=sys.stderr)


def _choose_port(port: int | None) -> int:
    """The given port, or the first free one from 5000 on.

    Raises:
        TrackingError: the port cannot be used.
    """
    for candidate in [port] if port else range(_FIRST_PORT, _FIRST_PORT + 100):
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind((_HOST, candidate))
            return candidate
    raise TrackingError(
        f"--port {port or f'{_FIRST_PORT} to {_FIRST_PORT + 99}'}: cannot be used, or others use it; choose another "
        "from 1 to 65535"
    )


def _environment(uri: str) -> dict[str, str]:
    """The server's environment, with the store's address: as an argument, all could see its password."""
    environment = {name: value for name, value in os.environ.items() if name not in CREDENTIAL_VARIABLES}
    return environment | {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        # Seven processes for jobs that we do not have; without them the server is up in half the time.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
