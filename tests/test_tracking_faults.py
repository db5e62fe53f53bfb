"""MLflow's server behind a network that is cut, slow or gone, and the driver killed: nothing is lost."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cut_proxy import CutProxy
from mlflow_server import Server, children, client_of, only_parent, steps, wait_for
from tracking_driver import Driver, begin, log_steps, recorder_of, sync_words, write_experiment
from tune.mlflow_journal import JOURNAL_FILE
from tune.mlflow_logging import MlflowRecorder

from tune.errors import ExperimentError, TrackingError
from tune.sync_command import sync


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: Server) -> Iterator[CutProxy]:
    proxy = CutProxy(server.port)
    proxy.start()
    yield proxy
    proxy.passing.set()
    proxy.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment's folder; its name is the experiment's."""
    folder = tmp_path / "experiments" / tmp_path.name
    folder.mkdir(parents=True)
    return folder


def test_cut_in_the_middle_and_back(server: Server, proxy: CutProxy, folder: Path) -> None:
    recorder = recorder_of(folder, proxy.url)
    parent = begin(recorder)
    recorder.trial_started("001", name="001", params={"a": 1}, tags={})
    log_steps(recorder, "001", 0, 50)
    client = client_of(server.url)
    wait_for(lambda: "001" in children(client, parent), 10)
    wait_for(lambda: recorder.unwritten == 0, 10)
    proxy.cut_answers = True  # the server hears and writes, and we do not hear of it
    recorder.trial_started("002", name="002", params={"a": 2}, tags={})
    wait_for(lambda: recorder.problem and "002" in children(client, parent), 10)
    log_steps(recorder, "001", 50, 100)
    wait_for(lambda: 99 in steps(client, children(client, parent)["001"].info.run_id), 10)
    proxy.stop()
    proxy.cut_answers = False
    log_steps(recorder, "001", 100, 300)
    recorder.trial_ended("001", "completed")
    log_steps(recorder, "002", 0, 10)
    recorder.trial_ended("002", "early_stopped")
    wait_for(lambda: "connection refused" in (recorder.problem or ""), 20)
    assert (folder / JOURNAL_FILE).read_bytes().count(b"\n") >= 210
    proxy.start()
    assert recorder.finish("completed", artifacts=[folder / "experiment.yaml"]) is None
    runs = children(client, parent)
    assert steps(client, runs["001"].info.run_id) == list(range(300))
    assert steps(client, runs["002"].info.run_id) == list(range(10))
    assert {key: run.info.status for key, run in runs.items()} == {"001": "FINISHED", "002": "KILLED"}
    assert client.get_run(parent).info.status == "FINISHED"
    assert "experiment.yaml" in {file.path for file in client.list_artifacts(parent)}
    assert (folder / JOURNAL_FILE).read_bytes() == b""


def test_a_server_that_hangs_holds_up_nobody(server: Server, proxy: CutProxy, folder: Path) -> None:
    recorder = recorder_of(folder, proxy.url)
    parent = begin(recorder)
    proxy.passing.clear()
    recorder.trial_started("001", name="001", params={}, tags={})
    log_steps(recorder, "001", 0, 2000)  # would never end if it waited for an answer
    recorder.trial_ended("001", "completed")
    assert recorder.unwritten >= 2000
    proxy.passing.set()
    assert recorder.finish("completed") is None
    client = client_of(server.url)
    assert steps(client, children(client, parent)["001"].info.run_id) == list(range(2000))


