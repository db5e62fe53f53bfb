"""`tune-whisper ui` in a process of its own: it answers, opens the right page, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from made_experiments import MadeLog
from mlflow_server import DIRECT, answers, children, client_of, only_parent, wait_for
from processes import free_port

from tune.cli import main
from tune.experiments.events import ResultsWritten
from tune.experiments.results import run_ids

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment `new one` holds four trials."""
    storage = tmp_path_factory.mktemp("my experiments")
    made = MadeLog(storage / "new one")
    made.session(trials=4)
    for number in range(1, 5):
        settings = (1e-4 * number, 0.1 * (number - 1), 4 * number, number)
        wers = [60.0 / (rung + 1) + number for rung in range(2 if number == 4 else 3)]
        made.trial(f"{number:03d}", *wers, **dict(zip(SETTINGS, settings, strict=True)))
    made.finish()
    made.append(ResultsWritten())
    made.deliver()
    made.close()
    return storage


@contextlib.contextmanager
def running_ui(storage: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, as a terminal starts it, and the address that it prints."""
    port = free_port()
    words = ["ui", "--storage", str(storage), "--port", str(port)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "tune", *words], cwd=ROOT, **pipes)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            rf"MLflow UI for new one: (http://127\.0\.0\.1:{port}/#/experiments/\d/\S+)\n", line
        )
        assert found, line
        wait_for(lambda: process.poll() is not None or answers(f"http://127.0.0.1:{port}"), 120)
        yield process, found[1]
    finally:
        process.terminate()
        process.wait(30)


def processes_with(words: str) -> list[str]:
    """Command lines of running processes that hold `words`."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if words in line]


def test_it_serves_until_it_is_told_to_stop(storage: Path) -> None:
    with running_ui(storage) as (process, url):
        base = url.split("/#/")[0]
        served = f"--host 127.0.0.1 --port {base.rpartition(':')[2]}"
        with DIRECT.open(base) as page:
            assert b"<title>MLflow</title>" in page.read()
        client = client_of(base)
        parent = only_parent(client, "new one")
        assert set(children(client, parent)) == {"001", "002", "003", "004"}
        with DIRECT.open(f"{base}/get-artifact?path=experiment.yaml&run_uuid={parent}") as artifact:
            assert artifact.read() == (storage / "new one" / "experiment.yaml").read_bytes()
        assert len(processes_with(served)) == 2  # mlflow and its one worker
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0
    assert errors.startswith("It is there in some seconds; Ctrl-C ends it.\n")
    assert "Traceback" not in output + errors
    assert processes_with(served) == []


def test_a_port_that_is_taken(storage: Path, refused: Callable[..., str]) -> None:
    words = ["ui", "new one", "--storage", str(storage), "--port"]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        told = refused(*words, str(taken))
        assert f"--port {taken}: cannot be used, or others use it; choose another" in told
    assert "--port 70000: cannot be used" in refused(*words, "70000")


def test_a_store_that_is_gone(tmp_path: Path, refused: Callable[..., str]) -> None:
    MadeLog(tmp_path / "moved", f"sqlite:///{tmp_path}/before/mlflow.db").session()
    told = refused("ui", "moved", "--storage", str(tmp_path))
    assert "its MLflow store " in told and "before/mlflow.db is gone" in told


def test_moved_and_copied_experiments_are_shown_and_the_original_is_untouched(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    made = [MadeLog(first / name) for name in ("one", "new one")] + [MadeLog(tmp_path / "third" / "moved")]
    for each in made:
        each.whole()
        each.close()
    with ThreadPoolExecutor() as threads:  # two at once into one store, which is not there yet
        ended = threads.map(
            lambda each: main(["sync", each.name, "--storage", str(each.folder.parent)]), made
        )
        assert list(ended) == [0, 0, 0]
    shutil.copytree(first, second)
    shutil.copytree(first / "one", second / "a copy")
    made[2].folder.rename(second / "moved")
    os.utime(second / "new one" / "experiment.yaml")
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    with running_ui(second) as (_, url):
        base = url.split("/#/")[0]
        client = client_of(base)
        for name in ("one", "a copy", "moved", "new one"):
            parent = only_parent(client, name)
            runs = children(client, parent)
            assert set(runs) == {"001", "002"}
            assert run_ids(second / name)["001"] == runs["001"].info.run_id
            with DIRECT.open(f"{base}/get-artifact?path=experiment.yaml&run_uuid={parent}") as artifact:
                assert artifact.read() == b"for people\n"
            assert client.get_run(parent).info.artifact_uri.startswith((second / "mlartifacts").as_uri())
    assert (
        run_ids(second / "a copy")["001"] != run_ids(second / "one")["001"] == run_ids(first / "one")["001"]
    )
    for name in ("one", "a copy", "moved"):
        assert main(["report", name, "--storage", str(second)]) == 0
    assert before == {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
