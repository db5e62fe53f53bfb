"""Syncing, beside a search and by `tune-whisper sync`: stores that are slow, away, cut off, come back, or refuse."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import CutProxy
from made_experiments import MadeLog
from mlflow_server import children, client_of, mlflow_server, only_parent, steps, wait_for

from tune.cli import main
from tune.experiments.mlflow_store import absolute_tracking_uri, default_tracking_uri
from tune.experiments.results import run_ids
from tune.tracking.sync import Sync
from tune.util.environment import worker_environment
from tune.util.errors import TrackingError

Begin = Callable[..., Sync]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server; experiments are called as their tests."""
    with mlflow_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture
def proxy(server: str) -> Iterator[CutProxy]:
    """Stands between a search and the server."""
    proxy = CutProxy(server)
    proxy.start()
    yield proxy
    proxy.passing.set()
    proxy.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment's; its name is the experiment's."""
    return tmp_path / "experiments" / tmp_path.name


@pytest.fixture
def made(folder: Path, proxy: CutProxy) -> MadeLog:
    """An experiment whose server is behind the proxy; it is called as its test."""
    return MadeLog(folder, proxy.url)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Begins to sync a log; takes changes of the target."""
    found: list[Sync] = []

    def begin(made: MadeLog, **changes: Any) -> Sync:
        found.append(Sync(made.target(**changes)))
        found[-1].start()
        found[-1].wait()
        return found[-1]

    yield begin
    for each in found:
        each.stop()


def test_cut_in_the_middle_and_back(made: MadeLog, server: str, proxy: CutProxy, begin: Begin) -> None:
    sync = begin(made)
    made.session(trials=3)
    made.begin("001")
    wait_for(lambda: run_ids(made.folder), 10)
    client = client_of(server)
    parent = only_parent(client, made.name)
    proxy.cut_answers = True  # the server takes and writes, and its answer is lost
    made.begin("002")
    wait_for(lambda: sync.problem and "002" in children(client, parent), 30)
    proxy.stop()
    proxy.cut_answers = False
    made.evaluate("001", 50.0)
    made.evaluate("001", 30.0, 12.0, first=1)
    made.end("001")
    made.trial("003", 55.0)
    made.end("002", "failed")
    (made.folder / "report").mkdir()
    secret = '<section id="transcripts"><p>what was\nsaid</p></section>'
    (made.folder / "report" / "report.html").write_text(f"the {secret}report")
    wait_for(lambda: "onnection" in (sync.problem or ""), 30)
    proxy.start()
    made.finish()
    assert sync.finish(timeout=60.0) is None
    runs = children(client, parent)
    assert {key: run.info.status for key, run in runs.items()} == {
        "001": "FINISHED",
        "002": "FAILED",
        "003": "KILLED",
    }
    assert steps(client, runs["001"].info.run_id) == [384, 1088, 3200]
    assert client.get_run(parent).info.status == "FINISHED"
    assert "results.json" in {file.path for file in client.list_artifacts(parent)}
    page = client.download_artifacts(parent, "report/report.html", str(made.folder))
    assert Path(page).read_text() == "the report", "texts and sound of clips stay here"


def test_given_up_at_the_end_and_told_how_to_deliver(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, f"http://me:s3cret@127.0.0.1:{proxy.port}")
    sync = begin(made)
    made.session(trials=1)
    made.begin("001")
    wait_for(lambda: run_ids(made.folder), 10)
    proxy.stop()
    made.evaluate("001", 50.0, 30.0, 12.0)
    made.end("001")
    told = sync.finish(timeout=5.0) or ""
    command = f"tune-whisper sync {made.name} --storage {tmp_path}"
    assert f"7 events wait for MLflow; `{command}` delivers them. " in told
    assert "me:***@127.0.0.1" in told
    assert "s3cret" not in told
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


def test_a_store_that_answers_after_seconds_delays_no_decision(
    made: MadeLog, server: str, proxy: CutProxy, begin: Begin
) -> None:
    sync = begin(made)
    made.session(trials=1)
    made.begin("001")
    wait_for(lambda: run_ids(made.folder), 10)
    proxy.passing.clear()
    opening = threading.Timer(5.0, proxy.passing.set)
    opening.start()
    longest = 0.0
    for seen in range(10, 400, 10):
        before = time.monotonic()
        made.measure("001", seen, 50.0)
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.1)
    opening.join()
    assert longest < 0.2
    made.end("001")
    made.finish()
    assert sync.finish(timeout=60.0) is None
    client = client_of(server)
    runs = children(client, only_parent(client, made.name))
    assert steps(client, runs["001"].info.run_id) == list(range(10, 400, 10))


def test_a_server_that_hangs_holds_up_nobody(made: MadeLog, proxy: CutProxy, begin: Begin) -> None:
    sync = begin(made)
    proxy.passing.clear()
    made.whole()
    before = time.monotonic()
    assert "18 events wait for MLflow" in (sync.finish(timeout=2.0) or "")
    assert time.monotonic() - before < 10


