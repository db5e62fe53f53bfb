"""Searches as jobs of a real Ray head: sent, followed, stopped, and going on when the sender was killed."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray_cluster import RayCluster, free_port

from tune.cli import main

SPACE = "learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}\nscheduler: {rungs: 2}\n"
QUICK = ["--set", "max_train_clips=32", "--set", "max_eval_clips=8", "--set", "generation_max_length=20"]
PLANTED = "PlantedSecretOfTheSubmittingShell"
RAY_VERSION = tuple(int(part) for part in importlib.metadata.version("ray").split(".")[:2])
PYTHON = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
"""Where a job finds `python`."""

# Ray's own client says it of its own argument.
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated")


@pytest.fixture(scope="module")
def head() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # newer Rays ask for a token by default
        cluster = RayCluster(PYTHON, cpus=2)
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
    """A proxy before a real dashboard that asks for a token, or tells of another version of Ray."""

    head = ""
    token: str | None = None
    version: str | None = None

    def do_GET(self) -> None:
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
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


def start(*words: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tune", *words],
        cwd=cwd,
        env={**os.environ, "RAY_ADDRESS": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*words: str, cwd: Path, seconds: float = 560, **environment: str) -> tuple[int, str, str]:
    process = start(*words, cwd=cwd, **environment)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, out, err


def show(command: str, job: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([command, job, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as answer:
        found: bytes = answer.read()
        return found


@pytest.mark.slow
def test_the_search_survives_its_sender(
    head: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / ".env").write_text(f"KEY={PLANTED}")
    (tmp_path / "id_rsa").write_text(PLANTED)
    search = ["--space", "space.yaml", "--trials", "2", "--epochs", "1", "--experiment", "survivor", *QUICK]
    sender = start(
        *("submit", "--address", head.url, "--no-install", "--follow", "--", *search),
        *("--storage", str(tmp_path / "results")),
        cwd=tmp_path,
        HF_TOKEN=PLANTED,
        MLFLOW_TRACKING_PASSWORD=PLANTED,
    )
    assert sender.stdout is not None
    for line in sender.stdout:
        if "data demo" in line:  # printed by the search itself, on the cluster
            break
    os.killpg(sender.pid, signal.SIGKILL)
    assert sender.wait(10) == -signal.SIGKILL

    code, out, err = run("logs", "survivor", "--follow", "--address", head.url, cwd=tmp_path)
    assert code == 0, out + err
    assert out.count("data demo:") == 1 and "best      WER" in out
    assert "tune-whisper-survivor succeeded" in err
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.url)
    status = show("status", "survivor", capsys)
    assert (status["state"], status["exit_code"]) == ("succeeded", 0)
    assert status["metadata"]["experiment"] == "survivor"
    results = json.loads((tmp_path / "results" / "survivor" / "results.json").read_text())
    assert [trial["status"] for trial in results["trials"]] == ["completed", "completed"]
    experiment = yaml.safe_load((tmp_path / "results" / "survivor" / "experiment.yaml").read_text())
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
def test_stop_ends_a_search_cleanly(
    head: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", head.url)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    Path("space.yaml").write_text(SPACE)
    search = ["--space", "space.yaml", "--trials", "50", "--epochs", "4", "--experiment", "stopped", *QUICK]
    submit = ["submit", "--no-install", "--", *search, "--storage", str(tmp_path / "results")]
    assert main(submit) == 0
    assert "tune-whisper logs stopped --follow" in capsys.readouterr().out
    assert main(submit) == 2
    assert "stopped: a job of this name is " in capsys.readouterr().err

    follower = start("logs", "stopped", "--follow", cwd=tmp_path, RAY_ADDRESS=head.url)
    assert follower.stdout is not None
    for line in follower.stdout:
        if "best so far" in line:
            break
    os.killpg(follower.pid, signal.SIGINT)
    assert "no longer following; the job goes on" in follower.communicate(timeout=200)[1]
    assert follower.returncode == 130
    status = show("status", "stopped", capsys)
    assert (status["state"], status["ended"]) == ("running", None)

    assert main(["stop", "stopped"]) == 0
    assert "tune-whisper-stopped stopped" in capsys.readouterr().out
    results = json.loads(Path("results/stopped/results.json").read_text())
    assert results["best"]["wer"] > 0
    assert main(["logs", "stopped", "--follow"]) == 1
    assert "best      WER" in capsys.readouterr().out  # the search's own last lines
    assert main(["stop", "tune-whisper-stopped"]) == 0
    assert "had ended already: stopped" in capsys.readouterr().out
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "stopped" in line] == [["stopped", "stopped"]]


@pytest.mark.slow
def test_a_job_that_fails_says_so(
    head: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results" / "taken").mkdir(parents=True)
    search = ["--space", "lr_batch", "--experiment", "taken", "--storage", str(tmp_path / "results")]
    submit = ["submit", "--name", "fails", "--no-install", "--follow", "--address", head.url, "--", *search]
    assert main(submit) == 1
    printed = capsys.readouterr()
    assert "error: --experiment taken: exists already" in printed.out
    assert "tune-whisper-fails failed" in printed.err
    for name in ("fails", "taken", "tune-whisper-fails"):
        assert main(["status", name, "--address", head.url]) == 0
        shown = capsys.readouterr().out
        assert "state       failed" in shown and "reason      " in shown
    # Ray takes a submission id once only; the name can be used again.
    assert main([word for word in submit if word != "--follow"]) == 0
    assert "sent tune-whisper-fails-2 " in capsys.readouterr().out


@pytest.mark.slow
def test_a_token_is_sent_and_never_shown(
    head: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(type("WithToken", (Gate,), {"head": head.url, "token": PLANTED})) as address:
        for token in ("", f"{PLANTED}wrong", PLANTED):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps(headers))
            code = main(["list", "--json", "--all", "--address", address])
            printed = capsys.readouterr()
            assert PLANTED not in printed.err + printed.out
            if token == PLANTED:
                assert code == 0 and isinstance(json.loads(printed.out), list)
            else:
                assert code == 2 and len(printed.err.splitlines()) == 1
                assert "does not let us in; with Ray's token" in printed.err


@pytest.mark.slow
@pytest.mark.skipif(RAY_VERSION < (2, 52), reason="Ray has token authentication from 2.52 on")
def test_rays_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, token in (("token", PLANTED), ("wrong", "x" * 64)):
        (tmp_path / name).write_text(token)
    head = RayCluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})
    try:
        codes = []
        for name in ("token", "wrong"):
            # In a process of its own: Ray reads the token once.
            environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / name)}
            code, out, err = run("list", "--address", head.url, cwd=tmp_path, **environment)
            codes.append(code)
            assert PLANTED not in out + err
        assert codes == [0, 2]
        assert "does not let us in" in err
    finally:
        head.close()


@pytest.mark.slow
def test_what_a_cluster_has_not(
    head: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(type("OtherVersion", (Gate,), {"head": head.url, "version": "2.40.0"})) as address:
        search = ["--space", "lr_batch", "--storage", "/x"]
        assert main(["submit", "--no-install", "--address", address, "--", *search]) == 2
    printed = capsys.readouterr().err
    assert "the cluster runs Ray 2.40.0 and Python 3." in printed and len(printed.splitlines()) == 1
    for command in ("status", "logs", "stop"):
        assert main([command, "nosuchjob", "--address", head.url]) == 2
        assert "nosuchjob: the cluster has no such job" in capsys.readouterr().err
    # The address that was given goes before Ray's own choice.
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert main(["list", "--json", "--address", head.url]) == 0


def test_addresses_where_no_ray_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tune.remote.client._ANSWER_SECONDS", 1)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent, served(files) as somebody_else:
        for address, told in {
            "": "--address: missing",
            f"http://127.0.0.1:{free_port()}": "cannot be reached; is the cluster running",
            f"http://me:{PLANTED}@127.0.0.1:{silent.getsockname()[1]}": "no answer within 1 s",
            somebody_else: "does not answer as the dashboard of a Ray cluster",
        }.items():
            assert main(["list", "--all", "--address", address]) == 2
            printed = capsys.readouterr().err
            assert told in printed.splitlines()[-1] and PLANTED not in printed
