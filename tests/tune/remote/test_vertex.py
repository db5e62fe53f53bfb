"""Ray on Vertex AI through Google's own SDK, whose clients' calls are answered here, as its credentials are."""

import copy
import importlib.metadata
import json
import os
import pty
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dashboards import dashboard

from tune.cli import main

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("ray") != "2.47.1" or sys.version_info[:2] != (3, 11),
    reason="Ray 2.47.1 on Python 3.11 is what Vertex AI and Google's SDK take",
)
ROOT = Path(__file__).resolve().parents[3]
FILE = str(ROOT / "docs" / "vertex_cluster.yaml")
PROJECT, NUMBER, TOKEN, SECRET = "speech-lab", "123456789", "token-of-google", "planted-secret"
T4 = "n1-standard-16 with 1 NVIDIA_TESLA_T4 each"
OURS = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest"
PRICES = "prices: https://cloud.google.com/vertex-ai/pricing"
Run = Callable[..., tuple[int, str, str]]


class Vertex:
    """The service: clusters by name, and what every call ends with, while there is an error."""

    def __init__(self) -> None:
        self.clusters: dict[str, Any] = {}
        self.calls: list[str] = []
        self.error: Exception | None = None

    def put(self, name: str, *pools: dict[str, Any], state: str = "RUNNING", dashboard: str = "") -> None:
        """A cluster with a head, 2 workers with a T4 each, and more pools."""
        from google.cloud.aiplatform_v1beta1.types import persistent_resource as types

        gpus = {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
        spec = {"machine_type": "n1-standard-16", **gpus}
        head = {"id": "head-node", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-8"}}
        workers = {"id": "worker-pool1", "replica_count": 2, "machine_spec": spec}
        images = {"head-node": OURS, "worker-pool1": OURS}
        self.clusters[name] = types.PersistentResource(
            name=f"projects/{NUMBER}/locations/us-central1/persistentResources/{name}",
            state=state,
            resource_pools=[head, workers, *pools],
            resource_runtime_spec={"ray_spec": {"resource_pool_images": images}},
            resource_runtime={"access_uris": {"RAY_DASHBOARD_URI": dashboard}},
        )

    def machines(self, name: str = "lab") -> list[int]:
        return [pool.replica_count for pool in self.clusters[name].resource_pools]

    def answer(self, call: str, request: Any) -> Any:
        """What a call of the client returns."""
        from google.api_core import exceptions

        self.calls.append(call)
        if self.error:
            raise self.error
        name = getattr(request, "name", "") or request.persistent_resource.name
        name = name.rpartition("/")[2] or request.persistent_resource_id
        if call == "create":
            if name in self.clusters:
                raise exceptions.AlreadyExists("exists")
            created = request.persistent_resource
            created.name, created.state = f"{request.parent}/persistentResources/{name}", "RUNNING"
            self.clusters[name] = created
        elif name not in self.clusters:
            raise exceptions.NotFound("The PersistentResource does not exist.")
        elif call == "update":
            assert list(request.update_mask.paths) == ["resource_pools.replica_count"]
            self.clusters[name] = request.persistent_resource
        elif call == "delete":
            del self.clusters[name]
        found = copy.deepcopy(self.clusters.get(name))
        return found if call == "get" else SimpleNamespace(result=lambda: found)


@pytest.fixture
def vertex(monkeypatch: pytest.MonkeyPatch) -> Vertex:
    """The service with one running cluster `lab`."""
    for name in [*os.environ]:
        if name.startswith(("RAY_", "GOOGLE_", "CLOUDSDK_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    import google.auth
    from google.cloud import aiplatform, resourcemanager_v3
    from google.cloud.aiplatform_v1beta1 import PersistentResourceServiceClient

    class Account(google.auth.credentials.Credentials):
        def refresh(self, request: object) -> None:
            self.token = TOKEN

    def answering(call: str) -> Callable[..., Any]:
        return lambda _, request, **__: service.answer(call, request)

    service = Vertex()
    for call in ("get", "create", "update", "delete"):
        monkeypatch.setattr(PersistentResourceServiceClient, f"{call}_persistent_resource", answering(call))
    project = SimpleNamespace(name=f"projects/{NUMBER}")
    monkeypatch.setattr(resourcemanager_v3.ProjectsClient, "get_project", lambda *_, **__: project)
    monkeypatch.setattr(google.auth, "default", lambda *_, **__: (Account(), PROJECT))
    aiplatform.init(project=PROJECT, location="us-central1")  # it keeps those of the test before
    service.put("lab")
    return service


@pytest.fixture
def run(vertex: Vertex, capsys: pytest.CaptureFixture[str]) -> Run:
    """`tune-whisper ...` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words])
        return code, *capsys.readouterr()

    return call


def refused(run: Run, *words: str) -> str:
    code, _, err = run(*words)
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize("option", [["--json"], ["--address", "vertex_ray://lab"]])
def test_options_of_showing_a_cluster_are_not_for_actions(
    run: Run, vertex: Vertex, option: list[str]
) -> None:
    assert "do not take them" in refused(run, "cluster", *option, "delete", "lab", "--yes")
    assert "lab" in vertex.clusters


def test_scaling_one_of_several_pools(run: Run, vertex: Vertex) -> None:
    other = {"id": "worker-pool2", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-32"}}
    vertex.put("two", other)
    for workers in (["3"], ["0", "2"]):
        err = refused(run, "cluster", "scale", "two", "--yes", "--workers", *workers)
        assert f"a number of at least 1 for each pool; there are 2 {T4}, 1 n1-standard-32" in err
    assert run("cluster", "scale", "vertex_ray://two", "--yes", "--workers", "2", "3")[0] == 0
    assert vertex.machines("two") == [1, 2, 3]


@pytest.mark.parametrize(("answer", "expected"), [("y\n", [1, 3]), ("\n", [1, 2])])
def test_scaling_asks_says_what_changes_and_waits(
    run: Run, vertex: Vertex, monkeypatch: pytest.MonkeyPatch, answer: str, expected: list[int]
) -> None:
    words = ("cluster", "scale", "lab", "--workers", "3")
    assert "cannot ask for confirmation without a terminal; nothing was done" in refused(run, *words)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        os.write(ours, answer.encode())
        code, out, _ = run(*words)
    os.close(ours)
    assert code == 0
    assert f"{PRICES}\nScale lab (2 {T4} → 3 {T4})? [y/N]\n" in out
    assert out.splitlines()[-1] == (f"lab has 3 {T4} now" if expected == [1, 3] else "nothing was done")
    assert vertex.machines() == expected


def test_creating_and_deleting(run: Run, vertex: Vertex) -> None:
    code, out, err = run("cluster", "create", FILE, "--yes")
    assert code == 0, err
    assert f"the head 1 n1-standard-8; workers 4 {T4}; {PRICES}\n" in out
    created = vertex.clusters["whisper-search"]
    head, workers = created.resource_pools
    types = [pool.machine_spec.machine_type for pool in (head, workers)]
    assert types == ["n1-standard-8", "n1-standard-16"]
    assert (workers.replica_count, workers.disk_spec.boot_disk_size_gb) == (4, 200)
    assert dict(created.labels) == {"team": "speech"}
    images = created.resource_runtime_spec.ray_spec.resource_pool_images
    assert images["head-node"] == OURS and "ray-gpu.2-47.py311" in images["worker-pool1"]
    assert "persistentResources/whisper-search: exists" in refused(run, "cluster", "create", FILE, "--yes")
    assert "cannot ask for confirmation" in refused(run, "cluster", "delete", "whisper-search")
    assert run("cluster", "delete", "whisper-search", "--yes")[0] == 0
    assert list(vertex.clusters) == ["lab"]


WHOLE = "cluster_name: x\nhead_node_type: {}\nworker_node_types:\n"
FILES = {
    "- a\n": "cluster_name: is missing; docs/vertex_cluster.yaml is a complete example",
    "cluster_name: x\nhead_node_type: {machine_type: n1-standard-8}\n": "worker_node_types: is missing",
    f"{WHOLE}  - accelerator_type: nvidia-l4\n    accelerator_count: 1\n": "'nvidia-l4': the SDK knows no",
}


def test_mistakes_in_a_file(run: Run, vertex: Vertex, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    for text, told in FILES.items():
        file.write_text(text)
        assert told in refused(run, "cluster", "create", str(file), "--yes")
    assert "create" not in vertex.calls


def test_errors_of_the_service(run: Run, vertex: Vertex) -> None:
    from google.api_core import exceptions

    vertex.put("young", state="PROVISIONING")
    for name, told in (
        ("nosuch", "no such cluster; check the name, --project"),
        ("young", "PROVISIONING, not"),
    ):
        assert told in refused(run, "list", "--address", f"vertex_ray://{name}")
    no_token = exceptions.ServiceUnavailable(f"Getting metadata from plugin failed with error: {SECRET}")
    for vertex.error, told in (
        (exceptions.Forbidden("'x.get' denied"), "permission denied; the account needs"),
        (exceptions.Unauthorized("bad"), "credentials were not accepted; run gcloud auth"),
        (no_token, "no credentials that can be used; run gcloud auth"),
    ):
        assert (
            told in (said := refused(run, "cluster", "--address", "vertex_ray://lab")) and SECRET not in said
        )


@pytest.fixture
def proxied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, over TLS with a certificate that this process trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext"]
    words += ["subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(words, capture_output=True, check=True)
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with dashboard(TOKEN, tls=context) as port:
        yield f"localhost:{port}"


def test_the_dashboard_gets_googles_token(
    run: Run, vertex: Vertex, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vertex.put("lab", dashboard=proxied)
    code, out, err = run("list", "--all", "--address", "vertex_ray://lab")
    assert code == 0 and "no jobs" in out, err
    assert TOKEN not in out + err
    # As any proxy that wants a header.
    assert "does not let us in" in refused(run, "list", "--address", f"https://{proxied}")
    monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"Authorization": f"Bearer {TOKEN}"}))
    assert run("list", "--address", f"https://{proxied}")[0] == 0


def test_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.aiplatform", None)
    told = "error: vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
    assert refused(run, "list", "--address", "vertex_ray://lab").startswith(told)
