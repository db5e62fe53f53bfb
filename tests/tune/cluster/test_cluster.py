"""What a trial gets of the cluster, and which clusters a search can join."""

import http.server
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tune.cli import main
from tune.cluster.resources import ResourceRequest, TrialResources
from tune.cluster.session import ray_session
from tune.util.errors import ResourceError

FOUR, EIGHT_AND_ONE = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        ({}, [FOUR], TrialResources(gpus=0, cpus=1, concurrent=4)),
        ({}, [{"CPU": 16, "GPU": 2}], TrialResources(gpus=1, cpus=8, concurrent=2)),
        ({"gpus": 0.4}, [{"CPU": 64, "GPU": 2}], TrialResources(gpus=0.4, cpus=8, concurrent=4)),
        ({"max_concurrent": 1}, [FOUR], TrialResources(gpus=0, cpus=1, concurrent=1)),
        ({"cpus": 2.0}, [{"CPU": 5}, {"CPU": 3}], TrialResources(gpus=0, cpus=2, concurrent=3)),
        (
            {},
            [{"CPU": 8}, {"CPU": 8, "GPU": 2}, {"CPU": 4, "GPU": 1}],
            TrialResources(gpus=1, cpus=4, concurrent=3),
        ),
        # Workers of a trial may lie on two nodes.
        ({"workers": 2}, [EIGHT_AND_ONE] * 3, TrialResources(gpus=2, cpus=16, concurrent=1, workers=2)),
    ],
)
def test_resources(asked: dict[str, Any], nodes: list[dict[str, float]], expected: TrialResources) -> None:
    assert ResourceRequest(**{"trials": 100, **asked}).fit(nodes) == expected


TRAINING = {"workers": 2, "per_worker": True}


@pytest.mark.parametrize(
    ("asked", "nodes", "message"),
    [
        ({"gpus": 1.0}, [FOUR], "--gpus-per-trial 1: this machine has 0 GPUs; use 0 to train on the CPU"),
        (
            {"gpus": 2.0},
            [EIGHT_AND_ONE] * 3,
            "--gpus-per-trial 2: no node of the cluster has more than 1 GPU; lower it",
        ),
        ({"cpus": 8.0}, [FOUR], "--cpus-per-trial 8: this machine has 4 CPUs; lower it"),
        # A training is told in the words of its own options.
        (
            {**TRAINING, "gpus": 2.0},
            [FOUR],
            "--gpus-per-worker 1: this machine has 0 GPUs; use 0 to train on the CPU",
        ),
        (
            {**TRAINING, "workers": 5},
            [FOUR],
            "--workers 5: there is room for 4 with 0 GPU and 1 CPU each; lower it",
        ),
    ],
)
def test_asking_for_too_much(asked: dict[str, Any], nodes: list[dict[str, float]], message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        ResourceRequest(**asked).fit(nodes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://me:hush@head:8265", "http://me:***@head:8265: start a search on a node of the cluster"),
        ("ray://head:10001/?token=hush", "from elsewhere use tune-whisper submit --address http://HOST:8265"),
        ("head", "must be HOST:PORT"),
        ("127.0.0.1:9", "no Ray cluster answers"),
        (None, "is a web server, probably Ray's dashboard; give HOST:6379"),
    ],
)
def test_addresses_that_a_search_cannot_join(
    address: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = address or f"127.0.0.1:{server.server_port}"
        assert main(["--space", "lr_batch", "--address", address, "--storage", "/tmp/no-such-storage"]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: --address ") and told in error
    assert "hush" not in error


def test_a_folder_where_ray_cannot_keep_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").touch()  # in place of its folder, since root may write to any
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    told = r"^Ray cannot be started with its files in .*/ray: .* set RAY_TMPDIR to a folder .*$"
    with pytest.raises(ResourceError, match=told), ray_session(Console(quiet=True)):
        pass


CHILD = """
from tune.util.environment import set_ray_variables

set_ray_variables()  # as commands do, before Ray is imported
import ray
from rich.console import Console
from tune.cluster.session import ray_session

with ray_session(Console(), "local"):
    print("environment:", ray.get_runtime_context().runtime_env)
"""


@pytest.mark.slow
@pytest.mark.occasional
def test_below_uv_run_the_working_folder_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    # What Ray looks for: a process above whose words begin with `uv run`.
    (tmp_path / "run").write_text(f"{sys.executable} child.py\n")
    done = subprocess.run(
        ["uv", "run"], executable="/bin/sh", cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "environment: {}"
