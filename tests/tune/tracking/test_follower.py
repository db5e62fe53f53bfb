"""The follower as a process: beside a driver, killed, without a store, at the end; and one store beside another."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cut_proxy import CutProxy
from follower_driver import Driver, follower_of, followers
from made_logs import MadeLog, whole_search
from mlflow_server import Server, children, client_of, only_parent, steps, wait_for
from mlflow_tables import empty_database

from tune.experiments.events import Entry, TrialStarted
from tune.experiments.saved import SavedExperiment
from tune.tracking import process as process_module
from tune.tracking.follower import StoreFollower
from tune.tracking.process import FollowerProcess
from tune.tracking.tracker import BusyError, Position, Status, Tracker, store_lock
from tune.util.errors import TrackingError

Begin = Callable[..., FollowerProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment's folder, with a database that has its tables; its name is the experiment's."""
    folder = tmp_path / "experiments" / tmp_path.name
    folder.mkdir(parents=True)
    shutil.copy(empty_database(), folder / "mlflow.db")
    return folder


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Begins to follow a log; takes changes of the orders."""
    found: list[FollowerProcess] = []

    def begin(made: MadeLog, **changes: Any) -> FollowerProcess:
        found.append(FollowerProcess(made.orders(**changes)))
        found[-1].start()
        found[-1].begin()
        found[-1].wait()
        return found[-1]

    yield begin
    for follower in found:
        follower.stop()


def runs_of(made: MadeLog) -> dict[str, str]:
    """MLflow's runs of trials and repeats, as far as the follower says that they are there."""
    return dict(Status.read(made.folder, "mlflow").facts.get("run_ids", {}))


def parent_of(made: MadeLog) -> str | None:
    """MLflow's run of the search, once it is there."""
    return Status.read(made.folder, "mlflow").facts.get("parent_run_id")


