"""Ray on Vertex AI through Google's real SDK, against a stand-in for its service on this machine (vertex_server.py).

The SDK keeps its default transport and endpoints; only a proxy, a trusted certificate and a service account, all set by
the usual variables, lead it to the stand-in. Jobs go to a real Ray head.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from processes import tune_whisper
from ray_cluster import RayCluster
from vertex_server import NUMBER, PROJECT, TOKEN, VertexServer

from tune.cli import main

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("ray") != "2.47.1" or sys.version_info[:2] != (3, 11),
    reason="Ray 2.47.1 on Python 3.11 is what Vertex AI and Google's SDK take",
)
ROOT = Path(__file__).resolve().parents[3]
FILE = str(ROOT / "docs" / "vertex_cluster.yaml")
T4 = "n1-standard-16 with 1 NVIDIA_TESLA_T4 each"
OURS = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest"
PRICES = "prices: https://cloud.google.com/vertex-ai/pricing"
Run = Callable[..., tuple[int, str, str]]


def cluster(state: Any = None) -> Any:
    """A head and 2 workers with a T4 each."""
    from google.cloud.aiplatform_v1beta1.types import persistent_resource as types

    gpus = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    worker = {"machine_type": "n1-standard-16", **gpus}
    images = {"head-node": OURS, "worker-pool1": OURS}
    return types.PersistentResource(
        state=state,
        resource_pools=[
            {"id": "head-node", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-8"}},
            {"id": "worker-pool1", "replica_count": 2, "machine_spec": worker},
        ],
        resource_runtime_spec={"ray_spec": {"resource_pool_images": images}},
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexServer]:
    server = VertexServer(tmp_path_factory.mktemp("vertex"))
    yield server
    server.close()


@pytest.fixture
def vertex(server: VertexServer, monkeypatch: pytest.MonkeyPatch) -> VertexServer:
    """The stand-in with one running cluster `lab`."""
    for name in [*os.environ]:
        if name.startswith(("RAY_", "GOOGLE_", "CLOUDSDK_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    from google.cloud import aiplatform

    aiplatform.init(project=PROJECT, location="us-central1")  # it keeps those of the test before
    server.resources.clear()
    server.requests.clear()
    server.error = None
    server.put(cluster(), "lab", "localhost:1")
    return server


@pytest.fixture
def run(vertex: VertexServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """`tune-whisper ...` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words])
        return code, *capsys.readouterr()

    return call


def refused(run: Run, *words: str) -> str:
    code, _, err = run(*words)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    return err


def machines(vertex: VertexServer, name: str = "lab") -> list[int]:
    return [pool.replica_count for pool in vertex.resources[name].resource_pools]


def test_scaling_one_of_several_pools(run: Run, vertex: VertexServer) -> None:
    two = cluster()
    other = {"id": "worker-pool2", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-32"}}
    two.resource_pools.append(other)
    vertex.put(two, "two", "localhost:1")
    for workers in (["3"], ["0", "2"]):
        err = refused(run, "cluster", "scale", "two", "--yes", "--workers", *workers)
        assert f"a number from 1 on for each worker pool; there are 2 {T4}, 1 n1-standard-32" in err
    assert run("cluster", "scale", "vertex_ray://two", "--yes", "--workers", "2", "3")[0] == 0
    assert machines(vertex, "two") == [1, 2, 3]


@pytest.mark.parametrize(("answer", "expected"), [("y\n", [1, 3]), ("\n", [1, 2])])
def test_scaling_asks_says_what_changes_and_waits(
    run: Run, vertex: VertexServer, monkeypatch: pytest.MonkeyPatch, answer: str, expected: list[int]
) -> None:
    assert "nobody can be asked here; nothing was done" in refused(
        run, "cluster", "scale", "lab", "--workers", "3"
    )
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, answer.encode())
        code, out, _ = run("cluster", "scale", "lab", "--workers", "3")
    os.close(ours)
    assert code == 0
    assert f"{PRICES}\nScale lab (2 {T4} → 3 {T4})? [y/N]\n" in out
    assert out.splitlines()[-1] == (f"lab has 3 {T4} now" if expected == [1, 3] else "nothing was done")
    assert machines(vertex) == expected


