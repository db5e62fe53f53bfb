"""`tune-whisper cluster` on a real Ray cluster: a head without CPUs, a worker with faked GPUs, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Command
from ray_cluster import RayCluster

from tune.cli import main

ROOT = Path(__file__).resolve().parents[3]


def run_cluster(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = Command("cluster", *words, cwd=ROOT, environment={**known, **environment})
    out, error = command.communicate(timeout=300)
    return subprocess.CompletedProcess(command.args, command.returncode, out, error)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.add_node("--num-cpus=2", "--num-gpus=4", '--resources={"accelerator_type:T4": 1}', nodes=2)
        yield cluster
    finally:
        cluster.close()


def test_nodes_totals_and_versions(ray_cluster: RayCluster) -> None:
    done = run_cluster("--address", ray_cluster.url)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["node", "role", "CPUs", "GPUs", "GPU", "type", "memory"]
    assert rows[1][1:4] == ["head", "0", "0"]
    assert rows[2][1:5] == ["worker", "2", "4", "T4"]
    assert "total: 2 nodes, 2 CPUs, 4 GPUs" in done.stdout
    assert done.stdout.rstrip().endswith("there, the same here")

    by_rest = json.loads(run_cluster("--json", "--address", ray_cluster.url).stdout)
    joined = json.loads(run_cluster("--json", "--address", f"127.0.0.1:{ray_cluster.port}").stdout)
    for view in (by_rest, joined):
        view["nodes"].sort(key=lambda node: node["head"])
        del view["address"]
    assert joined == by_rest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--address: missing; give http://HEAD:8265"),
        (["--address", "local"], "--address local: must be http://HEAD:8265"),
        (["--address", "127.0.0.1:9"], "--address 127.0.0.1:9: no Ray cluster answers"),
        (["--address", "head"], "must be HOST:PORT"),
        (["scale", "--address", "http://x:1", "--workers", "2"], "must be vertex_ray://NAME"),
        (["create", "no_such.yaml"], "no_such.yaml: cannot be read"),
    ],
)
def test_mistakes_are_one_line_within_seconds(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started = time.monotonic()
    assert main(["cluster", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and message in error
    assert time.monotonic() - started < 60
