"""Ray on Vertex AI through Google's real SDK, against a stand-in for its service on this machine (vertex_server.py).

The SDK keeps its default transport and endpoints; only a proxy, a trusted certificate and a service account, all set by
the usual variables, lead it to the stand-in. Jobs go to a real Ray head.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from ray_cluster import RayCluster
from vertex_lab import OLD, VERSIONS_OF_VERTEX, Run, cluster, cluster_command, vertex_server, with_lab
from vertex_server import NUMBER, PROJECT, TOKEN, VertexServer

from tune.remote.jobs import follow_logs
from tune.remote.vertex import VertexError, cluster_name, job_client, prepare_address
from tune.util.errors import UserError

pytestmark = VERSIONS_OF_VERTEX


@pytest.fixture
def vertex(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> VertexServer:
    return with_lab(vertex_server(pytestconfig), monkeypatch)


@pytest.fixture
def run(vertex: VertexServer, capsys: pytest.CaptureFixture[str]) -> Run:
    return cluster_command(capsys)


def test_the_address_is_prepared_by_the_real_sdk_over_its_default_endpoint(vertex: VertexServer) -> None:
    full = f"vertex_ray://projects/{PROJECT}/locations/us-central1/persistentResources/lab"
    assert prepare_address("vertex_ray://lab") == full
    assert prepare_address(full) == full
    assert vertex.requests[:2] == ["connect us-central1-aiplatform.googleapis.com", "get"]


def test_another_endpoint(vertex: VertexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud.aiplatform import initializer

    monkeypatch.delenv("grpc_proxy")
    monkeypatch.setenv("TUNE_WHISPER_VERTEX_ENDPOINT", f"localhost:{vertex.grpc_port}")
    try:
        prepare_address("vertex_ray://lab")
    finally:
        initializer.global_config._api_endpoint = None  # init() never takes it back
    assert vertex.requests == ["get"]


@pytest.mark.parametrize(
    ("address", "project", "expected"),
    [
        ("vertex_ray://lab", "p", ("p", "us-central1", "lab")),
        ("lab", None, (PROJECT, "us-central1", "lab")),
        (
            "vertex_ray://projects/7/locations/europe-west4/persistentResources/x",
            "p",
            ("7", "europe-west4", "x"),
        ),
    ],
)
def test_cluster_names(
    vertex: VertexServer, address: str, project: str | None, expected: tuple[str, ...]
) -> None:
    name = cluster_name(address, project)
    assert (name.project, name.location, name.name) == expected


def test_the_project_comes_from_the_credentials(
    vertex: VertexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    assert cluster_name("lab").project == PROJECT


def test_what_cannot_be_used_is_refused_in_one_line(vertex: VertexServer) -> None:
    vertex.put(cluster(OLD), "old", "localhost:1")
    vertex.put(cluster(state="PROVISIONING"), "young")
    vertex.put(cluster(state="ERROR"), "broken")
    expected = {
        "nosuch": "no such cluster; check the name, --project and --location",
        "old": "the cluster runs Ray 2.42 and Python 3.10, here are Ray 2.47 and Python 3.11",
        "young": "the cluster is PROVISIONING, not RUNNING",
        "broken": "the cluster is ERROR, not RUNNING",
        "Not/A/Name": "must be vertex_ray://NAME",
        "projects/p/locations/mars-1/persistentResources/lab": "--location mars-1: ",
    }
    for name, message in expected.items():
        with pytest.raises(VertexError) as caught:
            prepare_address(f"vertex_ray://{name}")
        assert message in str(caught.value) and "\n" not in str(caught.value)


DISABLED = (
    "Vertex AI API has not been used in project speech-lab before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/aiplatform.googleapis.com/overview?project=speech-lab"
)


@pytest.mark.parametrize(
    ("code", "text", "message"),
    [
        (
            grpc.StatusCode.PERMISSION_DENIED,
            "Permission 'x.get' denied",
            "permission denied; the account needs",
        ),
        (
            grpc.StatusCode.PERMISSION_DENIED,
            DISABLED,
            f"gcloud services enable aiplatform.googleapis.com --project {PROJECT}",
        ),
        (grpc.StatusCode.UNAUTHENTICATED, "bad", "credentials were not accepted; run gcloud auth"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded", "quota does not allow it"),
        (grpc.StatusCode.UNAVAILABLE, "down", "Vertex AI cannot be reached: "),
        (grpc.StatusCode.INTERNAL, "oops", "oops"),
    ],
)
def test_errors_of_the_service(vertex: VertexServer, code: grpc.StatusCode, text: str, message: str) -> None:
    vertex.error = (code, text)
    with pytest.raises(VertexError) as caught:
        prepare_address("vertex_ray://lab")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unusable_credentials_are_not_shown(
    vertex: VertexServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key.json").write_text('{"type": "service_account", "private_key": "planted-secret"}')
    for path in (tmp_path / "key.json", tmp_path / "none.json"):
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        with pytest.raises(VertexError) as caught:
            prepare_address("vertex_ray://lab")
        assert "GOOGLE_APPLICATION_CREDENTIALS=" in str(caught.value)
        assert "planted-secret" not in str(caught.value)
    assert vertex.requests == []


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
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: --address vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'\n"
    )


@pytest.mark.slow
def test_jobs_through_vertex_ray_reach_a_real_head(
    run: Run, vertex: VertexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    (tmp_path / "note.txt").write_text("heard through Vertex\n")
    head = RayCluster()
    try:
        vertex.put(cluster(), "lab", vertex.dashboard_front(head.dashboard_port))
        client = JobSubmissionClient(prepare_address("vertex_ray://lab"))
        job = client.submit_job(
            entrypoint="cat note.txt",
            submission_id="through-vertex",
            runtime_env={"working_dir": str(tmp_path)},
        )
        deadline = time.monotonic() + 300
        while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline:
            time.sleep(0.3)
        assert client.get_job_status(job) == JobStatus.SUCCEEDED
        assert "heard through Vertex" in client.get_job_logs(job)
        assert [entry.submission_id for entry in job_client("vertex_ray://lab").list_jobs()] == [job]
        parts: list[str] = []
        assert follow_logs(job_client("vertex_ray://lab"), job, parts.append).submission_id == job
        assert "".join(parts).rstrip().endswith("heard through Vertex")

        _, out, _ = run("--address", "vertex_ray://lab")
        assert "total: 1 node, 0 CPUs (0 free)" in out and "there, the same here" in out
        assert json.loads(run("--json", "--address", "vertex_ray://lab")[1])["ray"]["versions_match"] is True
        assert TOKEN not in out and NUMBER not in out

        front = "https://" + vertex.dashboard_front(head.dashboard_port)  # as any proxy that wants a header
        code, _, err = run("--address", front)
        assert code == 2 and "does not let us in" in err and err.count("\n") == 1
        monkeypatch.setenv("RAY_JOB_HEADERS", json.dumps({"Authorization": f"Bearer {TOKEN}"}))
        code, out, _ = run("--address", front)
        assert code == 0 and "total: 1 node" in out and TOKEN not in out
    finally:
        head.close()


def test_a_token_that_cannot_be_had_is_one_line(
    vertex: VertexServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = json.loads(vertex.credentials.read_text()) | {"token_uri": "http://127.0.0.1:9/token"}
    path = vertex.folder / "no_token.json"
    path.write_text(json.dumps(key))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(VertexError) as caught:
        job_client("vertex_ray://lab")
    assert "credentials cannot be used for a token; run gcloud auth" in str(caught.value)


def test_a_dashboard_that_refuses_the_token_is_one_line(vertex: VertexServer) -> None:
    vertex.put(cluster(), "lab", vertex.dashboard_front(1, token="another"))
    with pytest.raises(UserError) as caught:
        job_client("vertex_ray://lab")
    assert "does not let us in" in str(caught.value) and "\n" not in str(caught.value)
