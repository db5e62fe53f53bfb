"""Searches that are interrupted, run beside others, or lose disk or Ray's head: what is kept, how they go on."""

import contextlib
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import psutil
import pytest
from mlflow_server import mlflow_server
from ray_nodes import Nodes
from search_process import QUICK, Search, frozen, read_log, results, state
from small_disks import mounted

from tune.cli import main
from tune.experiments.events import TrialProposed
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.listing import list_experiments
from tune.experiments.log import ExperimentLog
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


def words(folder: Path, *more: str) -> list[str]:
    (folder / "space.yaml").write_text(SPACE)
    return ["--space", "space.yaml", "--experiment", "x", "--max-concurrent", "1", *QUICK, *more]


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
def test_interrupted_by_ctrl_c_and_no_secret_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    experiment = tmp_path / "experiments" / "x"
    (tmp_path / "server").mkdir()
    with mlflow_server(tmp_path / "server") as address:
        uri = address.replace("://", f"://me:{PASSWORD}@")
        long = ["--trials", "2", "--epochs", "112", "--set", "log_every_seconds=0.2", "--save-every", "0.02"]
        search = Search(tmp_path, *words(tmp_path, *long), **SECRETS, MLFLOW_TRACKING_URI=uri)
        search.wait_for("trial 001 epoch")
        assert listed(tmp_path) == "running"
        told = command_lines()
        assert main(["--resume", "x", "--storage", str(experiment.parent)]) == 2
        assert "error: experiment 'x': is being run by process " in capfd.readouterr().err
        search.wait_for(lambda: far_from_a_rung(experiment))
        saved = state(experiment)["001"]["last_checkpoint"]  # what a kill would leave
        time.sleep(2)  # a step at least that is not in it
        search.process.send_signal(signal.SIGINT)
        assert search.end() == 130, search.log
        assert "interrupted before all 2 trials had ended" in search.log
        assert "resume    tune-whisper search --resume x" in search.log
        assert listed(tmp_path) == "interrupted"
        found = results(experiment)
        assert (found["interrupted"], found["best"]["trial_id"]) == (True, "001")
        assert (Path(found["best"]["checkpoint"]) / "model.safetensors").is_file()
        stopped = state(experiment)["001"]  # it can go on from where it was, not only from its last rung
        assert stopped["status"] == "running"
        assert (experiment / stopped["last_checkpoint"] / "optimizer.pt").is_file()
        assert int(stopped["last_checkpoint"][-9:]) > int(saved[-9:]) > stopped["samples_seen"]
        client = mlflow.MlflowClient(address)
        (parent,) = client.search_experiments(filter_string="name = 'x'")
        runs = client.search_runs([parent.experiment_id])
        assert {run.info.status for run in runs} == {"KILLED"}
    assert "Traceback" not in search.log
    deadline = time.monotonic() + 30
    while left := rays_of_session(search.process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    check_files(experiment, tmp_path, told + search.log)


@pytest.mark.slow
@pytest.mark.occasional
@pytest.mark.parametrize("command", ["search", "train"])
def test_two_signals_at_once(tmp_path: Path, command: str) -> None:
    """A training ended with the word `interrupted` alone."""
    more = words(tmp_path, "--trials", "1") if command == "search" else ["train", "--name", "x", *QUICK]
    search = Search(tmp_path, *more, "--epochs", "28")
    search.wait_for("trial 001 epoch" if command == "search" else "epoch 7.00: WER")
    search.process.send_signal(signal.SIGINT)
    search.wait_for("interrupted: saving")
    search.process.send_signal(signal.SIGTERM)
    assert search.end(240) == 130, search.log  # seconds, where the machine has nothing else to do
    assert "Traceback" not in search.log
    assert search.log.count(f"tune-whisper {command} --resume x") == 1, search.log


def far_from_a_rung(experiment: Path) -> bool:
    """Whether the first trial has saved on the way to its next rung, and has most of it to go."""
    trial = state(experiment)["001"]
    return bool(trial["samples_seen"] < int(trial["last_checkpoint"][-9:]) < 1.5 * trial["samples_seen"])


def check_files(experiment: Path, everything: Path, told: str) -> None:
    """No secret is in a file or in what was told, and nobody else may write the files."""
    files = {path: path.read_bytes() for path in everything.rglob("*") if path.is_file()}
    for secret in (*SECRETS.values(), PASSWORD):
        assert secret not in told
        assert not [path for path, content in files.items() if secret.encode() in content]
    for path in [*experiment.rglob("*"), experiment]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, f"others may write {path}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 MB."""
    with mounted(tmp_path / "disk", "size=200m") as folder:
        yield folder


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes; it grows where there are more."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free) > left:
            file.write(bytes(min(2**20, free - left)))
    return filler


@pytest.mark.slow
@pytest.mark.occasional
def test_the_disk_is_full_in_the_middle_of_a_save(disk: Path, tmp_path: Path) -> None:
    more = f"--trials 1 --finalists 0 --epochs 8 --max-failures 0 --storage {disk}".split()
    hold = tmp_path / "hold"
    search = Search(tmp_path, *words(tmp_path, *more), program=frozen("writing", 2, hold))
    search.wait_for((hold / "there").exists)
    filler = fill(disk, 0)
    (hold / "go").touch()
    assert search.end() == 0, search.log
    assert "Traceback" not in search.log
    assert re.search(r"trial 001 failed: .*the disk is full", search.log)
    filler.unlink()
    (trial,) = results(disk / "x")["trials"]
    assert (trial["status"], trial["best_wer"]) == ("failed", trial["evaluations"][0]["wer"])
    assert (Path(trial["checkpoint"]) / "model.safetensors").is_file()


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
@pytest.mark.occasional
def test_rays_head_is_killed(tmp_path: Path) -> None:
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
    assert re.search(rf"error: Ray's head at \S+:{nodes.address.split(':')[1]} is gone; ", search.log)
    assert search.log.strip().endswith("tune-whisper search --resume x")
    assert "Traceback" not in search.log
