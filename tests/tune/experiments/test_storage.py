"""Experiments on a server that speaks S3: addresses, transfers, the server away, a whole search."""

import json
import os
import pickle
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from made_experiments import MadeLog
from mlflow_server import wait_for
from s3_server import KEYS, S3Server, give_keys, s3_server

from trainer.config import TrainConfig
from tune.experiments.experiment import Experiment, find_experiment
from tune.experiments.folder import ExperimentFolder
from tune.experiments.mlflow_store import default_artifact_root, default_tracking_uri
from tune.experiments.object_stores.object_store import ObjectStore, StorageError, inside
from tune.experiments.paths import settled
from tune.experiments.storage import EXPERIMENT_NAME, Storage, dated_name
from tune.runs.uploader import Uploader
from tune.tracking.mlflow_connection import open_store
from tune.util.errors import ExperimentError

DOWN = "endpoint_override=127.0.0.1:9&scheme=http"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys of nobody, and a cache of the test's own."""
    give_keys(monkeypatch)
    move_to_machine("first", monkeypatch, tmp_path)


def move_to_machine(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another machine: a home with no files of ours."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name / "cache"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3:/bucket/prefix", "an address begins with s3://"),
        ("s3://", "names no bucket"),
        ("s3://key:hush@bucket/prefix", "holds credentials"),
        ("s3://key:hu/sh@bucket/prefix", "holds credentials"),
        ("gs://bucket/p?endpoint_override=http://me:hush@host", "holds credentials"),
        ("s3://bucket/p?access_key=hush", "endpoint_override, scheme, region"),
        ("ftps3://bucket/prefix", "ftps3:// cannot be used here"),
        ("", "is empty"),
    ],
)
def test_an_address_that_cannot_be_one(text: str, said: str, refused: Callable[..., str]) -> None:
    line = refused("export", "x", "--output", "y", "--storage", text)
    assert said in line and "hu" not in line


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://nobucket/x?{query}", "there is no bucket 'nobucket'"),
        (f"s3://experiments/x?{DOWN}", "cannot be reached"),
    ],
)
def test_a_storage_that_cannot_be_used_stops_a_search_at_once(
    address: str, said: str, server: S3Server, refused: Callable[..., str]
) -> None:
    storage = address.replace("{query}", server.query)
    began = time.monotonic()
    line = refused("--space", "lr_batch", "--storage", storage, "--experiment", "x")
    assert line.startswith("error: --storage s3://") and said in line
    assert time.monotonic() - began < 60


def test_keys_that_are_refused() -> None:
    refused_there = pytest.raises(StorageError, match="access was denied")
    with s3_server(refuses=True) as server, refused_there as refused:
        Storage.parse(server.uri("x")).check()
    assert "AWS_PROFILE" in str(refused.value)
    assert not [key for key in KEYS.values() if key in str(refused.value)]


