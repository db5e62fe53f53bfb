"""Searches as jobs of a real Ray head: sent, listed, followed, stopped, and going on when the sender was killed."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.metadata
import json
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import Command, tune_whisper
from ray_cluster import RayCluster, free_port

from tune.cli import main

SPACE = "learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}\nscheduler: {rungs: 2}\n"
QUICK = ["--set", "max_train_clips=32", "--set", "max_eval_clips=8", "--set", "generation_max_length=20"]
PLANTED = "PlantedSecretOfTheSubmittingShell"
RAY_VERSION = tuple(int(part) for part in importlib.metadata.version("ray").split(".")[:2])

# Ray's own client says it of its own argument.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated")


@pytest.fixture(autouse=True)
def _no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # newer Rays look for a token by default


@pytest.fixture(scope="module")
def head() -> Iterator[RayCluster]:
    """With two CPUs, and `python` where a job finds it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Newer Rays ask for a token by default.
    cluster = RayCluster({"PATH": path, "RAY_AUTH_MODE": "disabled"}, cpus=2)
    try:
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def served(handler: Any) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Gate(http.server.BaseHTTPRequestHandler):
    """A proxy before a real dashboard that asks for a token, and tells of another version of Ray where one is given."""

    head = ""
    version: str | None = None

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {PLANTED}":
            self._answer(401, b"Unauthorized: Missing authentication token")
            return
        body = fetch(self.head + self.path)
        if self.version and self.path == "/api/version":
            body = json.dumps(json.loads(body) | {"ray_version": self.version}).encode()
        self._answer(200, body)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as answer:
        found: bytes = answer.read()
        return found


@pytest.mark.slow
def test_a_search_survives_its_sender_and_ends_cleanly_when_it_is_stopped(
    head: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(SPACE)
    for name in (".env", "id_rsa"):
        Path(name).write_text(PLANTED)
    search = [
        "--space",
        "space.yaml",
        "--trials",
        "50",
        "--epochs",
        "4",
        "--experiment",
        "survivor",
        "--storage",
    ]
    submit = ["submit", "--no-install", "--address", head.url, "--", *search, f"{tmp_path}/results", *QUICK]
    secrets = {"HF_TOKEN": PLANTED, "MLFLOW_TRACKING_PASSWORD": PLANTED}
    sender = Command(
        "submit", "--follow", *submit[1:], cwd=tmp_path, environment={**os.environ, **secrets}, session=True
    )
    assert sender.stdout is not None
    for line in sender.stdout:
        if "data demo" in line:  # printed by the search itself, on the cluster
            break
    os.killpg(sender.pid, signal.SIGKILL)
    sender.communicate(timeout=30)

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.url)
    assert main(submit) == 2
    assert "survivor: a job of this name is running on the cluster" in capsys.readouterr().err
    follower = Command("logs", "survivor", "--follow", cwd=tmp_path, session=True)
    assert follower.stdout is not None
    for line in follower.stdout:
        if "best so far" in line:
            break
    os.killpg(follower.pid, signal.SIGINT)
    assert "no longer following; the job goes on" in follower.communicate(timeout=200)[1]
    assert follower.returncode == 130
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["survivor", "running"]

    assert main(["stop", "survivor"]) == 0
    assert "tune-whisper-survivor stopped after " in capsys.readouterr().out
    assert main(["logs", "survivor", "--follow"]) == 1
    log = capsys.readouterr().out
    assert log.count("data demo:") == 1 and "best      WER" in log, "the search's own last lines"
    assert main(["stop", "tune-whisper-survivor"]) == 0, "it had ended already"
    assert main(["status", "survivor", "--json"]) == 0
    status = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert (status["status"], status["metadata"]) == ("STOPPED", {"name": "survivor"})
    assert json.loads(Path("results/survivor/results.json").read_text())["best"]["wer"] > 0
    experiment = yaml.safe_load(Path("results/survivor/experiment.yaml").read_text())
    assert experiment["train_config"]["max_train_clips"] == 32, "--set counts there"
    assert experiment["space"]["scheduler"]["rungs"] == 2, "and so does the space's file"
    assert_planted_nowhere(head, "tune-whisper-survivor")


