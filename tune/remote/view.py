"""What a Ray cluster has: its nodes with their CPUs and GPUs, what is free, and whether its versions are ours.

Read from the dashboard's REST API with Ray's own job client, which carries Ray's token, or on a machine that is part of
the cluster from the Ray that this process has joined.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tune.remote.client import cluster_errors, cluster_versions, minor, version_difference
from tune.util.console import say
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_HIDDEN_NODES = 10_000
"""Nodes that the dashboard lists at most, dead ones included."""
_USAGE = re.compile(
    r"^\s*([\d.]+)/[\d.]+ (CPU|GPU)(?: \(([\d.]+) used of ([\d.]+) reserved in placement groups\))?$",
    re.MULTILINE,
)
"""A line of the dashboard's text, as `1.0/2.0 CPU` or `1.0/4.0 GPU (0.0 used of 2.0 reserved in placement groups)`."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One node. Memory is in bytes; what is free is None where the cluster does not tell."""

    node_id: str
    ip: str
    head: bool
    alive: bool
    cpus: float
    gpus: float
    gpu_type: str | None
    memory: float
    free_cpus: float | None = None
    free_gpus: float | None = None


@dataclasses.dataclass(frozen=True)
class ClusterView:
    """A cluster as it is now."""

    address: str
    ray_version: str
    python_version: str | None
    nodes: tuple[Node, ...]

    @property
    def alive(self) -> list[Node]:
        """The nodes that are there, the head first."""
        return sorted((node for node in self.nodes if node.alive), key=lambda node: (not node.head, node.ip))

    def total(self, name: str) -> float | None:
        """The sum of `cpus`, `gpus`, `free_cpus`, ... over the nodes that are there; None if one is unknown."""
        values = [getattr(node, name) for node in self.alive]
        return None if None in values else float(sum(values))

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        names = ("cpus", "gpus", "memory", "free_cpus", "free_gpus")
        return {
            "address": hide_password(self.address),
            "ray_version": self.ray_version,
            "python_version": self.python_version,
            "versions_match": version_difference(self.ray_version, self.python_version) is None,
            "totals": {name: self.total(name) for name in names},
            "nodes": [dataclasses.asdict(node) for node in self.nodes],
        }


def read_joined(address: str) -> ClusterView:
    """The cluster that this process has joined, at what the user calls its address."""
    import ray

    # Ray has no public call for what is free on each node; this one is in 2.47 and 2.60.
    from ray._private.state import available_resources_per_node

    available = available_resources_per_node()
    nodes = []
    for each in ray.nodes():
        resources, free = each["Resources"] or {}, available.get(each["NodeID"])
        nodes.append(
            _node(
                (each["NodeID"], each["NodeManagerAddress"]),
                resources,
                {name: resources.get(name, 0.0) - free.get(name, 0.0) for name in resources}
                if free is not None
                else None,
                head="node:__internal_head__" in resources,
                alive=bool(each["Alive"]),
            )
        )
    return ClusterView(address, ray.__version__, platform.python_version(), tuple(nodes))


def read_dashboard(client: JobSubmissionClient, address: str) -> ClusterView:
    """The cluster behind a dashboard.

    Args:
        client: connected to it.
        address: what the user calls it.

    Raises:
        UserError: the dashboard does not answer as Ray's does, or does not accept our credentials.
    """
    ray_version, python = cluster_versions(client)
    with cluster_errors(address):
        states = _get(client, f"/api/v0/nodes?detail=1&limit={_HIDDEN_NODES}")["result"]["result"]
        summary = _get(client, "/nodes?view=summary")
    usage = summary.get("nodeLogicalResources") or {}
    gpus = {(each.get("raylet") or {}).get("nodeId"): each.get("gpus") for each in summary.get("summary", [])}
    nodes = []
    for state in states:
        node_id = state["node_id"]
        names = {gpu["name"] for gpu in gpus.get(node_id) or [] if isinstance(gpu, dict) and gpu.get("name")}
        nodes.append(
            _node(
                (node_id, state["node_ip"]),
                state.get("resources_total") or {},
                _taken(usage[node_id]) if node_id in usage else None,
                head=bool(state["is_head_node"]),
                alive=state["state"] == "ALIVE",
                gpu_names=names,
            )
        )
    return ClusterView(address, ray_version, python, tuple(nodes))


def _get(client: JobSubmissionClient, path: str) -> Any:
    # The client's own request: the only way that carries its token and headers on every version of Ray.
    response = client._do_request("GET", path, timeout=30)
    response.raise_for_status()
    return response.json()["data"]


def _taken(usage: str) -> dict[str, float]:
    """What is taken of a node, from the dashboard's text; what a placement group reserves is taken too."""
    return {
        name: float(used) + (float(reserved) - float(used_in_groups) if reserved else 0.0)
        for used, name, used_in_groups, reserved in _USAGE.findall(usage)
    }


def _node(
    place: tuple[str, str],
    resources: Mapping[str, float],
    taken: Mapping[str, float] | None,
    *,
    head: bool,
    alive: bool,
    gpu_names: set[str] | None = None,
) -> Node:
    """A node from its id and address, what Ray counts there and what is taken of it."""

    def free(name: str) -> float | None:
        total = float(resources.get(name, 0.0))
        if not alive or (total and taken is None):
            return None
        return max(0.0, total - (taken or {}).get(name, 0.0))

    # Ray marks a node with `accelerator_type:T4` where it knows its GPUs.
    marks = {name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")}
    gpus = float(resources.get("GPU", 0.0))
    return Node(
        *place,
        head=head,
        alive=alive,
        cpus=float(resources.get("CPU", 0.0)),
        gpus=gpus,
        gpu_type=", ".join(sorted(marks or (gpu_names if gpus and gpu_names else ()))) or None,
        memory=float(resources.get("memory", 0.0)),
        free_cpus=free("CPU"),
        free_gpus=free("GPU"),
    )


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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("node", "id", "role"):
        table.add_column(name)
    for name in ("CPUs", "free", "GPUs", "free"):
        table.add_column(name, justify="right")
    table.add_column("GPU type")
    table.add_column("memory", justify="right")
    for node in view.alive:
        table.add_row(
            node.ip,
            node.node_id[:8],
            "head" if node.head else "worker",
            *map(_number, (node.cpus, node.free_cpus, node.gpus, node.free_gpus)),
            (node.gpu_type or "unknown") if node.gpus else "",
            _gib(node.memory),
        )
    console.print(table)
    count = len(view.alive)
    gone = len(view.nodes) - count
    cpus, free_cpus, gpus, free_gpus = (
        _number(view.total(name)) for name in ("cpus", "free_cpus", "gpus", "free_gpus")
    )
    say(
        console,
        f"total: {count} node{'' if count == 1 else 's'}, {cpus} CPUs ({free_cpus} free), "
        f"{gpus} GPUs ({free_gpus} free), {_gib(view.total('memory') or 0)}"
        + (f"; {gone} more left or died" if gone else ""),
    )
    say(console, versions_line(view))


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
