"""Clusters on Vertex AI: shown, scaled, created, deleted; against a stand-in for the service (vertex_server.py)."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest
from vertex_lab import OURS, VERSIONS_OF_VERTEX, Run, cluster, cluster_command, vertex_server, with_lab
from vertex_server import PROJECT, VertexServer

from tune.remote.vertex import VertexError
from tune.remote.vertex_clusters import read_cluster_file

pytestmark = VERSIONS_OF_VERTEX
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def vertex(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> VertexServer:
    return with_lab(vertex_server(pytestconfig), monkeypatch)


@pytest.fixture
def run(vertex: VertexServer, capsys: pytest.CaptureFixture[str]) -> Run:
    return cluster_command(capsys)


def replicas(vertex: VertexServer, name: str = "lab") -> list[int]:
    return [pool.replica_count for pool in vertex.resources[name].resource_pools]


def test_showing_a_cluster(run: Run, vertex: VertexServer) -> None:
    code, out, _ = run("--address", "vertex_ray://lab")
    assert code == 0
    assert f"cluster   lab in {PROJECT}, us-central1: RUNNING" in out
    assert "versions  Ray 2.47, Python 3.11" in out
    assert "dashboard https://localhost:1" in out
    assert "1 NVIDIA_TESLA_T4" in out
    assert "prices: https://cloud.google.com/vertex-ai/pricing" in out
    assert "nodes: not known: " in out  # nobody listens at that dashboard
    assert "[Ray on Vertex AI]" not in out


def test_json_is_json(run: Run) -> None:
    code, out, _ = run("--json", "--address", "vertex_ray://lab")
    shown = json.loads(out)
    assert code == 0
    assert (shown["state"], shown["ray_version"], shown["ray"]) == ("RUNNING", "2.47", None)
    assert shown["pools"][1] == {
        **{"machine_type": "n1-standard-16", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1},
        **{"replicas": 2, "most": None, "disk_gb": 0, "image": None},
    }


def test_scaling_says_what_changes_and_waits_for_the_operation(run: Run, vertex: VertexServer) -> None:
    code, out, err = run("scale", "--address", "vertex_ray://lab", "--workers", "4", "--yes")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == (
        "lab: 2 n1-standard-16 with 1 NVIDIA_TESLA_T4 each → 4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each"
    )
    assert lines[1] == "prices: https://cloud.google.com/vertex-ai/pricing"
    assert lines[-1] == "lab has 4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each now"
    assert replicas(vertex) == [1, 4]
    code, out, _ = run("scale", "--address", "lab", "--workers", "1", "--price-per-hour", "0.9", "--yes")
    assert code == 0 and "cost: $3.60 an hour → $0.90 an hour, by the price that you gave" in out
    assert replicas(vertex) == [1, 1]


def test_scaling_one_of_several_pools(run: Run, vertex: VertexServer) -> None:
    two = cluster()
    two.resource_pools.append(
        {"id": "worker-pool2", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-32"}}
    )
    vertex.put(two, "two", "localhost:1")
    code, _, err = run("scale", "--address", "two", "--workers", "3", "--yes")
    assert code == 2 and "--pool: missing; the cluster has several (1: 2 n1-standard-16" in err
    assert run("scale", "--address", "two", "--workers", "3", "--pool", "2", "--yes")[0] == 0
    assert replicas(vertex, "two") == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "3"], "Nobody can be asked here; nothing was done; add --yes"),
        (["--workers", "0", "--yes"], "--workers 0: a pool keeps at least 1 machine"),
        (["--workers", "3", "--pool", "2", "--yes"], "--pool 2: there is none; the cluster has 1: 2 n1"),
        (["--workers", "3", "--price-per-hour", "-1", "--yes"], "--price-per-hour -1: must be dollars"),
    ],
)
def test_refused_scaling(run: Run, vertex: VertexServer, words: list[str], message: str) -> None:
    code, _, err = run("scale", "--address", "vertex_ray://lab", *words)
    assert code == 2 and err.count("\n") == 1
    assert message in err
    assert replicas(vertex) == [1, 2] and "update" not in vertex.requests


def test_a_pool_that_scales_itself_is_left_alone(run: Run, vertex: VertexServer) -> None:
    auto = cluster()
    auto.resource_pools[1].autoscaling_spec = {"min_replica_count": 1, "max_replica_count": 6}
    vertex.put(auto, "auto", "localhost:1")
    assert (
        "the pool scales itself (1 to 6 n1-standard-16"
        in run("scale", "--address", "auto", "--workers", "3")[2]
    )
    assert "1 to 6" in run("--address", "vertex_ray://auto")[1]
    pool = json.loads(run("--json", "--address", "vertex_ray://auto")[1])["pools"][1]
    assert (pool["replicas"], pool["most"]) == (1, 6)


@pytest.mark.parametrize(("answer", "expected"), [("y\n", [1, 3]), ("\n", [1, 2])])
def test_the_question_on_a_terminal(
    run: Run, vertex: VertexServer, monkeypatch: pytest.MonkeyPatch, answer: str, expected: list[int]
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, answer.encode())
        code, out, _ = run("scale", "--address", "lab", "--workers", "3")
    os.close(ours)
    assert code == 0
    pool = "n1-standard-16 with 1 NVIDIA_TESLA_T4 each"
    assert f"Scale lab (2 {pool} → 3 {pool})? [y/N]" in out
    assert replicas(vertex) == expected


def test_creating_and_deleting(run: Run, vertex: VertexServer) -> None:
    code, out, err = run("create", str(ROOT / "docs" / "vertex_cluster.yaml"), "--yes")
    assert code == 0, err
    assert "  head     1 n1-standard-8, 100 GB disk each\n" in out
    assert "  workers  4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each, 200 GB disk each\n" in out
    assert "prices: https://cloud.google.com/vertex-ai/pricing\n" in out
    created = vertex.resources["whisper-search"]
    head, workers = created.resource_pools
    assert (head.machine_spec.machine_type, workers.machine_spec.machine_type) == (
        "n1-standard-8",
        "n1-standard-16",
    )
    assert (workers.replica_count, workers.disk_spec.boot_disk_size_gb) == (4, 200)
    assert dict(created.labels) == {"team": "speech"}
    images = created.resource_runtime_spec.ray_spec.resource_pool_images
    assert images["head-node"] == OURS and "ray-gpu.2-47.py311" in images["worker-pool1"]
    assert "connect cloudresourcemanager.googleapis.com" in vertex.requests
    code, _, err = run("create", str(ROOT / "docs" / "vertex_cluster.yaml"), "--yes")
    assert code == 2 and "there is a cluster of this name already" in err

    code, _, err = run("delete", "whisper-search")
    assert code == 2 and "Delete whisper-search (1 n1-standard-8 and 4 n1-standard-16 with" in err
    assert "Nobody can be asked here" in err and "whisper-search" in vertex.resources
    code, out, _ = run("delete", "whisper-search", "--yes")
    assert code == 0 and "what it costs ends" in out
    assert list(vertex.resources) == ["lab"]


def test_creating_needs_versions_that_vertex_runs(run: Run, vertex: VertexServer, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "name: x\nray_version: '2.60'\nhead: {machine_type: n1-standard-8}\nworkers: {machine_type: n1-standard-8}\n"
    )
    code, _, err = run("create", str(file), "--yes")
    assert code == 2
    assert (
        "ray_version=2.60 with python_version=3.11: Vertex AI does not run them; it runs 2.9 with 3.10" in err
    )
    assert "create" not in vertex.requests


def problems_of(file: Path) -> list[str]:
    with pytest.raises(VertexError) as caught:
        read_cluster_file(file)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: Whisper\n"
        "locaton: us-central1\n"
        "head: {machine_type: n1-standard-8, accelerator_type: nvidia-tesla-t4}\n"
        "workers:\n"
        "  - {machine_type: n1-standard-16, boot_disk_size_gb: large, disk_gb: 200}\n"
        "  - {machine_type: g2-standard-24, autoscaling_spec: {min: 4, max_replica_count: 0}}\n"
        "  - {machine_type: n1-standard-16, node_count: 0}\n"
        "service_account: nobody\n"
        "labels: a\n"
    )
    assert problems_of(file) == [
        "1: name=Whisper: must be lower-case letters, digits, - and _, at most 63, a letter first",
        "2: locaton: unknown setting; did you mean location?",
        "3: head: accelerator_type=nvidia-tesla-t4: did you mean NVIDIA_TESLA_T4?",
        "5: workers: pool 1: boot_disk_size_gb=large: must be a whole number from 100 to 64000",
        "5: workers: pool 1: disk_gb: unknown setting; is boot_disk_size_gb now, as in Google's SDK",
        "6: workers: pool 2: autoscaling_spec: max_replica_count=0: must be a whole number from 1 to 1000",
        "6: workers: pool 2: autoscaling_spec: min: unknown setting; is min_replica_count now, as in Google's SDK",
        "7: workers: pool 3: node_count=0: must be a whole number from 1 to 1000",
        "8: service_account=nobody: must be an e-mail address",
        "9: labels=a: must be a mapping, as {team: speech}",
    ]


def test_pools_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: x\n"
        "head: {machine_type: n1-standard-8, node_count: 2}\n"
        "workers:\n"
        "  - {machine_type: g2-standard-24, node_count: 2, autoscaling_spec: {max_replica_count: 3}}\n"
        "  - {node_count: 2, accelerator_count: 1}\n"
        "  - {machine_type: g2-standard-48, autoscaling_spec: {min_replica_count: 4, max_replica_count: 2}}\n"
        "  - {machine_type: n1-standard-8, boot_disk_size_gb: 300}\n"
        "  - {machine_type: g2-standard-24}\n"
    )
    assert problems_of(file) == [
        "2: head: there is one head; node_count and autoscaling_spec belong to workers",
        "4: workers: g2-standard-24: node_count: goes without autoscaling_spec, which sets it; remove one",
        "5: workers: n1-standard-16: accelerator_count: needs accelerator_type",
        "5: workers: n1-standard-16: machine_type: is missing",
        "6: workers: g2-standard-48: autoscaling_spec: min_replica_count is above max_replica_count; swap them",
        "7: workers: n1-standard-8: the head's machine, so boot disk and custom_image must be the head's",
        "8: workers: g2-standard-24: two pools of the same machines; make them one",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty; docs/vertex_cluster.yaml is a whole one"),
        ("- a\n", "1: must be a mapping with some of name, head, workers, project"),
        ("name: x\nhead: {machine_type: n1-standard-8}\n", "1: workers: is missing"),
    ],
)
def test_mistakes_of_a_whole_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert problems_of(file)[0].startswith(message)
