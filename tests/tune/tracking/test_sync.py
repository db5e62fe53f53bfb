"""Syncing beside a search: stores that are slow, away, cut off or come back, and one beside another."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import CutProxy
from made_logs import MadeLog, whole_search
from mlflow_server import Server, children, client_of, empty_database, only_parent, steps, wait_for

from tune.experiments.results import run_ids
from tune.tracking.sync import Sync
from tune.util.errors import TrackingError

Begin = Callable[..., Sync]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment's folder, with a database that has its tables; its name is the experiment's."""
    folder = tmp_path / "experiments" / tmp_path.name
    folder.mkdir(parents=True)
    shutil.copy(empty_database(), folder / "mlflow.db")
    return folder


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


def test_what_happens_is_seen_within_seconds(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    sync = begin(made)
    made.session(trials=1)
    made.begin("001")
    wait_for(lambda: run_ids(folder).get("001"), 10)
    client = client_of(made.uri)
    parent = only_parent(client, made.name)
    assert children(client, parent)["001"].info.status == "RUNNING"
    made.progress("001", 10)
    wait_for(lambda: "loss" in children(client, parent)["001"].data.metrics, 10)
    made.evaluate("001", 50.0)
    wait_for(lambda: "wer" in children(client, parent)["001"].data.metrics, 5)
    assert sync.problem is None
    made.end("001", "failed")
    made.finish("failed")
    assert sync.finish() is None
    assert client.get_run(parent).info.status == "FAILED"
    assert run_ids(folder) == {"001": children(client, parent)["001"].info.run_id}


def test_a_store_that_is_away_at_the_start_is_one_line(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, f"http://me:s3cret@127.0.0.1:{proxy.port}")
    proxy.stop()
    with pytest.raises(TrackingError, match=r"me:\*\*\*@.* cannot be reached: Connection refused") as caught:
        begin(made)
    assert "\n" not in str(caught.value)


def test_cut_in_the_middle_and_back(tmp_path: Path, server: Server, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, proxy.url)
    sync = begin(made)
    made.session(trials=3)
    made.begin("001")
    wait_for(lambda: run_ids(made.folder), 10)
    client = client_of(server.url)
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


def test_a_server_that_hangs_holds_up_nobody(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, proxy.url)
    sync = begin(made)
    proxy.passing.clear()
    whole_search(made)
    before = time.monotonic()
    assert "18 events wait for MLflow" in (sync.finish(timeout=2.0) or "")
    assert time.monotonic() - before < 10


def test_a_store_that_answers_after_seconds_delays_no_decision(
    tmp_path: Path, server: Server, proxy: CutProxy, begin: Begin
) -> None:
    made = MadeLog(tmp_path / tmp_path.name, proxy.url)
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
    client = client_of(server.url)
    runs = children(client, only_parent(client, made.name))
    assert steps(client, runs["001"].info.run_id) == list(range(10, 400, 10))


def test_a_fault_with_one_store_is_told_and_holds_up_no_other(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    sync = begin(made, stores=["tensorboard", "mlflow"])
    (folder / "tensorboard").write_text("a file where a folder is to be")
    whole_search(made)
    assert "tensorboard: cannot be removed: Not a directory" in str(wait_for(lambda: sync.problem, 10))
    wait_for(lambda: len(run_ids(folder)) == 2, 20)
    (folder / "tensorboard").unlink()
    assert sync.finish() is None
    assert (folder / "tensorboard" / "001").is_dir()


def test_a_damaged_line_is_told_and_what_came_before_is_delivered(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    whole_search(made)
    sync = begin(made, stores=["mlflow"])
    assert len(run_ids(folder)) == 2
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"n": 20}\n')
    assert "line 19 is damaged" in str(wait_for(lambda: sync.problem, 10))
    assert "line 19 is damaged" in str(sync.finish())
