"""A Ray of our own has its workers forked from one process, and leaves nothing behind when it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from forks import Command

from tune.cluster import worker_forks as forks

MARK = "TUNE_WHISPER_TEST_FORKS"
WORDS = ["--space", "lr_batch", "--trials", "1", "--finalists", "0", "--experiment", "forks"]
SETTINGS = ["max_train_clips=32", "max_eval_clips=8", "max_samples=100000"]


def of_run(mark: str) -> list[psutil.Process]:
    """All processes of a search, whoever their parents are."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def servers() -> set[psutil.Process]:
    """The processes that this one has started to fork others from."""
    children = psutil.Process().children()
    return {each for each in children if any(word.endswith("fork_server.py") for word in each.cmdline())}


def wait_for(condition: object, search: subprocess.Popen[bytes] | None, log: Path) -> None:
    deadline = time.monotonic() + 200
    while not condition():  # type: ignore[operator]
        assert search is None or search.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def test_workers_are_forked_and_end_with_a_search_that_is_killed(tmp_path: Path) -> None:
    """A plain process, not one that the tests fork, whose Ray has workers of another origin."""
    log, mark = tmp_path / "log.txt", str(tmp_path)
    short = Path(
        tempfile.mkdtemp(prefix="rf", dir="/tmp")
    )  # Ray's sockets lie below: their paths must be short
    environment = {
        **os.environ,
        MARK: mark,
        "TMPDIR": str(short),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    words = [sys.executable, "-m", "tune", *WORDS, *(word for each in SETTINGS for word in ("--set", each))]
    with log.open("wb") as output:
        search = subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: "trial 001 started" in log.read_text(), search, log)
        forks = [each for each in of_run(mark) if any("fork_server.py" in word for word in each.cmdline())]
        (server,) = [each for each in forks if each.ppid() == search.pid]
        workers = server.children()
        groups = {os.getpgid(worker.pid) for worker in workers}
        assert len(groups) == len(workers) and os.getpgid(server.pid) not in groups, "Ray ends whole groups"
        names = [worker.cmdline()[0] for worker in workers]
        assert any(name.startswith("ray::ImplicitFunc") for name in names), names
    finally:
        search.kill()
        search.wait(30)
    wait_for(lambda: not of_run(mark), None, log)
    assert not list(short.glob("tune-whisper-forks-*"))
    shutil.rmtree(short)


@pytest.mark.parametrize("executable", ["/home/me/my project/.venv/bin/python", f"/{'long/' * 30}python"])
def test_nobody_is_forked_where_a_script_cannot_name_this_python(
    executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_begun", [])
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with forks.worker_forks({}) as python:
        assert python is None
    assert not list(tmp_path.iterdir())


def test_commands_that_are_refused_one_after_the_other_leave_one_server_to_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "_begun", [])
    others = servers()  # the tests' own, and what an earlier test may have left
    for _ in range(3):
        forks.begin_forks({**os.environ})
    (server,) = servers() - others
    with forks.worker_forks({}) as python:
        assert python is not None
        assert server.is_running()
    assert not server.is_running()


ALLOCATING = """
import os, psutil, resource, torch
from tune.workers.trainable import freeing_memory
def step():
    tensors = [torch.zeros(5_000_000) for _ in range(4)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
held = psutil.Process().memory_info().rss
freeing_memory(step)()
freed = held - psutil.Process().memory_info().rss
print(faults, freed >> 20, "GLIBC_TUNABLES" in os.environ)
"""
"""Page faults of ten steps with 80 MB each, which are 20,000 pages, and MiB that are given back in the end."""