def test_killed_while_the_server_is_down(
    server: Server, proxy: CutProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment(folder, proxy.url)
    driver = Driver(folder, proxy.url, 200)
    proxy.stop()
    driver.go_on()
    driver.read_until("ended")
    with pytest.raises(ExperimentError, match=f"is being run by process {driver.process.pid}"):
        sync(sync_words(folder))
    driver.kill()
    with pytest.raises(
        TrackingError, match="cannot be reached: Connection refused; is the server running"
    ) as e:
        sync(sync_words(folder))
    assert "\n" not in str(e.value)
    proxy.start()
    assert sync(sync_words(folder)) == 0
    assert " records of " in capsys.readouterr().out
    client = client_of(server.url)
    runs = children(client, only_parent(client, folder.name))
    for trial in ("001", "002"):
        assert steps(client, runs[trial].info.run_id) == list(range(201))
        assert runs[trial].data.params == {"a": str(int(trial))}
    assert (runs["001"].info.status, runs["002"].info.status) == ("FINISHED", "RUNNING")
    assert runs["001"].data.tags.items() >= {("note", "at the end"), ("status", "completed")}
    assert sync(sync_words(folder)) == 0
    assert "nothing waits" in capsys.readouterr().out


def test_resume_delivers_before_anything_new(server: Server, proxy: CutProxy, folder: Path) -> None:
    write_experiment(folder, proxy.url)
    driver = Driver(folder, proxy.url, 50)
    proxy.stop()
    driver.go_on()
    driver.read_until("ended")
    driver.kill()
    proxy.start()
    client = client_of(server.url)
    parent = only_parent(client, folder.name)
    with (folder / JOURNAL_FILE).open("a") as file:
        file.write('{"n": 900, "run": "003", "id": null, "kind": "create", "content": {}}\n{"n": 901, "run"')
    recorder = recorder_of(folder, proxy.url)
    recorder.resume(parent, {"002": ("002 again", None)}, ended={"001": None})  # 003 is not in state.json
    log_steps(recorder, "002", 51, 60)
    recorder.trial_ended("002", "completed")
    assert recorder.finish("completed") is None
    runs = children(client, parent)
    assert set(runs) == {"001", "002"}
    assert runs["002"].data.params == {"a": "2"}
    assert steps(client, runs["001"].info.run_id) == list(range(51))
    assert steps(client, runs["002"].info.run_id) == list(range(60))
    assert {run.info.status for run in (*runs.values(), client.get_run(parent))} == {"FINISHED"}
    assert recorder.run_id("001") == runs["001"].info.run_id


@pytest.mark.slow
def test_killed_at_any_moment(server: Server, folder: Path) -> None:
    """The server is there, so the kill comes in the midst of deliveries, acknowledgements and truncations."""
    client = client_of(server.url)
    for attempt in range(2):
        own = folder.parent / f"{folder.name}-{attempt}"
        own.mkdir()
        write_experiment(own, server.url)
        driver = Driver(own, server.url, 1_000_000)
        driver.go_on()
        time.sleep(random.uniform(0.2, 1.0))
        logged = driver.kill()
        assert sync(sync_words(own)) == 0
        runs = children(client, only_parent(client, own.name))
        for run in runs.values():
            found = steps(client, run.info.run_id)
            assert found == list(range(len(found)))
            assert len(found) > logged


def test_down_at_the_start(server: Server, proxy: CutProxy, folder: Path) -> None:
    proxy.stop()
    before = {file.name for file in folder.iterdir()} | {"experiment.yaml"}
    with pytest.raises(TrackingError, match="connection refused") as caught:
        begin(recorder_of(folder, proxy.url))
    assert "\n" not in str(caught.value)
    assert {file.name for file in folder.iterdir()} == before
    assert client_of(server.url).get_experiment_by_name(folder.name) is None


def test_given_up_at_the_end_and_told_how_to_deliver(
    server: Server, proxy: CutProxy, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = f"http://me:s3cret@127.0.0.1:{proxy.port}"
    recorder = recorder_of(folder, secret, patience=0)
    parent = begin(recorder)
    recorder.trial_started("001", name="001", params={}, tags={})
    proxy.stop()
    log_steps(recorder, "001", 0, 5)
    line = recorder.finish("interrupted", artifacts=[folder / "experiment.yaml"])
    assert line is not None
    assert f"MLflow records wait in {folder / JOURNAL_FILE}; " in line
    assert f"`tune-whisper sync {folder.name} --storage {folder.parent}` delivers them." in line
    (folder.parent / "elsewhere").mkdir()
    assert "s3cret" not in line + (folder / JOURNAL_FILE).read_text()
    folder = folder.rename(folder.parent / "elsewhere" / folder.name)
    proxy.start()
    assert sync(sync_words(folder)) == 0
    client = client_of(server.url)
    run = children(client, parent)["001"]
    assert (steps(client, run.info.run_id), run.info.status) == (list(range(5)), "KILLED")
    assert client.get_run(parent).info.status == "KILLED"
    assert "experiment.yaml" in {file.path for file in client.list_artifacts(parent)}


def test_another_store_gets_nothing_and_loses_nothing(
    server: Server, proxy: CutProxy, folder: Path, tmp_path: Path
) -> None:
    recorder = recorder_of(folder, proxy.url, patience=0)
    parent = begin(recorder)
    proxy.stop()
    log_steps(recorder, None, 0, 5)
    assert recorder.finish("completed") is not None
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(TrackingError, match="has no experiment"):
        sync(sync_words(folder, "--tracking-uri", other))
    begin(MlflowRecorder(other, folder.name, tmp_path))
    with pytest.raises(TrackingError, match="must name the store that the search used"):
        sync(sync_words(folder, "--tracking-uri", other))
    assert sync(sync_words(folder, "--tracking-uri", server.url)) == 0
    assert steps(client_of(server.url), parent) == list(range(5))


@pytest.mark.slow
def test_a_large_backlog_is_delivered_in_batches(server: Server, proxy: CutProxy, folder: Path) -> None:
    recorder = recorder_of(folder, proxy.url)
    begin(recorder)
    proxy.stop()
    for trial in range(50):
        key = f"{trial:03d}"
        recorder.trial_started(key, name=key, params={"a": trial}, tags={})
        for step in range(200):
            recorder.log(
                key, dict.fromkeys(("wer", "cer", "loss", "rate", "epoch"), 1.0 / (step + 1)), step=step
            )
        recorder.trial_ended(key, "completed")
    proxy.start()
    assert recorder.finish("completed") is None
    with contextlib.closing(sqlite3.connect(f"file:{server.database}?mode=ro", uri=True)) as connection:
        query = "SELECT count(*), count(DISTINCT run_uuid) FROM metrics JOIN runs USING (run_uuid) "
        query += "WHERE runs.experiment_id = (SELECT experiment_id FROM experiments WHERE name = ?)"
        assert connection.execute(query, [folder.name]).fetchone() == (50_000, 50)
