"""`MlflowRecorder` on SQLite, on a real `mlflow server`, on one that goes away and on stores that refuse."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import Server, children, client_of, wait_for
from s3_server import KEYS, s3_server
from tune.mlflow_logging import MlflowRecorder

from tune.errors import TrackingError
from tune.mlflow_store import (
    TRIALS_VIEW_TAG,
    absolute_tracking_uri,
    default_artifact_root,
    default_tracking_uri,
    package_versions,
    worker_environment,
)
from tune.tracking.mlflow_connection import TrackingStore

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def server(one_server: Server) -> Server:
    """The module's server, started again if a test stopped it: a start takes 5 s and more."""
    if one_server.process is None:
        one_server.start()
    return one_server


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for many tests: making its tables takes a second and more."""
    return default_tracking_uri(tmp_path_factory.mktemp("one store"))


@pytest.fixture
def stub() -> Iterator[Callable[[int, str], str]]:
    """A web server that answers everything with one status and body; gives its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(status: int, body: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()


def begin(recorder: MlflowRecorder, **changes: Any) -> str:
    arguments: dict[str, Any] = {"params": {}, "tags": {}, "description": "", "artifacts": []}
    return recorder.start(**(arguments | changes))


def record_search(recorder: MlflowRecorder, folder: Path) -> str:
    """A search of four trials that end in the four ways there are."""
    space = folder / "space.yaml"
    space.write_text("learning_rate: {type: float, low: 1e-5, high: 1e-3}\n")
    params = {"trials": 4, "learning_rate": None, **{f"search.{i}": i for i in range(120)}}
    parent = begin(
        recorder,
        params=params,
        tags={"model": "demo"},
        description="*A* search",
        artifacts=[space],
        compare=["learning_rate"],
    )
    recorder.log(None, {"baseline_wer": 60.0}, step=0)
    for number, status in enumerate(("completed", "early_stopped", "failed", "diverged")):
        trial = f"{number:03d}"
        settings = {"learning_rate": 3e-5 / (number + 1), "freeze_encoder": False, "warmup_steps": None}
        recorder.trial_started(trial, name=f"{trial} lr", params=settings, tags={"model": "demo"})
        recorder.log(
            trial, {"loss": 2.0, "epoch": 0.5, "optimizer_step": 5}, step=40, timestamp=1_700_000_000.25
        )
        recorder.log(trial, {"wer": 20.0 + number, "cer": 7.0}, step=80, timestamp=1_700_000_010.5)
        recorder.trial_ended(trial, status, metrics={"best_wer": 20.0 + number}, tags={"reason": status})  # type: ignore[arg-type]
    recorder.trial_started("004", name="004 lr", params={}, tags={})
    results = folder / "results.json"
    results.write_text("{}")
    tags = {"best_trial": "000"}
    assert recorder.finish("interrupted", metrics={"best_wer": 20.0}, tags=tags, artifacts=[results]) is None
    return parent


def check_search(client: Any, recorder: MlflowRecorder, parent_id: str) -> None:
    parent = client.get_run(parent_id)
    assert parent.info.status == "KILLED"
    assert parent.info.run_name == client.get_experiment(parent.info.experiment_id).name
    assert len(parent.data.params) == 122
    assert parent.data.params["learning_rate"] == "null"
    assert parent.data.metrics == {"baseline_wer": 60.0, "best_wer": 20.0}
    assert parent.data.tags.items() >= {
        ("model", "demo"),
        ("status", "interrupted"),
        ("best_trial", "000"),
        ("mlflow.source.name", "tune-whisper"),
        ("mlflow.note.content", "*A* search"),
    }
    runs = children(client, parent_id)
    assert parent.data.tags["role"] == "experiment"
    assert {run.data.tags["role"] for run in runs.values()} == {"trial"}
    view = json.loads(client.get_experiment(parent.info.experiment_id).tags[TRIALS_VIEW_TAG])
    assert {"metrics.`best_wer`", "params.`learning_rate`"} < set(view["selectedColumns"])
    assert {trial: (run.info.status, run.data.tags["status"]) for trial, run in runs.items()} == {
        "000": ("FINISHED", "completed"),
        "001": ("KILLED", "early_stopped"),
        "002": ("FAILED", "failed"),
        "003": ("FAILED", "diverged"),
        "004": ("KILLED", "interrupted"),
    }
    for trial, run in runs.items():
        assert recorder.run_id(trial) == run.info.run_id
    first = runs["000"]
    assert first.data.params == {"learning_rate": "3e-05", "freeze_encoder": "false", "warmup_steps": "null"}
    assert first.data.tags["reason"] == "completed"
    assert first.info.start_time <= first.info.end_time <= time.time() * 1000
    (wer,) = client.get_metric_history(first.info.run_id, "wer")
    assert (wer.value, wer.step, wer.timestamp) == (20.0, 80, 1_700_000_010_500)
    (loss,) = client.get_metric_history(first.info.run_id, "loss")
    assert (loss.step, loss.timestamp) == (40, 1_700_000_000_250)
    (best,) = client.get_metric_history(first.info.run_id, "best_wer")
    assert best.step == 80
    assert first.data.metrics["wer_gain"] == 40.0
    names = {file.path for file in client.list_artifacts(parent_id)}
    assert names == {"space.yaml", "versions.json", "results.json"}


def test_search_on_sqlite(tmp_path: Path) -> None:
    folder = tmp_path / "a folder #1"
    folder.mkdir()
    recorder = MlflowRecorder(default_tracking_uri(folder), "my search", default_artifact_root(folder))
    parent = record_search(recorder, folder)
    check_search(client_of(default_tracking_uri(folder)), recorder, parent)
    stored = folder / "mlartifacts" / parent / "artifacts" / "versions.json"
    assert json.loads(stored.read_text()) == package_versions()
    assert recorder.run_url is None


def test_search_on_a_server(server: Server, tmp_path: Path) -> None:
    recorder = MlflowRecorder(server.url, "served search", None)
    parent = record_search(recorder, tmp_path)
    check_search(client_of(server.url), recorder, parent)
    assert recorder.run_url == f"{server.url}/#/experiments/1/runs/{parent}"


def test_everything_is_visible_within_seconds(server: Server) -> None:
    recorder = MlflowRecorder(server.url, "live", None)
    parent = begin(recorder)
    client = client_of(server.url)
    recorder.trial_started("000", name="000", params={"a": 1}, tags={})
    run = wait_for(lambda: children(client, parent).get("000"), 10)
    assert run.info.status == "RUNNING"
    recorder.log("000", {"loss": 1.0}, step=8)
    wait_for(lambda: "loss" in children(client, parent)["000"].data.metrics, 10)
    recorder.log("000", {"wer": 50.0}, step=16)
    wait_for(lambda: "wer" in children(client, parent)["000"].data.metrics, 3)
    assert recorder.problem is None
    assert recorder.finish("completed") is None


def test_nothing_is_lost_when_the_server_goes_away(server: Server) -> None:
    recorder = MlflowRecorder(server.url, "outage", None, flush_seconds=0.2)
    parent = begin(recorder)
    recorder.trial_started("000", name="000", params={}, tags={})
    recorder.log("000", {"wer": 90.0}, step=1)
    server.stop()
    try:
        before = time.monotonic()
        recorder.trial_started("001", name="001", params={"a": 1}, tags={})
        for step in range(2, 2502):
            recorder.log("000", {"wer": 90.0 - step / 100}, step=step)
        recorder.trial_ended("000", "completed")
        assert time.monotonic() - before < 5  # the search does not wait
        wait_for(lambda: "connection refused" in (recorder.problem or ""), 20)
        assert recorder.unwritten > 2500
    finally:
        server.start()
    assert recorder.finish("completed") is None
    runs = children(client_of(server.url), parent)
    history = client_of(server.url).get_metric_history(runs["000"].info.run_id, "wer")
    assert sorted(point.step for point in history) == list(range(1, 2502))
    assert (runs["000"].info.status, runs["001"].data.params) == ("FINISHED", {"a": "1"})


def test_a_server_gone_at_the_end_is_told_in_time(server: Server) -> None:
    recorder = MlflowRecorder(server.url, "gone", None, flush_seconds=0.2, patience=1)
    begin(recorder)
    wait_for(lambda: recorder.unwritten == 0, 10)
    server.stop()
    recorder.log(None, {"a": 1.0, "b": 2.0}, step=0)
    before = time.monotonic()
    line = recorder.finish("completed")
    assert time.monotonic() - before < 60
    assert line is not None
    assert line.startswith("4 MLflow records could not be written.")  # two metrics, the status tag, the end
    assert server.url in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, "You are not authenticated.", "not authorised"),
        (403, "Permission denied", "permission denied"),
        (404, "<html>nothing here</html>", "no MLflow tracking server answers there"),
        (200, "<html>hello</html>", "no MLflow tracking server answers there"),
        (200, '{"experiment": 5}', "Failed to parse experiment field"),
    ],
)
def test_a_server_that_refuses(status: int, body: str, told: str, stub: Callable[[int, str], str]) -> None:
    recorder = MlflowRecorder(f"http://me:secret@{stub(status, body)}", "x", None)
    with pytest.raises(TrackingError, match=told) as caught:
        begin(recorder)
    assert "secret" not in str(caught.value)
    assert "me:***@" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("http://127.0.0.1:9", "connection refused"),
        ("http://nohost.invalid:5000", "unknown host"),
        ("sqlite:////no/such/folder/mlflow.db", "unable to open database file"),
        ("mysql+nodriver://me:secret@db/x", "mysql.nodriver"),
        ("mysql://me:secret@db/x", "MySQLdb"),
        ("postgresql://me:secret@db:port/x", "'port'"),
        ("http://[nohost", "Invalid IPv6 URL"),
        ("gopher://me:secret@host", "no such kind of store"),
    ],
)
def test_an_unreachable_store_is_told_at_once(uri: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    before = time.monotonic()
    with pytest.raises(TrackingError, match=told) as caught:
        begin(MlflowRecorder(uri, "x", None))
    assert time.monotonic() - before < 60
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_an_experiment_of_the_same_name_is_used_again_but_not_a_deleted_one(database: str) -> None:
    experiments = []
    for _ in range(2):
        recorder = MlflowRecorder(database, "again", None)
        parent = begin(recorder)
        recorder.finish("completed")
        experiments.append(client_of(database).get_run(parent).info.experiment_id)
    assert experiments[0] == experiments[1]
    client_of(database).delete_experiment(experiments[0])
    with pytest.raises(TrackingError, match="'again' was deleted; choose another name"):
        begin(MlflowRecorder(database, "again", None))


def test_a_start_that_fails_leaves_no_run(database: str, tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"cannot store missing.yaml"):
        begin(MlflowRecorder(database, "half", tmp_path), artifacts=[tmp_path / "missing.yaml"])
    client = client_of(database)
    assert client.search_runs([client.get_experiment_by_name("half").experiment_id]) == []


def test_what_the_store_refuses_holds_up_nothing_else(database: str) -> None:
    recorder = MlflowRecorder(database, "refused", None)
    parent = begin(recorder)
    recorder.trial_started("000", name="000", params={}, tags={})
    recorder.log("000", {"not a name: *?": 1.0}, step=1)
    wait_for(lambda: recorder.unwritten == 0, 15)
    recorder.log("000", {"wer": 12.0}, step=2)
    recorder.trial_ended("000", "completed")
    line = recorder.finish("completed")
    assert line is not None
    assert line.startswith("1 MLflow records could not be written.")
    assert "not a name" in line
    run = children(client_of(database), parent)["000"]
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"wer": 12.0})


