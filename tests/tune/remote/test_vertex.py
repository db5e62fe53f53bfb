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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray_cluster import RayCluster
from vertex_server import NUMBER, PROJECT, TOKEN, VertexServer

from tune.cli import main
from tune.remote.jobs import follow_logs
from tune.remote.vertex import job_client

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("ray") != "2.47.1" or sys.version_info[:2] != (3, 11),
    reason="Ray 2.47.1 on Python 3.11 is what Vertex AI and Google's SDK take",
)
ROOT = Path(__file__).resolve().parents[3]
FILE = str(ROOT / "docs" / "vertex_cluster.yaml")
T4 = "n1-standard-16 with 1 NVIDIA_TESLA_T4 each"
OURS = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest"
OLD = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-42.py310:latest"
PRICES = "prices: https://cloud.google.com/vertex-ai/pricing"
Run = Callable[..., tuple[int, str, str]]


def cluster(image: str = OURS, state: Any = None) -> Any:
    """A head and 2 workers with a T4 each."""
    from google.cloud.aiplatform_v1beta1.types import persistent_resource as types

    gpus = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    worker = {"machine_type": "n1-standard-16", **gpus}
    images = {"head-node": image, "worker-pool1": image}
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
    server.resources.clear()
    server.requests.clear()
    server.error = None
    server.put(cluster(), "lab", "localhost:1")
    return server


