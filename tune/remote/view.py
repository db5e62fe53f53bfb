"""What a Ray cluster has: its nodes with their CPUs and GPUs, and whether its versions are ours."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tune.remote.client import JobError, cluster_versions, get_json, version_difference
from tune.util.console import say
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


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
        JobError: the dashboard does not answer, or tells nothing of nodes.
    """
    found = get_json(
        client, "/api/v0/nodes?detail=1&limit=10000"
    )  # without a limit 100, dead ones among them
    if found is None:
        raise JobError(
            f"--address {hide_password(address)}: the dashboard tells nothing of the cluster's nodes"
        )
    nodes = [
        Node.of(each["node_id"], each["node_ip"], each["resources_total"])
        for each in found["data"]["result"]["result"]
        if each["state"] == "ALIVE"
    ]
    return ClusterView(hide_password(address), *cluster_versions(client), nodes)


def print_cluster(view: ClusterView, console: Console) -> None:
    """The nodes as a table, the totals, the versions."""
    table = Table("node", "role", "CPUs", "GPUs", "GPU type", "memory", box=None, pad_edge=False)
    for node in sorted(view.nodes, key=lambda node: (not node.head, node.ip)):
        role, memory = "head" if node.head else "worker", f"{node.memory / 2**30:.1f} GiB"
        table.add_row(node.ip, role, f"{node.cpus:g}", f"{node.gpus:g}", node.gpu_type or "", memory)
    console.print(table)
    cpus, gpus = sum(node.cpus for node in view.nodes), sum(node.gpus for node in view.nodes)
    count = len(view.nodes)
    say(console, f"total: {count} node{'s' * (count != 1)}, {cpus:g} CPUs, {gpus:g} GPUs")
    if difference := version_difference(view.ray_version, view.python_version):
        say(console, f"{difference}: searches will not run; use an environment with the cluster's versions")
    else:
        python = f" and Python {view.python_version}" if view.python_version else ""
        say(console, f"Ray {view.ray_version}{python} there, the same here")
