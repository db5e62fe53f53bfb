"""What a Ray cluster has: its nodes with their CPUs and GPUs, and whether its versions are ours."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tune.remote.client import cluster_errors, cluster_versions, minor, version_difference
from tune.util.console import say
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_MOST_NODES = 10_000
"""Ray's answer is cut there; dead nodes count."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is up; memory in bytes."""

    node_id: str
    ip: str
    head: bool
    cpus: float
    gpus: float
    gpu_type: str | None
    memory: float

    @classmethod
    def of(cls, node_id: str, ip: str, resources: Mapping[str, float]) -> Node:
        """One with these resources, as Ray names and counts them."""
        types = sorted(name.partition(":")[2] for name in resources if name.startswith("accelerator_type:"))
        head = "node:__internal_head__" in resources
        counts = (resources.get("CPU", 0.0), resources.get("GPU", 0.0))
        return cls(node_id, ip, head, *counts, ", ".join(types) or None, resources.get("memory", 0.0))


@dataclasses.dataclass(frozen=True)
class ClusterView:
    """A cluster as it is now."""

    address: str
    """Without a password."""
    ray_version: str
    python_version: str | None
    nodes: list[Node]


def read_joined(address: str) -> ClusterView:
    """The cluster that this process has joined, at what the user calls its address."""
    import ray

    nodes = [
        Node.of(each["NodeID"], each["NodeManagerAddress"], each["Resources"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    return ClusterView(hide_password(address), ray.__version__, platform.python_version(), nodes)


def read_dashboard(client: JobSubmissionClient, address: str) -> ClusterView:
    """The cluster that a client is connected to, at what the user calls its address.

    Raises:
        UserError: the dashboard does not answer as Ray's does, or does not accept our credentials.
    """
    versions = cluster_versions(client)
    with cluster_errors(address):
        # The client's own request: the only way that carries its token and headers on every version of Ray.
        answer = client._do_request("GET", f"/api/v0/nodes?detail=1&limit={_MOST_NODES}", timeout=30)
        answer.raise_for_status()
        states: list[dict[str, Any]] = answer.json()["data"]["result"]["result"]
    nodes = [
        Node.of(each["node_id"], each["node_ip"], each["resources_total"])
        for each in states
        if each["state"] == "ALIVE"
    ]
    return ClusterView(hide_password(address), *versions, nodes)


def versions_line(view: ClusterView) -> str:
    """One line: the same versions, or what differs and what to do."""
    there = f"Ray {view.ray_version}"
    if view.python_version:
        there += f" and Python {minor(view.python_version)}"
    difference = version_difference(view.ray_version, view.python_version)
    if difference is None:
        return f"{there} there, the same here"
    needed, here = difference
    return f"{there} there, but {here} here: searches will not run; use an environment with {needed}"


def print_cluster(view: ClusterView, console: Console) -> None:
    """The nodes as a table, the totals, the versions."""
    table = Table("node", "role", "CPUs", "GPUs", "GPU type", "memory", box=None, pad_edge=False)
    for node in sorted(view.nodes, key=lambda node: (not node.head, node.ip)):
        role, memory = "head" if node.head else "worker", f"{node.memory / 2**30:.1f} GiB"
        table.add_row(node.ip, role, f"{node.cpus:g}", f"{node.gpus:g}", node.gpu_type or "", memory)
    console.print(table)
    cpus, gpus = (sum(getattr(node, name) for node in view.nodes) for name in ("cpus", "gpus"))
    count = len(view.nodes)
    say(console, f"total: {count} node{'s' * (count != 1)}, {cpus:g} CPUs, {gpus:g} GPUs")
    say(console, versions_line(view))