def test_creating_and_deleting(run: Run, vertex: VertexServer) -> None:
    code, out, err = run("cluster", "create", FILE, "--yes")
    assert code == 0, err
    assert f"the head 1 n1-standard-8; workers 4 {T4}; {PRICES}\n" in out
    assert "connect us-central1-aiplatform.googleapis.com" in vertex.requests, "Google's default"
    created = vertex.resources["whisper-search"]
    head, workers = created.resource_pools
    types = [pool.machine_spec.machine_type for pool in (head, workers)]
    assert types == ["n1-standard-8", "n1-standard-16"]
    assert (workers.replica_count, workers.disk_spec.boot_disk_size_gb) == (4, 200)
    assert dict(created.labels) == {"team": "speech"}
    images = created.resource_runtime_spec.ray_spec.resource_pool_images
    assert images["head-node"] == OURS and "ray-gpu.2-47.py311" in images["worker-pool1"]
    assert "persistentResources/whisper-search: exists" in refused(run, "cluster", "create", FILE, "--yes")

    assert "nobody can be asked here" in refused(run, "cluster", "delete", "whisper-search")
    assert "whisper-search" in vertex.resources
    assert run("cluster", "delete", "whisper-search", "--yes")[0] == 0
    assert list(vertex.resources) == ["lab"]


WHOLE = "cluster_name: x\nhead_node_type: {}\nworker_node_types:\n"
FILES = {
    "- a\n": "cluster_name: is missing; docs/vertex_cluster.yaml is a whole file",
    "cluster_name: x\nhead_node_type: {machine_type: n1-standard-8}\n": "worker_node_types: is missing",
    f"{WHOLE}  - accelerator_type: nvidia-l4\n    accelerator_count: 1\n": "'nvidia-l4': the SDK knows no",
}


@pytest.mark.parametrize("text", FILES)
def test_mistakes_in_a_file(run: Run, vertex: VertexServer, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    assert FILES[text] in refused(run, "cluster", "create", str(file), "--yes")
    assert "create" not in vertex.requests


def test_clusters_that_take_no_jobs(run: Run, vertex: VertexServer) -> None:
    vertex.put(cluster(state="PROVISIONING"), "young")
    vertex.put(cluster(), "lab", vertex.dashboard_front(1, token="another"))
    for name, message in {
        "nosuch": "no such cluster; check the name, --project and --location",
        "young": "the cluster is PROVISIONING, not RUNNING",
        "lab": "does not let us in",
    }.items():
        assert message in refused(run, "list", "--address", f"vertex_ray://{name}")


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "'x.get' denied", "permission denied; the account needs"),
        (grpc.StatusCode.UNAUTHENTICATED, "bad", "credentials were not accepted; run gcloud auth"),
    ],
)
def test_errors_of_the_service(
    run: Run, vertex: VertexServer, code: grpc.StatusCode, text: str, message: str
) -> None:
    vertex.error = (code, text)
    assert message in refused(run, "cluster", "--address", "vertex_ray://lab")


def test_unusable_credentials_are_not_shown(vertex: VertexServer, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text('{"type": "service_account", "private_key": "planted-secret"}')
    key = json.loads(vertex.credentials.read_text()) | {"token_uri": "http://127.0.0.1:9/token"}
    (tmp_path / "no_token.json").write_text(json.dumps(key))
    # In a process of its own: the SDK keeps credentials that it has found.
    code = (
        "import os, sys; from tune.cli import main\n"
        "for os.environ['GOOGLE_APPLICATION_CREDENTIALS'] in sys.argv[1:]:\n"
        "    print(main(['list', '--address', 'vertex_ray://lab']))\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "key.json"), str(tmp_path / "no_token.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n2\n"
    assert (
        done.stderr.count("\n") == done.stderr.count("no credentials that can be used; run gcloud auth") == 2
    )
    assert "planted-secret" not in done.stderr


WITHOUT_GOOGLE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("google.auth", "google.cloud", "vertex_ray")):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
"""


def test_without_the_extra(vertex: VertexServer, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_GOOGLE)
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = tune_whisper("list", "--address", "vertex_ray://lab", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
    )


@pytest.mark.slow
@pytest.mark.occasional
def test_jobs_through_vertex_ray_reach_a_real_head(
    head: RayCluster, run: Run, vertex: VertexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = vertex.dashboard_front(head.dashboard_port)
    vertex.put(cluster(), "lab", front)
    address = ("--address", "vertex_ray://lab")
    code, out, err = run("submit", "--no-install", "--follow", *address, "--", "--resume", "nosuch",
                         "--storage", str(tmp_path))  # fmt: skip
    assert (code, err.splitlines()[-1].split()[:2]) == (1, ["tune-whisper-nosuch", "failed"]), err
    assert "follow  tune-whisper logs nosuch --follow --address vertex_ray://lab" in out
    assert "no experiment 'nosuch' in " in out, "said by the search, on the cluster"
    shown = [out, err, *run("list", *address)[1:], *run("cluster", *address)[1:]]
    assert "nosuch " in shown[2] and "total: 1 node, 2 CPUs, 0 GPUs" in shown[4]
    assert not [text for text in shown if TOKEN in text or NUMBER in text]

    # As any proxy that wants a header.
    assert "does not let us in" in refused(run, "cluster", "--address", f"https://{front}")
    monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"Authorization": f"Bearer {TOKEN}"}))
    assert run("cluster", "--address", f"https://{front}")[0] == 0
