"""A real `mlflow server` that can go away and come back; SQLite databases whose tables, which take MLflow two
seconds, are copied.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from processes import free_port

ROOT = Path(__file__).resolve().parents[2]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """The server on a free port that it keeps over a restart, with SQLite behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "server.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and wait until it answers: 5 s and more."""
        if not self.database.exists():
            shutil.copy(empty_database(), self.database)
        words = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(self.port)]
        words += ["--backend-store-uri", f"sqlite:///{self.database}"]
        words += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "DO_NOT_TRACK": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        wait_for(self.is_up, 120)

    def stop(self) -> None:
        """Kill it, as when a machine goes away."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            wait_for(lambda: not self.is_up(), 20)

    def is_up(self) -> bool:
        """Whether it answers."""
        return _answers(self.url)


def _answers(url: str) -> bool:
    try:
        with DIRECT.open(f"{url}/health", timeout=2):
            return True
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    """What `condition` returns once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s")


def client_of(uri: str) -> Any:
    """MLflow's own client, to see what a store has."""
    from mlflow import MlflowClient

    return MlflowClient(uri)


def children(client: Any, parent_id: str) -> dict[str, Any]:
    """The runs of a search's trials, by trial; no trial may have two."""
    experiment = client.get_run(parent_id).info.experiment_id
    runs = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent_id}'")
    found = {run.data.tags["trial_id"]: run for run in runs}
    assert len(found) == len(runs)
    return found


def only_parent(client: Any, name: str) -> str:
    """The search's run; a second one would be a mistake."""
    experiment = client.get_experiment_by_name(name)
    (run,) = client.search_runs([experiment.experiment_id], "tags.role = 'experiment'")
    return str(run.info.run_id)


def steps(client: Any, run_id: str, key: str = "wer") -> list[int]:
    """Steps of all points in the order of their time; the same point twice would be there twice."""
    history = client.get_metric_history(run_id, key)
    return [point.step for point in sorted(history, key=lambda point: point.timestamp)]


@contextlib.contextmanager
def running_ui(
    storage: Path, port: int | None = None, name: str = "new one"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, as a terminal starts it, and the address that it prints."""
    words = ["ui", "--storage", str(storage), *(["--port", str(port)] if port else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(rf"MLflow UI for {name}: (http://127\.0\.0\.1:\d+/#/experiments/1/\S+)\n", line)
        assert match, line + (process.communicate()[1] if process.poll() is not None else "")
        wait_for(lambda: process.poll() is not None or _answers(match.group(1).split("/#")[0]), 120)
        yield process, match.group(1)
    finally:
        process.terminate()
        process.wait(30)


def search_runs(base: str, query: str) -> list[dict[str, Any]]:
    """The runs of an experiment that its page would list, best first."""
    body = {"experiment_ids": ["1"], "filter": query, "order_by": ["metrics.wer ASC"]}
    request = urllib.request.Request(
        f"{base}/api/2.0/mlflow/runs/search", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with DIRECT.open(request) as answer:
        runs: list[dict[str, Any]] = json.load(answer)["runs"]
        return runs


def shared_folder() -> Path:
    """What the processes of this run of the tests have in common."""
    run = os.environ["TEST_RUN"]
    folder = Path(tempfile.gettempdir()) / f"tune-whisper-tests-{os.getuid()}" / run
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy_tables() -> None:
    """Let MLflow's own store, in this process, begin new SQLite databases as such copies."""
    from mlflow.store.db import utils
    from mlflow.store.model_registry import sqlalchemy_store

    _as_ever()
    utils._initialize_tables = sqlalchemy_store._initialize_tables = _initialize


def empty_database() -> Path:
    """One with tables and no more."""
    import sqlalchemy

    empty = shared_folder() / "mlflow.db"
    if not empty.is_file():
        own = empty.with_name(f"mlflow-{os.getpid()}.db")
        engine = sqlalchemy.create_engine(f"sqlite:///{own}")
        _as_ever()(engine)
        engine.dispose()
        own.replace(empty)
    return empty


@functools.cache
def _as_ever() -> Callable[[Any], None]:
    from mlflow.store.db import utils

    done: Callable[[Any], None] = utils._initialize_tables
    return done


def _initialize(engine: Any) -> None:
    path = engine.url.database if engine.url.drivername == "sqlite" else None
    if path:
        with (
            contextlib.closing(sqlite3.connect(empty_database())) as empty,
            contextlib.closing(sqlite3.connect(path)) as new,
        ):
            if not new.execute("select count(*) from sqlite_master").fetchone()[0]:
                empty.backup(new)
                return
    _as_ever()(engine)
