"""Searches that are interrupted, run beside others, or lose disk or Ray's head: what is kept, how they go on."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import psutil
import pytest
from mlflow_server import Server
from ray_nodes import Nodes
from search_process import QUICK, Search, results, state

from tune.experiments.events import TrialProposed
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.listing import list_experiments
from tune.experiments.log import ExperimentLog, read_log
from tune.experiments.storage import Storage
from tune.util.errors import ExperimentError

SPACE = """\
learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}
scheduler: {rungs: 4, reduction_factor: 2, rising_rungs: 0}
"""
SECRETS = {
    "HF_TOKEN": "hf_planted0123456789",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED012345678",
    "AWS_SECRET_ACCESS_KEY": "planted/aws/secret/key",
    "MLFLOW_TRACKING_TOKEN": "planted-mlflow-token",
}
PASSWORD = "planted-p4ssword"


def words(folder: Path, *more: str, name: str = "x") -> list[str]:
    (folder / "space.yaml").write_text(SPACE)
    return ["--space", "space.yaml", "--experiment", name, "--max-concurrent", "1", *QUICK, *more]


def listed(folder: Path) -> str:
    """The state that `tune-whisper list` tells."""
    (line,) = list_experiments(Storage.parse(str(folder / "experiments")))
    return line.state


def command_lines() -> str:
    """Those of all processes."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:  # it has just ended
            continue
    return "\n".join(found)