def test_a_fault_with_one_store_is_told_and_holds_up_no_other(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    sync = begin(made, stores=["tensorboard", "mlflow"])
    (folder / "tensorboard").write_text("a file where a folder is to be")
    made.whole()
    assert "tensorboard: cannot be removed: Not a directory" in str(wait_for(lambda: sync.problem, 10))
    wait_for(lambda: len(run_ids(folder)) == 2, 20)
    (folder / "tensorboard").unlink()
    assert sync.finish() is None
    assert (folder / "tensorboard" / "001").is_dir()


def test_a_damaged_line_is_told_and_what_came_before_is_delivered(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    made.whole()
    sync = begin(made, stores=["mlflow"])
    assert len(run_ids(folder)) == 2
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"n": 20}\n')
    assert "line 19 is damaged" in str(wait_for(lambda: sync.problem, 10))
    assert "line 19 is damaged" in str(sync.finish())


def words(made: MadeLog, *more: str) -> list[str]:
    """Of `tune-whisper sync`."""
    return ["sync", made.name, "--storage", str(made.folder.parent), *more]


def test_what_waits_is_delivered_once(
    made: MadeLog, server: str, proxy: CutProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    made.whole()
    entries = [{"trial_id": trial, "mlflow_run_id": None} for trial in ("001", "002")]
    (made.folder / "results.json").write_text(json.dumps({"trials": entries, "repeats": []}))
    proxy.stop()
    assert main(words(made)) == 2
    error = capsys.readouterr().err
    assert "cannot be reached: Connection refused; is the server running?" in error
    assert error.count("\n") == 1
    proxy.start()
    assert main(words(made)) == 0
    assert capsys.readouterr().out == f"MLflow and the Optuna study: all 18 events of {made.name} are there\n"
    client = client_of(server)
    runs = children(client, only_parent(client, made.name))
    assert steps(client, runs["001"].info.run_id) == [384, 1088, 3200]
    found = json.loads((made.folder / "results.json").read_text())["trials"]
    assert {entry["trial_id"]: entry["mlflow_run_id"] for entry in found} == {
        key: run.info.run_id for key, run in runs.items()
    }
    assert main(words(made)) == 0
    assert {key: run.info.run_id for key, run in runs.items()} == run_ids(made.folder)
    assert children(client, only_parent(client, made.name)).keys() == runs.keys()


def test_another_store_gets_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its ids would stand for those of the search's own store."""
    made = MadeLog(folder)
    made.whole()
    made.deliver()
    other = f"sqlite:///{tmp_path}/other.db"
    assert main(words(made, "--tracking-uri", other)) == 2
    assert "--tracking-uri must name the store that the search used" in capsys.readouterr().err
    assert client_of(other).get_experiment_by_name(made.name) is None


def test_a_search_syncs_now(
    folder: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tune.tracking.sync._LOCK_SECONDS", 0.5)
    made = MadeLog(folder)
    made.whole()
    running = begin(made)
    assert main(words(made)) == 2
    assert f"process {os.getpid()} syncs it now" in capsys.readouterr().err
    running.stop()
    assert main(words(made)) == 0


def test_an_experiment_without_mlflow_needs_no_store_of_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "x", track=["tensorboard"], tracking_uri=f"sqlite:///{tmp_path}/never.db")
    made.whole()
    assert main(["sync", "x", "--storage", str(tmp_path)]) == 0
    assert not (tmp_path / "never.db").exists()


def test_a_tracking_server_has_its_own_ui(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeLog(tmp_path / tmp_path.name, server)
    made.session()
    made.deliver()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("://", "://me:secret@"))
    assert main(["ui", made.name, "--storage", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"MLflow UI for {made.name}: {server}/#/experiments/")
    assert "secret" not in output


def open_store(folder: Path, uri: str) -> None:
    """What a search does before it begins: the store is opened."""
    MadeLog(folder / "x", uri).deliver()


@pytest.mark.parametrize(
    ("status", "told"), [(401, "not authorised"), (404, "no MLflow tracking server answers there")]
)
def test_a_server_that_refuses(status: int, told: str, tmp_path: Path) -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(TrackingError, match=told) as caught:
            open_store(tmp_path, f"http://me:secret@127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "secret" not in str(caught.value)
    assert "me:***@" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("http://nohost.invalid:5000", "cannot be reached: Name or service not known|name resolution"),
        ("gopher://me:secret@host", "no such kind of store"),
        (
            "mlruns",
            "mlruns: is a file store, .* mlflow migrate-filestore --source mlruns --target sqlite:///",
        ),
        ("file:///x%20y", "mlflow migrate-filestore --source '/x y' --target"),
    ],
)
def test_a_store_that_is_not_there(
    uri: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(TrackingError, match=told) as caught:
        open_store(tmp_path, uri)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("words", ["--space lr_batch", "--space lr_batch --dry-run", "train"])
def test_a_file_store_is_refused_before_the_data_is_looked_at(
    words: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """As MLflow itself does from 3.13 on, in a page."""
    place = ["--storage", str(tmp_path / "x"), "--tracking-uri", f"file:{tmp_path}/mlruns"]
    line = refused(*words.split(), *place, "--data", str(tmp_path), "--model", "demo", "--language", "en")
    assert line.startswith(f"error: MLflow store file:{tmp_path}/mlruns: is a file store, ")


def test_a_locked_database_is_one_line_and_gets_the_rest_later(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "x")
    made.session(trials=1)
    made.deliver()
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TrackingError, match="the database is locked by another process"):
            made.deliver()
    made.deliver()


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
