"""`tune-whisper sync`: what waits in a log is delivered, once, to the right store, by one process at a time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from cut_proxy import CutProxy
from made_logs import MadeLog, whole_search
from mlflow_server import Server, children, client_of, empty_database, only_parent, steps

from tune.cli import main
from tune.commands.sync import sync
from tune.experiments.results import run_ids
from tune.tracking.sync import Sync
from tune.util.errors import TrackingError


@pytest.fixture
def made(tmp_path: Path, proxy: CutProxy) -> MadeLog:
    """An experiment whose server is behind the proxy; its name is that of the test."""
    return MadeLog(tmp_path / "experiments" / tmp_path.name, proxy.url)


def words(made: MadeLog, *more: str) -> list[str]:
    """What comes after `tune-whisper sync`."""
    return [made.name, "--storage", str(made.folder.parent), *more]


def test_what_waits_is_delivered_once(
    made: MadeLog, server: Server, proxy: CutProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    whole_search(made)
    entries = [{"trial_id": trial, "mlflow_run_id": None} for trial in ("001", "002")]
    (made.folder / "results.json").write_text(json.dumps({"trials": entries, "repeats": []}))
    proxy.stop()
    assert main(["sync", *words(made)]) == 2
    error = capsys.readouterr().err
    assert "cannot be reached: Connection refused; is the server running?" in error
    assert error.count("\n") == 1
    proxy.start()
    assert sync(words(made)) == 0
    assert capsys.readouterr().out == f"MLflow and the Optuna study: all 18 events of {made.name} are there\n"
    client = client_of(server.url)
    runs = children(client, only_parent(client, made.name))
    assert steps(client, runs["001"].info.run_id) == [384, 1088, 3200]
    found = json.loads((made.folder / "results.json").read_text())["trials"]
    assert {entry["trial_id"]: entry["mlflow_run_id"] for entry in found} == {
        key: run.info.run_id for key, run in runs.items()
    }
    assert sync(words(made)) == 0
    assert {key: run.info.run_id for key, run in runs.items()} == run_ids(made.folder)
    assert children(client, only_parent(client, made.name)).keys() == runs.keys()


def test_another_store_gets_nothing(made: MadeLog, tmp_path: Path) -> None:
    """Its ids would stand for those of the search's own store."""
    whole_search(made)
    made.deliver()
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(TrackingError, match=r"--tracking-uri must name the store that the search used"):
        sync(words(made, "--tracking-uri", other))
    assert client_of(other).get_experiment_by_name(made.name) is None


def test_a_store_that_was_emptied_is_told_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = MadeLog(tmp_path / "x")
    whole_search(made)
    made.deliver()
    moved = tmp_path / "elsewhere" / "x"
    shutil.move(made.folder, moved)
    shutil.copy(empty_database(), moved / "mlflow.db")
    assert sync(["x", "--storage", str(moved.parent)]) == 0
    assert "all 18 events of x are there" in capsys.readouterr().out
    client = client_of(f"sqlite:///{moved}/mlflow.db")
    assert set(children(client, only_parent(client, "x"))) == {"001", "002"}


def test_a_search_syncs_now(made: MadeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tune.tracking.sync._LOCK_SECONDS", 0.5)
    whole_search(made)
    with Sync(made.target()) as running:
        running.start()
        running.wait()
        with pytest.raises(TrackingError, match=rf"process {os.getpid()} syncs it now"):
            sync(words(made))
    assert sync(words(made)) == 0