@pytest.mark.parametrize("by_environment", [False, True])
def test_ray_gets_a_file_system_without_keys(
    by_environment: bool, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = server.uri("a/b")
    if by_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        uri = uri.split("?")[0]
    storage = Storage.parse(uri)
    storage.check()
    told = storage.experiment("one").ray_storage()
    assert told["storage_path"] == "experiments/a/b/one"
    sent = pickle.dumps(told["storage_filesystem"])
    assert not [key for key in KEYS.values() if key.encode() in sent]
    # On a worker whose environment does not name the endpoint:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    info = pickle.loads(sent).get_file_info(["experiments"])[0]
    assert info.type.name == "Directory"


def make_experiment(folder: ExperimentFolder) -> mlflow.MlflowClient:
    """What a search has written after its first trial; the MLflow store is still open."""
    folder.path.mkdir(parents=True)
    uri = default_tracking_uri(folder.mlflow_home)
    made = MadeLog(folder.path)
    made.session()
    made.close()
    folder.upload_log(lambda: None)
    (folder.path / "results.json").write_text(json.dumps({"best": None, "trials": []}))
    (folder.path / ".hidden.partial").write_text("half")
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment(
        folder.name, default_artifact_root(folder.mlflow_home, folder.name).as_uri()
    )
    run = client.create_run(experiment, tags={"role": "experiment"})
    client.log_artifact(run.info.run_id, str(folder.path / "experiment.yaml"))
    client.log_metric(run.info.run_id, "wer", 42.0, step=100)
    return client


def test_another_machine_gets_all_but_the_checkpoints(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.parse(server.uri("moved"))
    folder = storage.experiment("one")
    assert not folder.exists()
    client = make_experiment(folder)
    folder.upload()  # while MLflow has its file open
    (run,) = client.search_runs(["1"])
    client.set_terminated(run.info.run_id)
    store = ObjectStore(server.uri("moved"))
    before = store.files("one")
    time.sleep(1.1)  # S3 tells whole seconds
    folder.upload()
    after = store.files("one")
    changed = {name for name in after if before.get(name) != after[name]}
    assert "mlflow.db" in changed
    assert "experiment.yaml" not in changed
    store.write("one/trials/001/checkpoint_000000/config.json", b"{}")
    store.write("one/trials/001/checkpoint_000000/optimizer.pt", b"large")

    move_to_machine("second", monkeypatch, tmp_path)
    there = find_experiment("one", storage)
    assert str(tmp_path / "second") in str(there.path)
    assert Experiment.read(there).state.options.trials == 4
    assert json.loads((there.path / "results.json").read_text())["trials"] == []
    with closing(sqlite3.connect(there.path / "mlflow.db")) as database:
        assert database.execute("SELECT value FROM metrics WHERE key = 'wer'").fetchall() == [(42.0,)]
    names = {str(path.relative_to(there.path)) for path in there.path.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith((".", "mlartifacts/"))} == {
        *("experiment.yaml", "space.yaml", "events.jsonl", "results.json", "mlflow.db")
    }
    assert ".hidden.partial" not in names
    # As this machine sees it: the file of the first one is not there.
    (tmp_path / "first").rename(tmp_path / "gone")
    client, _ = open_store(Experiment.read(there).tracking_uri, "one")
    (run,) = client.search_runs(["1"], filter_string="tags.role = 'experiment'")
    assert "experiment.yaml" in {item.path for item in client.list_artifacts(run.info.run_id)}
    with there.checkpoint("trials/001/checkpoint_000000") as checkpoint:
        assert [path.name for path in checkpoint.iterdir()] == ["config.json"]
    lost = there.checkpoint("trials/001/checkpoint_000009")
    with pytest.raises(ExperimentError, match="is gone from s3://experiments/moved/one"), lost:
        pass


def test_a_copy_that_is_written_here_is_not_replaced(server: S3Server) -> None:
    folder = Storage.parse(server.uri("kept")).experiment("one")
    folder.path.mkdir(parents=True)
    (folder.path / "experiment.yaml").write_text("first")
    folder.upload()
    (folder.path / "experiment.yaml").write_text("not yet uploaded")
    folder.download()
    assert (folder.path / "experiment.yaml").read_text() == "not yet uploaded"
    time.sleep(1.1)
    ObjectStore(server.uri("kept")).write("one/experiment.yaml", b"by another machine")
    folder.download()
    assert (folder.path / "experiment.yaml").read_text() == "by another machine"


def test_a_copy_is_not_replaced_by_what_is_brought_while_it_is_looked_at(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report beside a running search took its newest file for older than the store's."""
    folder = Storage.parse(server.uri("beside")).experiment("one")
    folder.path.mkdir(parents=True)
    file = folder.path / "progress.jsonl"
    file.write_text("1\n")
    folder.upload()
    listed, bringing = folder.store.files, threading.Thread(target=folder.upload)

    def files(*words: str) -> dict[str, Any]:
        found = listed(*words)
        time.sleep(1.1)
        file.write_text("1\n2\n")
        bringing.start()
        bringing.join(2)
        file.write_text("1\n2\n3\n")
        return found

    monkeypatch.setattr(folder.store, "files", files)
    folder.download()
    bringing.join()
    assert file.read_text() == "1\n2\n3\n"


def test_a_name_from_a_file_is_one_that_an_experiment_can_have() -> None:
    for stem in ("прастора", "_x", ".x", "a" * 300, "lr_batch"):
        assert EXPERIMENT_NAME.fullmatch(dated_name(stem))
    assert dated_name("lr_batch").startswith("lr_batch-20")


def test_a_data_folder_may_have_the_name_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("small", "demo"):
        Path(name).mkdir()
    found = settled(TrainConfig(data="small", model="small"))
    assert (found.data, found.model) == (str(tmp_path / "small"), "small")
    assert settled(TrainConfig(data="demo")).data == "demo"


def test_the_server_goes_away_and_comes_back() -> None:
    told: list[str] = []
    with s3_server() as server:
        folder = Storage.parse(server.uri("away")).experiment("one")
        folder.path.mkdir(parents=True)
        (folder.path / "experiment.yaml").write_text("x")
        # Without an owner, whose marker would be gone with all else that this server has.
        experiment: Any = SimpleNamespace(folder=folder, upload=folder.upload, problem=None)
        uploader = Uploader(experiment, told.append, every=0.1)
        uploader.start()
        wait_for(lambda: bool(ObjectStore(server.uri("away")).files("one")), 200)
        server.stop()
        (folder.path / "results.json").write_text("1")
        wait_for(lambda: bool(told), 200)
        server.start()
        wait_for(lambda: "results.json" in ObjectStore(server.uri("away")).files("one"), 200)
        assert len(told) == 1
        assert "cannot be reached" in told[0]
        server.stop()
        (folder.path / "results.json").write_text("22")
        uploader.finish(patience=0.1)
        assert len(told) in (2, 3)  # the thread may have seen it first
        assert f"were not uploaded and are in {folder.path}" in told[-1]
        assert not uploader.is_alive()
        server.start()
        folder.upload()  # a later run, or by hand
        assert ObjectStore(server.uri("away")).read("one/results.json") == b"22"


def test_a_name_may_be_shortened_and_the_newest_needs_none(tmp_path: Path) -> None:
    storage = Storage.parse(str(tmp_path))
    for age, name in enumerate(("be-1", "de-11", "de-1", "de-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.yaml").touch()
        os.utime(tmp_path / name / "experiment.yaml", (age, age))
    found = {name: find_experiment(name, storage).name for name in (None, "b", "de-1", "de-11")}
    assert found == {None: "de-2", "b": "be-1", "de-1": "de-1", "de-11": "de-11"}
    with pytest.raises(ExperimentError, match="experiment 'de': de-11, de-1, de-2 begin with it; give more"):
        find_experiment("de", storage)


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(StorageError, match="points outside"):
            inside(tmp_path, name)