def test_what_happens_is_seen_within_seconds(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    follower = begin(made)
    made.session(trials=1)
    made.begin("001")
    wait_for(lambda: runs_of(made).get("001"), 10)
    client = client_of(made.uri)
    parent = parent_of(made)
    assert children(client, str(parent))["001"].info.status == "RUNNING"
    made.progress("001", 10)
    wait_for(lambda: "loss" in children(client, str(parent))["001"].data.metrics, 10)
    made.evaluate("001", 50.0)
    wait_for(lambda: "wer" in children(client, str(parent))["001"].data.metrics, 3)
    assert follower.problem is None
    made.end("001", "failed")
    made.finish("failed")
    assert follower.finish() is None
    assert client.get_run(str(parent)).info.status == "FAILED"
    assert runs_of(made) == {"001": children(client, str(parent))["001"].info.run_id}


def test_a_search_that_ends_before_its_first_event_leaves_nothing(
    tmp_path: Path, server: Server, begin: Begin
) -> None:
    made = MadeLog(tmp_path / tmp_path.name, server.url)
    follower = begin(made)
    assert follower.finish() is None
    assert client_of(server.url).get_experiment_by_name(made.name) is None


def test_a_store_that_is_away_at_the_start_is_one_line(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, f"http://me:s3cret@127.0.0.1:{proxy.port}")
    proxy.stop()
    with pytest.raises(TrackingError, match=r"me:\*\*\*@.* cannot be reached: Connection refused") as caught:
        begin(made)
    assert "\n" not in str(caught.value)
    assert followers() == []


def test_killed_it_is_started_again(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    follower = begin(made)
    made.session(trials=2)
    made.trial("001", 50.0, 30.0, 12.0)
    wait_for(lambda: runs_of(made), 10)
    before = follower_of()
    before.kill()
    made.trial("002", 50.0, 30.0, 14.0)
    wait_for(lambda: "002" in runs_of(made), 60)
    follower_of().kill()  # and once more, with no time to notice
    made.finish()
    assert follower.finish(patience=60.0) is None
    client = client_of(made.uri)
    parent = client.get_run(only_parent(client, made.name))
    runs = children(client, parent.info.run_id)
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    assert steps(client, runs["002"].info.run_id) == [384, 1088, 3200]


def test_one_that_always_crashes_is_given_up(
    folder: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_PAUSES", (0, 0, 0, 0))
    made = MadeLog(folder)
    follower = begin(made)
    made.session(trials=1)
    for _ in range(5):
        found = wait_for(followers, 10)[0]
        found.kill()
        wait_for(lambda found=found: found not in followers(), 10)
    assert "what tells MLflow of the search ended 5 times in a row" in wait_for(lambda: follower.problem, 10)
    made.trial("001", 50.0, 30.0, 12.0)
    told = follower.finish()
    assert told is not None
    assert "events wait for MLflow; `tune-whisper sync" in told
    assert "ended 5 times in a row" in told


@pytest.mark.parametrize("away", [True, False])
def test_the_driver_is_killed_while_the_server_is_away(
    tmp_path: Path, server: Server, proxy: CutProxy, away: bool
) -> None:
    folder = tmp_path / "experiments" / tmp_path.name
    driver = Driver(folder, proxy.url)
    if away:
        proxy.stop()
    for _ in range(3):
        driver.step()
    follower = driver.follower
    driver.kill()
    if away:
        time.sleep(2)
        proxy.start()
    follower.wait(60)
    client = client_of(server.url)
    parent = client.get_run(only_parent(client, folder.name))
    assert parent.info.status == "FINISHED"
    assert set(children(client, parent.info.run_id)) == {"001", "002"}


def test_signals_are_for_the_search(folder: Path, begin: Begin) -> None:
    made = MadeLog(folder)
    follower = begin(made)
    for number in (signal.SIGINT, signal.SIGTERM):
        follower_of().send_signal(number)
    whole_search(made)
    first = follower_of().pid
    wait_for(lambda: len(runs_of(made)) == 2, 20)
    assert follower_of().pid == first
    assert follower.finish() is None


def test_cut_in_the_middle_and_back(tmp_path: Path, server: Server, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, proxy.url)
    follower = begin(made)
    made.session(trials=3)
    made.begin("001")
    wait_for(lambda: runs_of(made), 10)
    client = client_of(server.url)
    parent = only_parent(client, made.name)
    proxy.cut_answers = True  # the server hears and writes, and we do not hear of it
    made.begin("002")
    wait_for(lambda: follower.problem and "002" in children(client, parent), 30)
    proxy.stop()
    proxy.cut_answers = False
    made.evaluate("001", 50.0)
    made.evaluate("001", 30.0, 12.0, first=1)
    made.end("001")
    made.trial("003", 55.0)
    made.end("002", "failed")
    wait_for(lambda: "onnection" in (follower.problem or ""), 30)
    proxy.start()
    made.finish()
    assert follower.finish(patience=60.0) is None
    runs = children(client, parent)
    assert {key: run.info.status for key, run in runs.items()} == {
        "001": "FINISHED",
        "002": "FAILED",
        "003": "KILLED",
    }
    assert steps(client, runs["001"].info.run_id) == [384, 1088, 3200]
    assert client.get_run(parent).info.status == "FINISHED"


def test_given_up_at_the_end_and_told_how_to_deliver(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, f"http://me:s3cret@127.0.0.1:{proxy.port}")
    follower = begin(made, patience=1.0)
    made.session(trials=1)
    wait_for(lambda: parent_of(made), 10)
    proxy.stop()
    made.trial("001", 50.0, 30.0, 12.0)
    before = time.monotonic()
    told = follower.finish(patience=5.0)
    assert time.monotonic() - before < 20
    assert told is not None
    assert (
        f"6 events wait for MLflow; `tune-whisper sync {made.name} --storage {tmp_path}` delivers them. "
        in told
    )
    assert "me:***@127.0.0.1" in told
    assert "s3cret" not in told


def test_a_server_that_hangs_holds_up_nobody(tmp_path: Path, proxy: CutProxy, begin: Begin) -> None:
    made = MadeLog(tmp_path / tmp_path.name, proxy.url)
    follower = begin(made)
    proxy.passing.clear()
    whole_search(made)
    before = time.monotonic()
    assert "15 events wait for MLflow" in (follower.finish(patience=2.0) or "")
    assert time.monotonic() - before < 10


def test_the_password_is_nowhere(
    tmp_path: Path, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    uri = f"http://me:s3cret@127.0.0.1:{proxy.port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    made = MadeLog(tmp_path / tmp_path.name, uri)
    follower = begin(made, patience=0.0)
    made.session(trials=1)
    wait_for(lambda: parent_of(made), 10)
    found = follower_of()
    assert "s3cret" not in " ".join([*found.cmdline(), *found.environ().values()])
    proxy.stop()
    made.trial("001", 50.0)
    assert "***" in wait_for(lambda: follower.problem, 20)
    follower.finish(patience=1.0)
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert {"mlflow.json", "events.jsonl"} < {path.name for path in files}
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


@pytest.mark.parametrize(
    ("modules", "told"),
    [
        (["follower", "mlflow"], ["sqlalchemy"]),
        (["follower", "optuna_study", "tensorboard"], []),
    ],
)
def test_what_it_imports(modules: list[str], told: list[str]) -> None:
    heavy = {"torch", "ray", "transformers", "datasets", "optuna", "sqlalchemy", "mlflow", "tensorboard"}
    code = f"import sys, {', '.join(f'tune.tracking.{name}' for name in modules)}\n"
    code += f"print(sorted({heavy - set(modules)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (str(told), "")


class MadeTracker(Tracker):
    """A store in memory, as a test wants it."""

    def __init__(self, name: str = "made") -> None:
        super().__init__()
        self.name = name
        self.reject: list[str] = []
        self.numbers: list[int] = []
        self.samples: list[int] = []
        self.position = Position()
        self.opened = 0
        self.fail: Exception | None = None
        self.passing = threading.Event()
        self.passing.set()

    def open(self, saved: SavedExperiment) -> Position:
        """See `Tracker`."""
        self.opened += 1
        return self.position

    def deliver(self, entries: Sequence[Entry], saved: SavedExperiment) -> None:
        """See `Tracker`."""
        self.passing.wait()
        if self.fail is not None:
            raise self.fail
        self.refused += self.reject
        assert saved.state.events == entries[-1].number
        self.numbers += [entry.number for entry in entries]

    def progress(self, rows: Sequence[dict[str, Any]]) -> None:
        """See `Tracker`."""
        self.samples += [row["metrics"]["samples_seen"] for row in rows]

    def delivered(self, position: Position) -> None:
        """See `Tracker`."""
        self.position = position


def following(made: MadeLog, tracker: MadeTracker, ended: threading.Event, **changes: Any) -> StoreFollower:
    """A follower in a thread of this process."""
    found = StoreFollower(tracker, made.orders(**changes), ended)
    threading.Thread(target=found.follow, daemon=True).start()
    return found


def to_the_end(made: MadeLog, tracker: MadeTracker) -> StoreFollower:
    """Deliver all that is written."""
    ended = threading.Event()
    ended.set()
    found = StoreFollower(tracker, made.orders(), ended)
    found.follow()
    assert found.complete
    return found


def test_one_store_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    made, ended = MadeLog(tmp_path / "x"), threading.Event()
    slow, quick = MadeTracker("slow"), MadeTracker("quick")
    slow.passing.clear()
    followers = [following(made, tracker, ended) for tracker in (slow, quick)]
    whole_search(made)
    made.progress("001", 10, 20)
    ended.set()
    wait_for(lambda: followers[1].complete, 10)
    assert (quick.numbers, quick.samples) == (list(range(1, 16)), [10, 20])
    assert slow.numbers == []
    slow.passing.set()
    wait_for(lambda: followers[0].complete, 10)
    assert slow.numbers == quick.numbers


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    made, tracker, ended = MadeLog(tmp_path / "x"), MadeTracker(), threading.Event()
    made.session(trials=1)
    log = made.folder / "events.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    found = following(made, tracker, ended)
    wait_for(lambda: tracker.numbers == [1, 2], 10)
    log.write_bytes(whole)
    wait_for(lambda: tracker.numbers == [1, 2, 3], 10)
    with log.open("ab") as file:
        file.write(whole[:100])
    ended.set()
    wait_for(lambda: found.complete, 10)  # whose rest never comes


def test_a_damaged_line_is_told_and_what_came_before_is_delivered(tmp_path: Path) -> None:
    made, tracker, ended = MadeLog(tmp_path / "x"), MadeTracker(), threading.Event()
    whole_search(made)
    log = made.folder / "events.jsonl"
    whole = log.read_bytes()
    found = following(made, tracker, ended)
    wait_for(lambda: len(tracker.numbers) == 15, 10)
    made.append(TrialStarted(trial_id="001", folder="001"))
    made.append(TrialStarted(trial_id="001", folder="001"))
    lines = log.read_bytes().splitlines(keepends=True)
    lines[16] = lines[16].replace(b"TrialStarted", b"TrialSterted")
    log.write_bytes(b"".join(lines))
    assert "line 17 is damaged" in wait_for(lambda: found.status.problem, 10)
    assert tracker.numbers[:15] == list(range(1, 16))
    log.write_bytes(whole)  # cut before that line
    wait_for(lambda: found.status.problem is None, 20)
    ended.set()
    wait_for(lambda: found.complete, 20)


def test_each_store_goes_on_from_where_it_is(tmp_path: Path) -> None:
    made, tracker = MadeLog(tmp_path / "x"), MadeTracker()
    made.session(trials=1)
    made.progress("001", 10)
    to_the_end(made, tracker)
    made.trial("001", 50.0, 30.0, 12.0)
    made.progress("001", 20)
    to_the_end(made, tracker)
    assert (tracker.numbers, tracker.samples) == (list(range(1, 10)), [10, 20])
    tracker.position = Position()  # another store in its place, or one brought back from before
    to_the_end(made, tracker)
    assert tracker.numbers[9:] == list(range(1, 10))


def test_what_is_refused_is_counted_and_holds_up_nothing(tmp_path: Path) -> None:
    made, tracker = MadeLog(tmp_path / "x"), MadeTracker()
    whole_search(made)
    tracker.reject = ["they are not wanted"] * 3
    found = to_the_end(made, tracker)
    assert (found.status.refused, found.status.reason) == (6, "they are not wanted")
    assert tracker.position.events == 15


def test_a_mistake_of_a_tracker_is_told_and_tried_again(tmp_path: Path) -> None:
    made, tracker, ended = MadeLog(tmp_path / "x"), MadeTracker(), threading.Event()
    whole_search(made)
    tracker.fail = KeyError("at http://me:s3cret@host")
    found = following(made, tracker, ended)
    assert "made: KeyError: 'at http://me:***@host'" in wait_for(lambda: found.status.problem, 10)
    log = (made.folder / "tracking" / "follower.log").read_text()
    assert "Traceback" in log
    assert "s3cret" not in log
    tracker.fail = None
    wait_for(lambda: len(tracker.numbers) == 15, 20)
    assert tracker.opened > 1
    ended.set()


def test_one_process_delivers_to_a_store(tmp_path: Path) -> None:
    made, ended = MadeLog(tmp_path / "x"), threading.Event()
    first, second = MadeTracker(), MadeTracker()
    one = following(made, first, ended)
    whole_search(made)
    wait_for(lambda: len(first.numbers) == 15, 10)
    with pytest.raises(BusyError, match=f"process {os.getpid()} delivers to made now; it ends by itself"):
        StoreFollower(second, made.orders(), ended).connect()
    later = threading.Event()
    other = following(made, second, later)
    assert "delivers to made now" in wait_for(lambda: other.status.problem, 10)
    ended.set()
    wait_for(lambda: one.complete, 10)
    wait_for(lambda: second.numbers, 20)
    later.set()


def test_a_folder_without_locks_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    (tmp_path / "tracking").mkdir()
    with store_lock(tmp_path, "mlflow"):
        assert (tmp_path / "tracking" / "mlflow.lock").read_text() == f"{os.getpid()}\n"
