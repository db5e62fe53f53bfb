"""What the tests of Ray on Vertex AI share: the stand-in for Google's service with a cluster `lab`, and the command."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vertex_server import VertexServer

from tune.cli import main

VERSIONS_OF_VERTEX = pytest.mark.skipif(
    importlib.metadata.version("ray") != "2.47.1" or sys.version_info[:2] != (3, 11),
    reason="Ray 2.47.1 on Python 3.11 is what Vertex AI and Google's SDK take",
)
OURS = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest"
OLD = "us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-42.py310:latest"

Run = Callable[..., tuple[int, str, str]]


@functools.cache
def vertex_server(config: pytest.Config) -> VertexServer:
    """The stand-in, one for all files of a run: gRPC reads only once in a process which certificates it trusts."""
    folder = tempfile.TemporaryDirectory(dir="/tmp")
    config.add_cleanup(folder.cleanup)
    server = VertexServer(Path(folder.name))
    config.add_cleanup(server.close)  # what was added last is called first
    return server


def with_lab(server: VertexServer, monkeypatch: pytest.MonkeyPatch) -> VertexServer:
    """The stand-in with one running cluster `lab`: an n1-standard-8 head and 2 workers with a T4 each."""
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


def cluster(image: str = OURS, *, workers: int = 2, state: str = "RUNNING", **worker: Any) -> Any:
    from google.cloud.aiplatform_v1beta1.types import persistent_resource as types

    machine = {
        "machine_type": "n1-standard-16",
        "accelerator_type": "NVIDIA_TESLA_T4",
        "accelerator_count": 1,
    }
    machine.update(worker)
    return types.PersistentResource(
        state=state,
        resource_pools=[
            {"id": "head-node", "replica_count": 1, "machine_spec": {"machine_type": "n1-standard-8"}},
            {"id": "worker-pool1", "replica_count": workers, "machine_spec": machine},
        ],
        resource_runtime_spec={
            "ray_spec": {"resource_pool_images": {"head-node": image, "worker-pool1": image}}
        },
    )


def cluster_command(capsys: pytest.CaptureFixture[str]) -> Run:
    """What runs `tune-whisper cluster ...` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main(["cluster", *words])
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return call
