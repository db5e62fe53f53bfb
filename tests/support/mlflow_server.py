"""A real `mlflow server`, and what a store has."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from processes import free_port

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a server with a database in the folder: 5 s and more until it answers."""
    database, port = folder / "server.db", free_port()
    shutil.copy(empty_database(), database)
    words = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)]
    words += ["--backend-store-uri", f"sqlite:///{database}"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "DO_NOT_TRACK": "true"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}"), 120)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
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


def shared_folder() -> Path:
    """What the processes of this run of the tests have in common."""
    run = os.environ["TEST_RUN"]
    folder = Path(tempfile.gettempdir()) / f"tune-whisper-tests-{os.getuid()}" / run
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def empty_database() -> Path:
    """One with MLflow's tables and no more, which take MLflow two seconds: to be copied."""
    empty = shared_folder() / "mlflow.db"
    if not empty.is_file():
        import sqlalchemy
        from mlflow.store.db.utils import _initialize_tables

        own = empty.with_name(f"mlflow-{os.getpid()}.db")
        engine = sqlalchemy.create_engine(f"sqlite:///{own}")
        _initialize_tables(engine)
        engine.dispose()
        own.replace(empty)
    return empty
