"""Searches as jobs of a real Ray head: sent, listed, followed, stopped, and going on when the sender was killed."""

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
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from dashboards import dashboard
from processes import free_port, tune_whisper
from ray.job_submission import JobStatus
from ray_nodes import Nodes
from search_process import Search

from tune.cli import main
from tune.remote.jobs import send

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
def head() -> Iterator[Nodes]:
    """With two CPUs, and `python` where a job finds it; newer Rays ask for a token by default."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Nodes(cpus=2, jobs={"PATH": path, "RAY_AUTH_MODE": "disabled"}) as nodes:
        yield nodes


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read()


@pytest.mark.slow
def test_a_search_survives_its_sender_and_ends_cleanly_when_it_is_stopped(
    head: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("space.yaml").write_text(SPACE)
    for name in (".env", "id_rsa"):
        Path(name).write_text(PLANTED)
    search = f"--space space.yaml --trials 50 --epochs 4 --experiment survivor --storage {tmp_path}/results".split()
    submit = ["submit", "--no-install", "--address", head.url, "--", *search, *QUICK]
    secrets = {"HF_TOKEN": PLANTED, "MLFLOW_TRACKING_PASSWORD": PLANTED}
    sender = Search(tmp_path, "submit", "--follow", *submit[1:], **secrets)
    sender.wait_for("data demo")  # printed by the search itself, on the cluster
    sender.kill()

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.url)
    assert main(submit) == 2
    assert "survivor: a job of this name is running on the cluster" in capsys.readouterr().err
    follower = Search(tmp_path, "logs", "survivor", "--follow")
    follower.wait_for("best so far")
    follower.process.send_signal(signal.SIGINT)
    assert follower.end() == 130
    assert "no longer following; the job goes on" in follower.log
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


class Sent:
    """A cluster's list of jobs, as `JobSubmissionClient` tells it, and what is sent to it."""

    def __init__(self, *known: tuple[str, str]) -> None:
        self.jobs = [
            SimpleNamespace(
                submission_id=sent, metadata={"name": name}, status=JobStatus.SUCCEEDED, start_time=0
            )
            for sent, name in known
        ]

    def get_address(self) -> str:
        return "http://head:8265"

    def list_jobs(self) -> list[Any]:
        return self.jobs

    def submit_job(self, *, submission_id: str, **_: Any) -> str:
        assert submission_id not in {job.submission_id for job in self.jobs}
        return submission_id


@pytest.mark.parametrize(
    ("name", "sent"),
    [("new", "tune-whisper-new"), ("night", "tune-whisper-night-3"), ("night-2", "tune-whisper-night-2-2")],
)
def test_each_job_has_an_id_of_its_own(name: str, sent: str, tmp_path: Path) -> None:
    """The second job `night` took the id that `night-2` would have."""
    client: Any = Sent(("tune-whisper-night", "night"), ("tune-whisper-night-2", "night"))
    assert send(client, name, [], tmp_path, [], {}) == sent


def assert_planted_nowhere(head: Nodes, submission_id: str) -> None:
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
def test_a_job_that_fails(head: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results" / "taken").mkdir(parents=True)
    search = ["--space", "lr_batch", "--experiment", "taken", "--storage", str(tmp_path / "results")]
    assert main(["submit", "--no-install", "--follow", "--address", head.url, "--", *search]) == 1
    printed = capsys.readouterr()
    assert "error: --experiment taken: exists already" in printed.out
    assert "tune-whisper-taken failed after " in printed.err
    assert main(["status", "taken", "--address", head.url]) == 0
    assert "reason: " in capsys.readouterr().out


def test_a_proxy_that_wants_a_token_and_another_version_of_ray(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with dashboard(PLANTED) as port:
        for token in ("", f"{PLANTED}wrong", PLANTED):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps(headers))
            code = main(["list", "--address", f"http://127.0.0.1:{port}"])
            printed = capsys.readouterr()
            assert PLANTED not in printed.err + printed.out
            if token == PLANTED:
                assert code == 0
            else:
                assert code == 2 and len(printed.err.splitlines()) == 1
                assert "does not let us in; with Ray's token" in printed.err
    with dashboard(PLANTED, ray="2.40.0") as port:
        place = ["--address", f"http://127.0.0.1:{port}"]
        assert main(["submit", "--no-install", *place, "--", "--space", "lr_batch"]) == 2
        assert "the cluster runs Ray 2.40.0 and Python 3." in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_cluster_has_and_has_not(
    head: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    with Nodes(jobs={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) as head:
        for name, code in (("token", 0), ("wrong", 2)):
            # In a process of its own: Ray reads the token once.
            environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / name)}
            done = tune_whisper("list", "--address", head.url, cwd=tmp_path, **environment)
            assert done.returncode == code and PLANTED not in done.stdout + done.stderr
        assert "does not let us in" in done.stderr


def test_addresses_where_no_ray_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tune.remote.client._ANSWER_SECONDS", 1)
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as somebody_else,
    ):
        threading.Thread(target=somebody_else.serve_forever, daemon=True).start()
        for address, told in {
            "": "--address: missing",
            "ray://head:10001": "ray://head:10001: is not the address of a cluster's dashboard",
            f"http://127.0.0.1:{free_port()}": "cannot be reached; is the cluster running",
            f"http://me:{PLANTED}@127.0.0.1:{silent.getsockname()[1]}": "no answer within 1 s",
            f"http://127.0.0.1:{somebody_else.server_port}": "does not answer as the dashboard of a Ray cluster",
        }.items():
            for command in (["list", "--all"], ["cluster"]):
                assert main([*command, "--address", address]) == 2
                printed = capsys.readouterr().err
                assert told in printed.splitlines()[-1] and PLANTED not in printed
        somebody_else.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert main(["cluster"]) == 2
    told = "RAY_ADDRESS=10.0.0.1:6379: is not the address of a cluster's dashboard"
    assert told in capsys.readouterr().err


def test_the_address_of_a_search_keeps_nobody_from_the_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("10.0.0.1:6379", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert main(["list"]) == 0
        assert "no experiments" in capsys.readouterr().out


def test_headers_that_are_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_JOB_HEADERS", '["planted"]')
    assert main(["list", "--address", "http://127.0.0.1:9"]) == 2
    printed = capsys.readouterr().err
    assert "RAY_JOB_HEADERS: must be a JSON object of texts" in printed and "planted" not in printed
