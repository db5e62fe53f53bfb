"""What a Ray cluster has: its nodes with their CPUs and GPUs, and whether its versions are ours."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tune.remote.client import cluster_versions, get_json, version_difference
from tune.util.console import say

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient


@dataclasses.dataclass(frozen=True)
class Node:
    """A node that is up; memory in bytes."""

    ip: str
    head: bool
    cpus: float
    gpus: float
    gpu_type: str | None
    memory: float


@dataclasses.dataclass(frozen=True)
class ClusterView:
    """A cluster as it is now; the head is the first of its nodes."""

    ray_version: str
    python_version: str
    nodes: list[Node]


def read_cluster(client: JobSubmissionClient) -> ClusterView:
    """The cluster that a client is connected to; raises `JobError` where its dashboard does not answer."""
    # Without a limit the dashboard tells of 100 nodes, dead ones among them.
    rows = get_json(client, "/api/v0/nodes?detail=1&limit=10000")["data"]["result"]["result"]
    nodes = []
    for each in rows:
        if each["state"] == "ALIVE":
            has = each["resources_total"]
            types = sorted(name.partition(":")[2] for name in has if name.startswith("accelerator_type:"))
            counts = (has.get("CPU", 0.0), has.get("GPU", 0.0), ", ".join(types) or None)
            head = "node:__internal_head__" in has
            nodes.append(Node(each["node_ip"], head, *counts, has.get("memory", 0.0)))
    nodes.sort(key=lambda node: (not node.head, node.ip))
    return ClusterView(*cluster_versions(client), nodes)


def print_cluster(view: ClusterView, console: Console) -> None:
    table = Table("node", "role", "CPUs", "GPUs", "GPU type", "memory", box=None, pad_edge=False)
    for node in view.nodes:
        role, memory = "head" if node.head else "worker", f"{node.memory / 2**30:.1f} GiB"
        table.add_row(node.ip, role, f"{node.cpus:g}", f"{node.gpus:g}", node.gpu_type or "", memory)
    console.print(table)
    cpus, gpus = sum(node.cpus for node in view.nodes), sum(node.gpus for node in view.nodes)
    count = len(view.nodes)
    say(console, f"total: {count} node{'s' * (count != 1)}, {cpus:g} CPUs, {gpus:g} GPUs")
    if difference := version_difference(view.ray_version, view.python_version):
        say(console, f"{difference}: searches will not run; use an environment with the cluster's versions")
    else:
        say(console, f"Ray {view.ray_version} and Python {view.python_version} there, the same here")