def test_a_lost_answer_does_not_make_a_second_run(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = MlflowRecorder(database, "lost answer", None)
    parent = begin(recorder)
    create, calls = recorder._store.create_run, []

    def create_and_lose(*arguments: Any) -> str:
        calls.append(create(*arguments))
        raise TrackingError("connection reset")

    monkeypatch.setattr(recorder._store, "create_run", create_and_lose)
    recorder.trial_started("000", name="000", params={}, tags={})
    assert recorder.finish("completed") is None
    assert list(children(client_of(database), parent)) == ["000"]
    assert calls == [recorder.run_id("000")]


def test_a_bug_in_the_writer_is_raised(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = MlflowRecorder(database, "bug", None)
    begin(recorder)
    monkeypatch.setattr(recorder._writer, "_flush", lambda run: {}["missing"])
    recorder.log(None, {"wer": 1.0}, step=0)
    assert "KeyError('missing')" in wait_for(lambda: recorder.problem, 10)
    with pytest.raises(RuntimeError, match="3 records are lost") as caught:
        recorder.finish("completed")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.fixture
def s3_keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Keys of nobody, and no patience of the client's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def recorder_with_artifacts(database: str, experiment: str, location: str, **changes: Any) -> MlflowRecorder:
    """As an MLflow server that leaves artifacts to its clients has them: the location is the experiment's."""
    client_of(database).create_experiment(experiment, location)
    return MlflowRecorder(database, experiment, None, **changes)


@pytest.mark.parametrize(
    ("endpoint", "location", "told"),
    [
        ("http://127.0.0.1:9", "s3://bucket/x", "Could not connect"),
        ("nonsense", "s3://bucket/x", "Invalid endpoint: nonsense"),
        ("", "wasbs://box@account.blob.core.windows.net/x", "azure"),
        ("", "ftp://127.0.0.1:9/x", "connection refused"),
    ],
)
def test_an_artifact_store_that_cannot_be_used_is_told_at_once(
    database: str, s3_keys: pytest.MonkeyPatch, endpoint: str, location: str, told: str
) -> None:
    s3_keys.setenv("MLFLOW_S3_ENDPOINT_URL", endpoint)
    name = f"artifacts at {endpoint} {location}"
    with pytest.raises(TrackingError, match=rf"cannot store versions.json in it: .*{told}") as caught:
        begin(recorder_with_artifacts(database, name, location))
    assert "\n" not in str(caught.value)


def test_an_artifact_store_without_the_bucket(database: str, s3_keys: pytest.MonkeyPatch) -> None:
    with s3_server() as server:
        s3_keys.setenv("MLFLOW_S3_ENDPOINT_URL", server.endpoint)
        with pytest.raises(TrackingError, match="NoSuchBucket"):
            begin(recorder_with_artifacts(database, "no bucket", "s3://nobucket/x"))


def test_an_artifact_store_that_goes_away(database: str, s3_keys: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with s3_server() as server:
        s3_keys.setenv("MLFLOW_S3_ENDPOINT_URL", server.endpoint)
        location = f"s3://{server.bucket}/x"
        recorder = recorder_with_artifacts(database, "artifacts gone", location, patience=1)
        begin(recorder)
        server.stop()
        line = recorder.finish("completed", artifacts=[tmp_path / "results.json"])
    assert line is not None
    assert line.startswith("1 MLflow records could not be written.")
    assert "cannot store results.json in it" in line


def test_a_bug_is_not_told_of_the_store(database: str) -> None:
    store = TrackingStore(database, "no store's error", None)
    store.connect()
    run_id = store.create_run("run", {}, 0)
    with pytest.raises(TypeError):
        store.log_batch(run_id, metrics=[("wer",)])


def test_wrong_use_is_told(database: str) -> None:
    recorder = MlflowRecorder(database, "wrong", None)
    with pytest.raises(ValueError, match=r"start\(\) comes first"):
        recorder.log(None, {"a": 1.0}, step=0)
    begin(recorder)
    with pytest.raises(ValueError, match="trial '007' was not started"):
        recorder.trial_ended("007", "completed")
    recorder.trial_started("000", name="000", params={}, tags={})
    recorder.trial_started("000", name="again", params={}, tags={})  # Ray starts a failed trial again
    assert recorder.finish("completed") is None
    assert recorder.run_id("007") is None


def test_long_values_are_shortened_and_nan_is_kept(database: str) -> None:
    recorder = MlflowRecorder(database, "long", None)
    parent = begin(recorder, params={"long": "x" * 7000}, tags={"long": "y" * 9000})
    recorder.log(None, {"wer": float("nan")}, step=0)
    assert recorder.finish("completed") is None
    data = client_of(database).get_run(parent).data
    assert data.params["long"].endswith("... (7000 characters)")
    assert data.tags["long"].endswith("... (9000 characters)")
    assert data.metrics["wer"] != data.metrics["wer"]


def test_it_is_silent(tmp_path: Path) -> None:
    """No log lines of MLflow and alembic, no links, no warnings, whether the store is there or not."""
    code = f"""
from pathlib import Path
from tune.errors import TrackingError
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_store import default_tracking_uri
recorder = MlflowRecorder(default_tracking_uri(Path({str(tmp_path)!r})), "quiet", None)
recorder.start(params={{}}, tags={{}}, description="", artifacts=[])
recorder.log(None, {{"bad name *": 1.0}}, step=0)
assert recorder.finish("completed")
try:
    recorder = MlflowRecorder("http://127.0.0.1:9", "x", None)
    recorder.start(params={{}}, tags={{}}, description="", artifacts=[])
except TrackingError:
    pass
"""
    words = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "NO_PROXY": "*"}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_only_few_modules_can_write() -> None:
    """One process writes: only the recorder's client and the registry import MLflow, and nothing that workers run."""
    users = [
        file.name
        for package in ("trainer", "tune")
        for file in (REPOSITORY / package).rglob("*.py")
        if any(line.lstrip().startswith(("import mlflow", "from mlflow")) for line in file.open())
    ]
    assert sorted(users) == ["mlflow_client.py", "model_files.py", "model_store.py", "speech_model.py"]


def test_workers_get_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    blanks = worker_environment()
    assert blanks["MLFLOW_TRACKING_URI"] == blanks["MLFLOW_TRACKING_PASSWORD"] == ""
    assert set(blanks.values()) == {""}


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_tracking_uri("sqlite:///a b/m.db") == f"sqlite:///{tmp_path}/a b/m.db"
    assert default_tracking_uri(Path("x")) == f"sqlite:///{tmp_path}/x/mlflow.db"
    assert absolute_tracking_uri("http://host:5000/") == "http://host:5000"
    assert absolute_tracking_uri("databricks") == "databricks"
    for name in ("what?", "100%"):
        with pytest.raises(TrackingError, match="cannot hold"):
            default_tracking_uri(tmp_path / name)
