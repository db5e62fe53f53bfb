"""One real Ray head for the tests of jobs, of what a cluster has, and of the way through Vertex AI."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster


@pytest.fixture(scope="session")
def head() -> Iterator[RayCluster]:
    """With two CPUs, and `python` where a job finds it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Newer Rays ask for a token by default.
    cluster = RayCluster({"PATH": path, "RAY_AUTH_MODE": "disabled"}, cpus=2)
    try:
        yield cluster
    finally:
        cluster.close()
