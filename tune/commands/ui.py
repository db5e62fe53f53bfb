"""`tune-whisper ui`: MLflow's own UI on an experiment's store, for this machine only."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tune.commands.options import Parser, add_storage
from tune.experiments.mlflow_store import default_artifact_root, is_server, trials_page
from tune.experiments.saved import find_experiment
from tune.experiments.settings import read_tracking_uri
from tune.tracking.mlflow_connection import open_store
from tune.util.environment import CREDENTIAL_VARIABLES
from tune.util.errors import TrackingError
from tune.util.redact import hide_password, without_password

_HOST = "127.0.0.1"
_FIRST_PORT = 5000
_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_LOG_NAME = "mlflow_ui.log"

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment cannot reach this machine's localhost."""


def ui_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper ui`."""
    parser = Parser(
        prog="tune-whisper ui",
        description="Open the MLflow UI on an experiment, on this machine only.",
    )
    parser.add_argument("experiment", nargs="?", metavar="EXPERIMENT", help="name (default: the newest)")
    add_storage(parser)
    parser.add_argument("--port", type=int, metavar="P", help="port (default: 5000, or the next free one)")
    return parser


def ui(words: list[str]) -> int:
    """Serve the MLflow UI of an experiment until Ctrl-C; for a tracking server, only print its address.

    From an object store the MLflow store is shown as it was last uploaded.

    Raises:
        ExperimentError: no such experiment, or its store is gone.
        StorageError: the object store cannot be read.
        TrackingError: the port is taken, or the store cannot be reached or served.
    """
    arguments = ui_parser().parse_args(words)
    found = find_experiment(arguments.experiment, arguments.storage)
    name, uri = found.path.name, read_tracking_uri(found)
    _, experiment_id = open_store(uri, name)
    page = (
        trials_page(experiment_id) if experiment_id else ""
    )  # the start page while the search is not that far
    if is_server(uri):
        if not page:
            raise TrackingError(f"MLflow store {hide_password(uri)}: has no experiment {name!r}")
        print(f"MLflow UI for {name}: {without_password(uri)}{page}")
        return 0
    try:
        with _serve(uri, found.path, _choose_port(arguments.port)) as (server, url):
            print(f"MLflow UI for {name}: {url}{page}", flush=True)
            print("Ctrl-C ends it.", file=sys.stderr, flush=True)
            server.wait()
    except KeyboardInterrupt:
        return 0
    raise TrackingError(f"the MLflow server ended by itself; see {found.path / _LOG_NAME}")


def _choose_port(port: int | None) -> int:
    """The given port, or the first free one from 5000 on.

    Raises:
        TrackingError: the port cannot be used.
    """
    if port is not None and not 0 < port < 65536:
        raise TrackingError(f"--port {port}: must be from 1 to 65535")
    for candidate in range(_FIRST_PORT, _FIRST_PORT + 100) if port is None else [port]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            try:
                probe.bind((_HOST, candidate))
                return candidate
            except OSError as error:
                if port is not None:
                    reason = (
                        f"--port {port}: {error.strerror}; choose another, or leave it out to take a free one"
                    )
                    raise TrackingError(reason) from error
    raise TrackingError(f"no free port from {_FIRST_PORT} to {_FIRST_PORT + 99}; name one with --port")


@contextmanager
def _serve(uri: str, folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `mlflow server` in a process group of its own, which is gone in the end, however that comes.

    Raises:
        TrackingError: the server did not come up.
    """
    url = f"http://{_HOST}:{port}"
    words = [sys.executable, "-m", "mlflow", "server", "--host", _HOST, "--port", str(port), "--workers", "1"]
    words += ["--artifacts-destination", default_artifact_root(folder).as_uri()]
    log = folder / _LOG_NAME
    try:
        output = log.open("wb")
    except OSError as error:
        raise TrackingError(f"the log of the MLflow server cannot be written: {error}") from error
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    with output:
        server = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(uri),
            start_new_session=True,
        )
    try:
        _wait_until_up(server, url, log)
        yield server, url
    finally:
        _stop(server)
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(uri: str) -> dict[str, str]:
    """The server's environment, with the store's address: as an argument, all could see its password."""
    environment = {name: value for name, value in os.environ.items() if name not in CREDENTIAL_VARIABLES}
    return environment | {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        # Seven processes for jobs that we do not have; without them the server is up in half the time.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def _leave(number: int, frame: Any) -> NoReturn:
    """Signal handler: leave through the `finally` that stops the server."""
    raise SystemExit(128 + number)


def _wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise TrackingError(f"the MLflow server did not start; see {log}")
        try:
            with _DIRECT.open(f"{url}/health", timeout=2):
                return
        except OSError:  # not listening yet
            time.sleep(0.1)
    raise TrackingError(f"the MLflow server did not answer within {_START_SECONDS:g} s; see {log}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started: they share a process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
        except ProcessLookupError:  # all gone
            break
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:  # the next signal cannot be ignored
            continue
    server.wait()