@pytest.fixture
def run(vertex: VertexServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """`tune-whisper cluster ...` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["cluster", *words])
        return code, *capsys.readouterr()

    return call


def refused(run: Run, *words: str) -> str:
    code, _, err = run(*words)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    return err


def machines(vertex: VertexServer, name: str = "lab") -> list[int]:
    return [pool.replica_count for pool in vertex.resources[name].resource_pools]


def test_showing_a_cluster(run: Run, vertex: VertexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")  # it is that of the credentials
    code, out, _ = run("--address", "vertex_ray://lab")
    assert code == 0
    assert vertex.requests[:2] == ["connect us-central1-aiplatform.googleapis.com", "get"], "Google's default"
    assert f"cluster   lab in {PROJECT}, us-central1: RUNNING\nversions  Ray 2.47, Python 3.11\n" in out
    assert "dashboard https://localhost:1\n" in out
    assert f"  workers  2 {T4}, 0 GB disk each\n{PRICES}\n" in out
    assert "nodes: not known: " in out  # nobody listens at that dashboard
    assert "[Ray on Vertex AI]" not in out
    full = f"vertex_ray://projects/{PROJECT}/locations/us-central1/persistentResources/lab"
    shown = json.loads(run("--json", "--address", full)[1])
    assert (shown["state"], shown["ray_version"], shown["ray"]) == ("RUNNING", "2.47", None)
    (workers,) = shown["worker_node_types"]
    assert (workers["machine_type"], workers["accelerator_type"], workers["node_count"]) == (
        *("n1-standard-16", "NVIDIA_TESLA_T4"),
        2,
    )


def test_scaling_one_of_several_pools(run: Run, vertex: VertexServer) -> None:
    two = cluster()
    other = {"id": "worker-pool2", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-32"}}
    two.resource_pools.append(other)
    vertex.put(two, "two", "localhost:1")
    err = refused(run, "scale", "--address", "two", "--workers", "3", "--yes")
    assert f"give one of the cluster's worker pools by --pool: 1: 2 {T4}; 2: 1 n1-standard-32" in err
    assert run("scale", "--address", "two", "--workers", "3", "--pool", "2", "--yes")[0] == 0
    assert machines(vertex, "two") == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lab --workers 3", "Nobody can be asked here; nothing was done; add --yes"),
        ("lab --workers 0 --yes", "--workers 0: a pool keeps at least 1 machine"),
        (
            "lab --workers 3 --pool 2 --yes",
            "--workers 3: give one of the cluster's worker pools by --pool: 1: 2 n1",
        ),
        ("auto --workers 3 --yes", "--workers 3: the pool scales itself (1: 1 to 6 n1-standard-16"),
        ("young --workers 3 --yes", "--workers 3: the cluster is PROVISIONING; only a RUNNING one"),
    ],
)
def test_refused_scaling(run: Run, vertex: VertexServer, words: str, message: str) -> None:
    auto = cluster()
    auto.resource_pools[1].autoscaling_spec = {"min_replica_count": 1, "max_replica_count": 6}
    vertex.put(auto, "auto", "localhost:1")
    vertex.put(cluster(state="PROVISIONING"), "young")
    assert message in refused(run, "scale", "--address", *words.split())
    assert "update" not in vertex.requests


@pytest.mark.parametrize(("answer", "expected"), [("y\n", [1, 3]), ("\n", [1, 2])])
def test_scaling_asks_says_what_changes_and_waits(
    run: Run, vertex: VertexServer, monkeypatch: pytest.MonkeyPatch, answer: str, expected: list[int]
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, answer.encode())
        code, out, _ = run("scale", "--address", "lab", "--workers", "3")
    os.close(ours)
    assert code == 0
    assert f"{PRICES}\nScale lab (2 {T4} → 3 {T4})? [y/N]\n" in out
    assert out.splitlines()[-1] == (f"lab has 3 {T4} now" if expected == [1, 3] else "nothing was done")
    assert machines(vertex) == expected


def test_creating_and_deleting(run: Run, vertex: VertexServer) -> None:
    code, out, err = run("create", FILE, "--yes")
    assert code == 0, err
    assert (
        f"  head     1 n1-standard-8, 100 GB disk each\n  workers  4 {T4}, 200 GB disk each\n{PRICES}\n"
        in out
    )
    created = vertex.resources["whisper-search"]
    head, workers = created.resource_pools
    types = [pool.machine_spec.machine_type for pool in (head, workers)]
    assert types == ["n1-standard-8", "n1-standard-16"]
    assert (workers.replica_count, workers.disk_spec.boot_disk_size_gb) == (4, 200)
    assert dict(created.labels) == {"team": "speech"}
    images = created.resource_runtime_spec.ray_spec.resource_pool_images
    assert images["head-node"] == OURS and "ray-gpu.2-47.py311" in images["worker-pool1"]
    assert "vertex_ray://whisper-search in speech-lab, us-central1: exists" in refused(
        run, "create", FILE, "--yes"
    )

    err = refused(run, "delete", "whisper-search")
    assert "Delete whisper-search? Nobody can be asked here" in err and "whisper-search" in vertex.resources
    code, out, _ = run("delete", "whisper-search", "--yes")
    assert code == 0 and "what it costs ends" in out
    assert list(vertex.resources) == ["lab"]


HEAD = "name: x\nhead: {machine_type: n1-standard-8}\nworkers:\n"
L4 = "  - {machine_type: g2-standard-24, accelerator_type: NVIDIA_L4, accelerator_count: 1}\n"
FILES = {
    "": "must be a mapping with some of name, project, location, ray_version",
    "- a\n": "must be a mapping with some of name",
    "name: [\n": "cannot be read (",
    "name: x\nhead: {machine_type: n1-standard-8}\n": "workers: is missing",
    "locaton: us-central1\n": "locaton: unknown setting; did you mean location?",
    f"{HEAD}  - autoscaling_spec: {{min: 4}}\n": "workers: autoscaling_spec: min: unknown setting; known are min_",
    f"{HEAD}  - accelerator_type: nvidia-l4\n": "workers: accelerator_type=nvidia-l4: did you mean NVIDIA_L4?",
    HEAD + L4 + "ray_version: 2.47\n": "ray_version=2.47: must be a text in quotes",
    HEAD + L4 + "labels: a\n": "labels=a: must be a mapping, as {team: speech}",
    HEAD + L4 + L4: "workers: g2-standard-24: two pools of the same machines; make them one",
    HEAD
    + "  - {machine_type: n1-standard-8, boot_disk_size_gb: 300}\n": "the head's machine, so boot disk and custom",
}


@pytest.mark.parametrize("text", FILES)
def test_mistakes_in_a_file(run: Run, vertex: VertexServer, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    err = refused(run, "create", str(file), "--yes")
    assert err.startswith(f"error: {file}: ") and FILES[text] in err
    assert "create" not in vertex.requests


def test_clusters_that_take_no_jobs(vertex: VertexServer, capsys: pytest.CaptureFixture[str]) -> None:
    vertex.put(cluster(OLD), "old", "localhost:1")
    vertex.put(cluster(state="PROVISIONING"), "young")
    vertex.put(cluster(state="ERROR"), "broken")
    vertex.put(cluster(), "lab", vertex.dashboard_front(1, token="another"))
    for name, message in {
        "nosuch": "no such cluster; check the name, --project and --location",
        "old": "the cluster runs Ray 2.42 and Python 3.10, here is Ray 2.47.1 and Python 3.11",
        "young": "the cluster is PROVISIONING, not RUNNING",
        "broken": "the cluster is ERROR, not RUNNING",
        "lab": "does not let us in",
        "Not/A/Name": "must be vertex_ray://NAME",
        "projects/7/locations/us-central1/persistentResources/x": "x in 7, us-central1: no such cluster",
        "projects/p/locations/mars-1/persistentResources/lab": "lab in p, mars-1: Unsupported region",
    }.items():
        assert main(["list", "--address", f"vertex_ray://{name}"]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "'x.get' denied", "permission denied; the account needs"),
        (grpc.StatusCode.UNAUTHENTICATED, "bad", "credentials were not accepted; run gcloud auth"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded", "Quota exceeded"),
    ],
)
def test_errors_of_the_service(
    run: Run, vertex: VertexServer, code: grpc.StatusCode, text: str, message: str
) -> None:
    vertex.error = (code, text)
    assert message in refused(run, "--address", "vertex_ray://lab")


def test_unusable_credentials_are_not_shown(
    vertex: VertexServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key.json").write_text('{"type": "service_account", "private_key": "planted-secret"}')
    for path in (tmp_path / "key.json", tmp_path / "none.json"):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        assert main(["list", "--address", "vertex_ray://lab"]) == 2
        err = capsys.readouterr().err
        assert "GOOGLE_APPLICATION_CREDENTIALS=" in err and "planted-secret" not in err
    assert vertex.requests == []
    key = json.loads(vertex.credentials.read_text()) | {"token_uri": "http://127.0.0.1:9/token"}
    (tmp_path / "none.json").write_text(json.dumps(key))
    assert main(["list", "--address", "vertex_ray://lab"]) == 2
    assert "credentials cannot be used for a token; run gcloud auth" in capsys.readouterr().err


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
    done = subprocess.run(
        [sys.executable, "-m", "tune", "cluster", "--address", "vertex_ray://lab", "--project", "p"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: --address vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_jobs_through_vertex_ray_reach_a_real_head(
    run: Run, vertex: VertexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "note.txt").write_text("heard through Vertex\n")
    head = RayCluster()
    try:
        vertex.put(cluster(), "lab", vertex.dashboard_front(head.dashboard_port))
        client = job_client("vertex_ray://lab")
        job = client.submit_job(
            entrypoint="cat note.txt",
            submission_id="through-vertex",
            runtime_env={"working_dir": str(tmp_path)},
        )
        deadline = time.monotonic() + 300
        while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline:
            time.sleep(0.3)
        parts: list[str] = []
        ended = follow_logs(job_client("vertex_ray://lab"), job, parts.append)
        assert (ended.submission_id, ended.status) == (job, "SUCCEEDED")
        assert "".join(parts).rstrip().endswith("heard through Vertex")
        assert [entry.submission_id for entry in job_client("vertex_ray://lab").list_jobs()] == [job]

        _, out, _ = run("--address", "vertex_ray://lab")
        assert "total: 1 node, 0 CPUs, 0 GPUs" in out and "there, the same here" in out
        assert (
            json.loads(run("--json", "--address", "vertex_ray://lab")[1])["ray"]["nodes"][0]["head"] is True
        )
        assert TOKEN not in out and NUMBER not in out

        front = "https://" + vertex.dashboard_front(head.dashboard_port)  # as any proxy that wants a header
        assert "does not let us in" in refused(run, "--address", front)
        monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"Authorization": f"Bearer {TOKEN}"}))
        code, out, _ = run("--address", front)
        assert code == 0 and "total: 1 node" in out and TOKEN not in out
    finally:
        head.close()
