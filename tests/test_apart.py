"""An object in a process of its own: what comes back, and what ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow_server import children, client_of, wait_for
from tune.apart import GoneError, apart
from tune.databases import killed_store, ready_store
from tune.mlflow_logging import MlflowRecorder
from tune.search_state import SearchState

from tune.errors import TrackingError


class Counter:
    """Something that remembers."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, number: int, *, times: int = 1) -> int:
        self._count += number * times
        return self._count

    def process(self) -> int:
        return os.getpid()

    def fail(self, why: str = "the store is away") -> None:
        raise TrackingError(why)

    def fail_unsendably(self) -> None:
        class LocalError(Exception):
            pass

        raise LocalError("of a class that is not there")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def write_after(self, seconds: float, path: Path) -> None:
        time.sleep(seconds)
        path.touch()

    def unsendable(self) -> object:
        return lambda: None


@pytest.fixture
def counter() -> Iterator[Counter]:
    with apart(Counter) as found:
        yield found


def test_calls_run_in_another_process_that_remembers(counter: Counter) -> None:
    assert counter.add(2) == 2
    assert counter.add(3, times=2) == 8
    assert counter.process() != os.getpid()


def test_what_it_raises_is_raised_here_with_its_traceback(counter: Counter) -> None:
    with pytest.raises(TrackingError, match="the store is away") as caught:
        counter.fail()
    assert str(caught.value) == "the store is away"
    assert "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(RuntimeError, match="LocalError: of a class that is not there"):
        counter.fail_unsendably()
    with pytest.raises(AttributeError, match="Can't pickle local object"):
        counter.unsendable()
    assert counter.add(1) == 1


def test_no_password_is_in_a_note(counter: Counter) -> None:
    with pytest.raises(TrackingError) as caught:
        counter.fail("https://me:secret@host is away")
    assert "me:***@host is away" in caught.value.__notes__[0]
    assert "secret" not in caught.value.__notes__[0]


def test_what_making_it_raises_every_call_raises() -> None:
    def make() -> Counter:
        raise TrackingError("cannot be made")

    with apart(make) as found:
        for _ in range(3):
            with pytest.raises(TrackingError, match="cannot be made") as caught:
                found.add(1)
            assert len(caught.value.__notes__) == 1


def test_calls_of_several_threads_do_not_mix(counter: Counter) -> None:
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.extend(counter.add(1) for _ in range(50))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 201))


def test_ctrl_c_during_a_call_ends_what_the_call_does(counter: Counter, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            counter.write_after(1.0, tmp_path / "written")
    finally:
        signal.signal(signal.SIGALRM, before)
    time.sleep(1.5)
    assert not (tmp_path / "written").exists()
    with pytest.raises(GoneError):
        counter.add(7)


def test_signals_for_the_search_do_not_end_it(counter: Counter) -> None:
    process = counter.process()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    assert counter.process() == process


def test_one_that_was_killed_goes_on_here(counter: Counter) -> None:
    os.kill(counter.process(), signal.SIGKILL)
    with pytest.raises(GoneError):
        counter.add(1)
    assert counter.process() == os.getpid()


def test_one_that_was_killed_repeats_here_what_may_be_repeated() -> None:
    with apart(Counter, repeatable=("add",)) as counter:
        os.kill(counter.process(), signal.SIGKILL)
        assert counter.add(1) == 1
        assert counter.process() == os.getpid()


def test_it_ends_with_the_block() -> None:
    with apart(Counter) as other:
        process = other.process()
    assert not psutil.pid_exists(process)


def test_a_call_that_hangs_holds_up_the_end_of_the_block_for_a_moment_only() -> None:
    ended: list[BaseException] = []

    def wait(counter: Counter) -> None:
        try:
            counter.sleep(600)
        except GoneError as error:
            ended.append(error)

    with apart(Counter) as counter:
        process = counter.process()
        thread = threading.Thread(target=wait, args=(counter,))
        thread.start()
        time.sleep(0.2)
    assert not psutil.pid_exists(process)
    thread.join(60)
    assert ended


def test_no_process_holds_the_lock_of_a_search_that_was_killed(tmp_path: Path) -> None:
    """Nor its output: one in the middle of a call ends at once."""
    script = (
        "import os, signal, sys, threading, time, test_apart\n"
        "from pathlib import Path\n"
        "from tune.apart import apart\n"
        "from tune.search_state import SearchState\n"
        "state = SearchState(Path(sys.argv[1]))\n"
        "state.lock()\n"
        "with apart(test_apart.Counter) as one:\n"
        "    print(one.process(), flush=True)\n"
        "    threading.Thread(target=one.sleep, args=(600,), daemon=True).start()\n"
        "    time.sleep(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_for(lambda: not psutil.pid_exists(int(done.stdout)), 60)
    SearchState(tmp_path).lock()


def test_it_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    """Two of them, since the second holds the first one's end of the pipe too."""
    script = (
        "import os, signal, test_apart\n"
        "from tune.apart import apart\n"
        "with apart(test_apart.Counter) as one, apart(test_apart.Counter) as two:\n"
        "    print(one.process(), two.process(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=Path(__file__).parent, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [int(number) for number in done.stdout.split()]
    assert len(left) == 2
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(each) and psutil.Process(each).status() != "zombie" for each in left):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nothing_is_lost_when_the_process_that_writes_to_mlflow_is_killed(tmp_path: Path) -> None:
    where = (f"sqlite:///{tmp_path / 'mlflow.db'}", "x", tmp_path)
    before = set(psutil.Process().children())
    with apart(lambda: ready_store(*where), gone=killed_store) as store:
        (writer,) = set(psutil.Process().children()) - before
        recorder = MlflowRecorder(*where, store=store, flush_seconds=0.1)
        parent = recorder.start(params={"trials": 1}, tags={}, description="", artifacts=[])
        for number in ("001", "002"):
            recorder.trial_started(number, name=number, params={}, tags={"trial_id": number, "role": "trial"})
            recorder.log(number, {"wer": 20.0}, step=100)
            if number == "001":
                writer.kill()
        recorder.trial_ended("001", "completed")
        recorder.trial_ended("002", "early_stopped")
        assert recorder.finish("completed") is None
    runs = children(client_of(where[0]), parent)
    assert {key: run.info.status for key, run in runs.items()} == {"001": "FINISHED", "002": "KILLED"}
    assert {run.data.metrics["wer"] for run in runs.values()} == {20.0}


def test_a_store_whose_process_was_killed_before_it_was_opened_is_opened_here(tmp_path: Path) -> None:
    where = (f"sqlite:///{tmp_path / 'mlflow.db'}", "x", tmp_path)
    before = set(psutil.Process().children())
    with apart(lambda: ready_store(*where), gone=killed_store, repeatable=("connect",)) as store:
        (writer,) = set(psutil.Process().children()) - before
        writer.kill()
        store.connect()
        assert store.create_run("first", {}, 0)
