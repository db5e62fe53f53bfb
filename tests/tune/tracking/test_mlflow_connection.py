"""MLflow stores that cannot be used, and what is said of them; who may write to one."""

from __future__ import annotations

import contextlib
import http.server
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeLog

from tune.experiments.mlflow_store import absolute_tracking_uri, default_tracking_uri
from tune.util.environment import worker_environment
from tune.util.errors import TrackingError


def begin(folder: Path, uri: str) -> None:
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
            begin(tmp_path, f"http://me:secret@127.0.0.1:{server.server_port}")
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
        begin(tmp_path, uri)
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