def rays_of_session(session: int) -> list[str]:
    """Those of Ray's processes that a search, which began a session, has started: also where it has ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            name = process.name()
            if name.startswith(("ray::", "raylet", "gcs_server")) and os.getsid(process.pid) == session:
                found.append(name)
    return found


@pytest.mark.slow
def test_interrupted_by_every_signal_and_no_secret_told(tmp_path: Path) -> None:
    """Ctrl-C once, resumed, Ctrl-C twice, resumed, SIGTERM, resumed to the end."""
    experiment = tmp_path / "experiments" / "x"
    server = Server(tmp_path / "server")
    server.folder.mkdir()
    server.start()
    uri = f"http://me:{PASSWORD}@127.0.0.1:{server.port}"
    environment = {**SECRETS, "MLFLOW_TRACKING_URI": uri}
    printed = ""
    try:
        search = Search(tmp_path, *words(tmp_path, "--trials", "2", "--epochs", "7"), **environment)
        search.wait_for("trial 001 epoch")
        assert listed(tmp_path) == "running"
        told = command_lines()
        search.process.send_signal(signal.SIGINT)
        assert search.end() == 130, search.log
        assert "interrupted before all 2 trials had ended" in search.log
        assert listed(tmp_path) == "interrupted"
        assert "resume    tune-whisper --resume x" in search.log
        found = results(experiment)
        assert found["interrupted"]
        assert found["best"]["trial_id"] == "001"
        assert (Path(found["best"]["checkpoint"]) / "model.safetensors").is_file()
        assert state(experiment)["001"]["status"] == "running"
        client = mlflow.MlflowClient(server.url)
        (parent,) = client.search_experiments(filter_string="name = 'x'")
        runs = client.search_runs([parent.experiment_id])
        assert {run.info.status for run in runs} == {"KILLED"}
        printed += search.log

        printed += interrupt(tmp_path, environment, signal.SIGINT, signal.SIGINT)
        again = interrupt(tmp_path, environment, signal.SIGTERM)
        assert "resume    tune-whisper --resume x" in again
        printed += again

        search = Search(tmp_path, "--resume", "x", **environment)
        assert search.end() == 0, search.log
        printed += search.log
        assert listed(tmp_path) == "finished"
        trials = results(experiment)["trials"]
        assert [trial["status"] for trial in trials] in (
            ["completed", "completed"],
            ["completed", "early_stopped"],
        )
        runs = client.search_runs([parent.experiment_id])
        assert len(runs) == 3
        assert {run.info.status for run in runs} <= {"FINISHED", "KILLED"}
    finally:
        server.stop()
    assert "Traceback" not in printed
    deadline = time.monotonic() + 30
    while left := rays_of_session(search.process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    check_files(experiment, tmp_path, told + printed)


def interrupt(folder: Path, environment: dict[str, str], *signals: signal.Signals) -> str:
    """Go on with the search until its trial does, and end it by signals half a second apart; what it printed."""
    search = Search(folder, "--resume", "x", **environment)
    search.wait_for("trial 001 goes on at epoch")
    begun = time.monotonic()
    for number in signals:
        search.process.send_signal(number)
        time.sleep(0.5)
    assert search.end() == 130, search.log
    assert time.monotonic() - begun < 240  # seconds, where the machine has nothing else to do
    return search.log


def check_files(experiment: Path, everything: Path, told: str) -> None:
    """No secret is in a file or in what was told, and nobody else may write the files."""
    files = {path: path.read_bytes() for path in everything.rglob("*") if path.is_file()}
    for secret in (*SECRETS.values(), PASSWORD):
        assert secret not in told
        assert not [path for path, content in files.items() if secret.encode() in content]
    for path in [*experiment.rglob("*"), experiment]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, f"others may write {path}"


@pytest.mark.slow
def test_two_at_once_in_one_place_and_a_name_that_is_taken(tmp_path: Path) -> None:
    """One storage folder, one feature cache and one MLflow database."""
    store = f"sqlite:///{tmp_path / 'both.db'}"
    more = ["--trials", "2", "--epochs", "3", "--tracking-uri", store]
    pair = {name: Search(tmp_path, *words(tmp_path, *more, name=name)) for name in ("one", "two")}
    pair["one"].wait_for("baseline: ")
    second = Search(tmp_path, *words(tmp_path, *more, name="one"))
    assert second.end() == 2
    assert second.log.startswith("error: --experiment one: exists already in ")
    assert len(second.log.splitlines()) == 1
    pair["one"].wait_for("trial 001 started")
    second = Search(tmp_path, "--resume", "one")
    assert second.end() == 2
    assert second.log.startswith("error: experiment 'one': is being run by process ")
    for name, search in pair.items():
        assert search.end() == 0, search.log
        assert "warning" not in search.log
        trials = results(tmp_path / "experiments" / name)["trials"]
        assert {trial["status"] for trial in trials} <= {"completed", "early_stopped"}
        client = mlflow.MlflowClient(store)
        (found,) = client.search_experiments(filter_string=f"name = '{name}'")
        runs = client.search_runs([found.experiment_id])
        assert {run.info.run_id for run in runs} > {trial["mlflow_run_id"] for trial in trials}
        assert len(runs) == 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is refused here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes; it grows where there are more."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free) > left:
            file.write(bytes(min(2**20, free - left)))
    return filler


@pytest.mark.slow
def test_the_disk_is_full_in_mid_search(disk: Path, tmp_path: Path) -> None:
    place = ["--storage", str(disk)]
    more = ["--trials", "1", "--epochs", "10", "--max-failures", "0", *place]
    search = Search(tmp_path, *words(tmp_path, *more))
    search.wait_for(lambda: state(disk / "x").get("001", {}).get("last_checkpoint"))
    while search.process.poll() is None:  # each checkpoint that goes makes room for one more
        filler = fill(disk, 4_000_000)
        time.sleep(0.1)
    assert search.end() == 0, search.log
    assert re.search(
        r"trial 001 failed: .*the disk is full: .* a checkpoint takes 0.0\d GB; make room", search.log
    )
    assert "Traceback" not in search.log
    (failed,) = results(disk / "x")["trials"]
    assert failed["status"] == "failed"
    filler.unlink()
    search = Search(tmp_path, "--resume", "x", "--trials", "2", *place)
    assert search.end() == 0, search.log
    trials = results(disk / "x")["trials"]
    assert trials[0] == failed | {"checkpoint": trials[0]["checkpoint"]}
    assert trials[1]["status"] == "completed"


def test_a_log_that_cannot_be_written_ends_the_search_and_stays(disk: Path) -> None:
    log = ExperimentLog(disk / EVENTS_FILE)
    log.append(TrialProposed(trial_id="001", config={"learning_rate": 1e-3}))
    before = (disk / EVENTS_FILE).read_bytes()
    filler = fill(disk, 0)
    long = TrialProposed(trial_id="002", config={"learning_rate": 1e-3, "why": "x" * 100_000})
    for _ in range(2):  # and nothing more is written after it
        with pytest.raises(
            ExperimentError, match=r"events.jsonl: cannot be written: No space left on device; .*--resume"
        ):
            log.append(long)
    assert (disk / EVENTS_FILE).read_bytes() == before
    assert "002" not in log.state.records
    filler.unlink()
    again = ExperimentLog(disk / EVENTS_FILE)
    again.append(long)
    assert "002" in read_log(disk / EVENTS_FILE).records


@pytest.mark.slow
def test_rays_head_is_killed_and_another_cluster_goes_on(tmp_path: Path) -> None:
    with Nodes(cpus=1) as nodes:
        more = ["--trials", "2", "--epochs", "6", "--address", nodes.address]
        search = Search(tmp_path, *words(tmp_path, *more))
        search.wait_for(
            lambda: any(trial["last_checkpoint"] for trial in state(tmp_path / "experiments" / "x").values())
        )
        (head,) = [
            process
            for process in psutil.Process(nodes.nodes[0].pid).children(recursive=True)
            if process.name() == "gcs_server"
        ]
        head.kill()
        assert search.end() == 1, search.log
        assert re.search(rf"error: Ray's head at \S+:{nodes.port} is gone; ", search.log)
        assert search.log.strip().endswith("tune-whisper --resume x")
        assert "Traceback" not in search.log
    before = state(tmp_path / "experiments" / "x")
    with Nodes(cpus=1) as nodes:
        search = Search(tmp_path, "--resume", "x", "--address", nodes.address)
        assert search.end() == 0, search.log
    assert f"trial 001 goes on at epoch {before['001']['checkpoint_epoch']:.2f}" in search.log
    for trial in results(tmp_path / "experiments" / "x")["trials"]:
        assert trial["status"] in ("completed", "early_stopped")