@pytest.mark.parametrize(
    ("chosen", "least", "most", "freed"),
    [("", 0, 20_000, 60), ("glibc.malloc.mmap_threshold=1000000", 150_000, 400_000, -1)],
)
def test_memory_that_a_step_has_freed_is_the_next_ones_unless_the_user_says_how(
    chosen: str, least: int, most: int, freed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_begun", [])
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    request = {"words": ["-c", ALLOCATING], "folder": str(tmp_path), "environment": environment}
    given = environment | ({"GLIBC_TUNABLES": chosen} if chosen else {})
    with forks.worker_forks(given) as python, (tmp_path / "told").open("w+") as told:
        assert python is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as question:  # answered once it has begun
            question.connect(str(python.with_name("workers")))
            question.shutdown(socket.SHUT_WR)
            question.recv(1)
        connection, _ = forks.ask(python.with_name("workers"), request, [0, told.fileno(), told.fileno()])
        with connection:
            assert connection.recv(64) == b"0", (tmp_path / "told").read_text()
        faults, given_back, has_variable = (tmp_path / "told").read_text().split()
    assert least <= int(faults) < most
    assert int(given_back) >= freed
    assert has_variable == "False", "what workers start has its own settings"


ENDING = """
import atexit, os, signal, sys, threading, time
class Large:
    def __del__(self, write=os.write):
        write(1, b"freed ")
sys.large = Large()
def later():
    time.sleep(0.5)
    print("thread")
atexit.register(print, "at the end")
print("begun")
threading.Thread(target=later).start()
"""
"""Python would free that object in the end, and all that the server has imported, and copy its memory for that."""
INTERRUPTED = """
def interrupt():
    while threading.main_thread().is_alive():  # until it waits for the others
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
threading.Thread(target=interrupt).start()
sys.exit(5)
"""
"""As Ray ends its workers, while threads are waited for."""


@pytest.mark.parametrize(
    ("last", "code", "told"),
    [
        ("", 0, "begun thread at the end"),
        ("sys.exit(0)", 0, "begun thread at the end"),
        ("sys.exit(3)", 3, "begun thread at the end"),
        ("sys.exit(2**31)", 0, "begun thread at the end"),
        ("sys.exit(-1)", 255, "begun thread at the end"),
        ("import ctypes; ctypes.CDLL(None).printf(b'native ')", 0, "begun thread at the end native"),
        (INTERRUPTED, 5, "begun SystemExit: 1"),
        ("sys.exit('no such file')", 1, "begun thread no such file at the end freed"),
        ("1 / 0", 1, "begun ZeroDivisionError: division by zero"),
    ],
)
def test_a_fork_ends_as_python_does_without_freeing_what_it_shares(
    last: str, code: int, told: str, tmp_path: Path
) -> None:
    plain = subprocess.run(
        [sys.executable, "-c", ENDING + last],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert plain.returncode == code
    assert "freed" in plain.stdout
    with (tmp_path / "told").open("w+") as output:
        command = Command(
            program=["-c", ENDING + last], cwd=tmp_path, kind="workers", output=output, merged=True
        )
        assert command.wait(60) == code
    found = (tmp_path / "told").read_text().split()
    assert set(told.split()) <= set(found), found
    assert ("freed" in found) == (code == 1), "only where it failed"


def test_a_fork_whose_output_nobody_takes_ends_as_python_does(tmp_path: Path) -> None:
    """With code 1 or 120, by whether Python buffers what it writes."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", "print(1)"]
        code = subprocess.run(words, stdout=full, stderr=full, check=False).returncode
        assert code
        assert Command(program=words[1:], cwd=tmp_path, kind="workers", output=full).wait(60) == code


def test_the_server_ends_where_who_started_it_is_gone_before_it_has_begun(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rf", dir="/tmp"))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(30)
    with forks.listen(folder / "workers") as listener:
        program = str(Path(forks.__file__).with_name("fork_server.py"))
        words = [sys.executable, program, str(listener.fileno()), str(ended.pid)]
        server = subprocess.Popen(words, pass_fds=[listener.fileno()], cwd=tmp_path)
    try:
        assert server.wait(200) == 0
    finally:
        server.kill()
    assert not folder.exists()