def assert_planted_nowhere(head: RayCluster, submission_id: str) -> None:
    """In none of: what the cluster tells of the job, the uploaded package, Ray's logs and other files."""
    details = fetch(f"{head.url}/api/jobs/{submission_id}")
    logs = fetch(f"{head.url}/api/jobs/{submission_id}/logs")
    assert b"survivor" in details and b"best" in logs
    assert PLANTED.encode() not in details + logs
    files = [path for path in head.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    packages = [path for path in files if path.name == "space.yaml" and (path.parent / "tune").is_dir()]
    assert packages, "the unpacked package was not found"
    for path in files:
        assert path.name not in {".env", "id_rsa", "data.csv"}
        assert PLANTED.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_a_job_that_fails_behind_a_gate_that_wants_a_token(
    head: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results" / "taken").mkdir(parents=True)
    search = ["--space", "lr_batch", "--experiment", "taken", "--storage", str(tmp_path / "results")]
    assert main(["submit", "--no-install", "--follow", "--address", head.url, "--", *search]) == 1
    printed = capsys.readouterr()
    assert "error: --experiment taken: exists already" in printed.out
    assert "tune-whisper-taken failed after " in printed.err
    with served(type("Wanting", (Gate,), {"head": head.url})) as address:
        for token in ("", f"{PLANTED}wrong", PLANTED):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps(headers))
            code = main(["status", "taken", "--address", address])
            printed = capsys.readouterr()
            assert PLANTED not in printed.err + printed.out
            if token == PLANTED:
                assert code == 0 and "reason: " in printed.out
            else:
                assert code == 2 and len(printed.err.splitlines()) == 1
                assert "does not let us in; with Ray's token" in printed.err
    with served(type("Older", (Gate,), {"head": head.url, "version": "2.40.0"})) as address:
        assert main(["submit", "--no-install", "--address", address, "--", *search]) == 2
        printed = capsys.readouterr()
        assert "the cluster runs Ray 2.40.0 and Python 3." in printed.err and printed.err.count("\n") == 1


@pytest.mark.slow
def test_what_a_cluster_has_and_has_not(
    head: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The address that was given goes before Ray's own choice.
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    for command in ("status", "logs", "stop"):
        assert main([command, "nosuchjob", "--address", head.url]) == 2
        assert "nosuchjob: the cluster has no such job" in capsys.readouterr().err
    assert main(["cluster", "--address", head.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["node", "role", "CPUs", "GPUs", "GPU", "type", "memory"]
    assert lines[1].split()[1:4] == ["head", "2", "0"]
    assert lines[2] == "total: 1 node, 2 CPUs, 0 GPUs"
    assert lines[3].endswith("there, the same here")
    assert main(["cluster", "--json", "--address", head.url]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert (node["head"], node["cpus"], node["gpu_type"]) == (True, 2, None)


@pytest.mark.slow
@pytest.mark.occasional
@pytest.mark.skipif(RAY_VERSION < (2, 52), reason="Ray has token authentication from 2.52 on")
def test_rays_own_token(tmp_path: Path) -> None:
    for name, token in (("token", PLANTED), ("wrong", "x" * 64)):
        (tmp_path / name).write_text(token)
    head = RayCluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})
    try:
        for name, code in (("token", 0), ("wrong", 2)):
            # In a process of its own: Ray reads the token once.
            environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / name)}
            done = tune_whisper("list", "--address", head.url, cwd=tmp_path, **environment)
            assert done.returncode == code and PLANTED not in done.stdout + done.stderr
        assert "does not let us in" in done.stderr
    finally:
        head.close()


def test_addresses_where_no_ray_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tune.remote.client._ANSWER_SECONDS", 1)
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent, served(files) as somebody_else:
        for address, told in {
            "": "--address: missing",
            "ray://head:10001": "ray://head:10001: is not the address of a cluster's dashboard",
            f"http://127.0.0.1:{free_port()}": "cannot be reached; is the cluster running",
            f"http://me:{PLANTED}@127.0.0.1:{silent.getsockname()[1]}": "no answer within 1 s",
            somebody_else: "does not answer as the dashboard of a Ray cluster",
        }.items():
            for command in (["list", "--all"], ["cluster"]):
                assert main([*command, "--address", address]) == 2
                printed = capsys.readouterr().err
                assert told in printed.splitlines()[-1] and PLANTED not in printed
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert main(["cluster"]) == 2
    assert "RAY_ADDRESS=10.0.0.1:6379: is not the address of" in capsys.readouterr().err


def test_headers_that_are_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_JOB_HEADERS", '["planted"]')
    assert main(["list", "--address", "http://127.0.0.1:9"]) == 2
    printed = capsys.readouterr().err
    assert "RAY_JOB_HEADERS: must be a JSON object of texts" in printed and "planted" not in printed
