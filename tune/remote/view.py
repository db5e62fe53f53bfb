"""What a Ray cluster has: its nodes with their CPUs and GPUs, what is free, and whether its versions are ours.

Read from the dashboard's REST API with Ray's own job client, which carries Ray's token. tune/remote/joining.py reads
the same on a machine that is part of the cluster.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tune.util.console import say
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_HIDDEN_NODES = 10_000
"""Nodes that the dashboard lists at most, dead ones included."""


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
        from tune.remote.client import version_differences

        names = ("cpus", "gpus", "memory", "free_cpus", "free_gpus")
        return {
            "address": hide_password(self.address),
            "ray_version": self.ray_version,
            "python_version": self.python_version,
            "versions_match": not version_differences(self.ray_version, self.python_version),
            "totals": {name: self.total(name) for name in names},
            "nodes": [dataclasses.asdict(node) for node in self.nodes],
        }


def versions_line(view: ClusterView) -> str:
    """One line: the same versions, or what differs and what to do."""
    from tune.remote.client import version_differences

    python = ".".join((view.python_version or "").split(".")[:2])
    there = f"Ray {view.ray_version}" + (f" and Python {python}" if python else "")
    differences = version_differences(view.ray_version, view.python_version)
    if not differences:
        return f"{there} there, the same here"
    here = " and ".join(f"{what} {ours}" for what, _, ours in differences)
    needed = " and ".join(f"{what} {theirs}" for what, theirs, _ in differences)
    return f"{there} there, but {here} here: searches will not run; use an environment with {needed}"


def read_dashboard(client: JobSubmissionClient, address: str) -> ClusterView:
    """The cluster behind a dashboard.

    Args:
        client: connected to it.
        address: what the user calls it.

    Raises:
        UserError: the dashboard does not answer as Ray's does, or does not accept our credentials.
    """
    from tune.remote.client import cluster_errors, cluster_versions

    ray_version, python = cluster_versions(client)
    with cluster_errors(address):
        states = _get(client, f"/api/v0/nodes?detail=1&limit={_HIDDEN_NODES}")["result"]["result"]
        summary = _get(client, "/nodes?view=summary")
    free = summary.get("nodeLogicalResources") or {}
    cards = {
        (entry.get("raylet") or {}).get("nodeId"): _card(entry.get("gpus"))
        for entry in summary.get("summary", [])
    }
    nodes = [_node(state, free.get(state["node_id"]), cards.get(state["node_id"])) for state in states]
    return ClusterView(address, ray_version, python, tuple(nodes))


def _get(client: JobSubmissionClient, path: str) -> Any:
    # The client's own request: the only way that carries its token and headers on every version of Ray.
    response = client._do_request("GET", path, timeout=30)
    response.raise_for_status()
    return response.json()["data"]


def _node(state: Mapping[str, Any], usage: str | None, card: str | None) -> Node:
    resources = state.get("resources_total") or {}
    used = _used(usage) if usage is not None else None
    alive = state["state"] == "ALIVE"
    cpus, gpus = float(resources.get("CPU", 0)), float(resources.get("GPU", 0))
    return Node(
        node_id=state["node_id"],
        ip=state["node_ip"],
        head=bool(state["is_head_node"]),
        alive=alive,
        cpus=cpus,
        gpus=gpus,
        gpu_type=gpu_type(resources) or (card if gpus else None),
        memory=float(resources.get("memory", 0)),
        free_cpus=_free(cpus, "CPU", used) if alive else None,
        free_gpus=_free(gpus, "GPU", used) if alive else None,
    )


def _free(total: float, name: str, used: Mapping[str, float] | None) -> float | None:
    if not total:
        return 0.0
    return None if used is None else max(0.0, total - used.get(name, 0.0))


_USAGE = re.compile(
    r"^\s*([\d.]+)/[\d.]+ (CPU|GPU)(?: \(([\d.]+) used of ([\d.]+) reserved in placement groups\))?$",
    re.MULTILINE,
)


def _used(usage: str) -> dict[str, float]:
    """What is taken of a node, from the dashboard's text; what a placement group reserves is taken too.

    The text has a resource a line, as `1.0/2.0 CPU` or `1.0/4.0 GPU (0.0 used of 2.0 reserved in placement groups)`.
    """
    taken = {}
    for used, name, used_in_groups, reserved in _USAGE.findall(usage):
        taken[name] = float(used) + (float(reserved) - float(used_in_groups) if reserved else 0.0)
    return taken


def gpu_type(resources: Mapping[str, Any]) -> str | None:
    """Ray marks a node with `accelerator_type:T4` where it knows its GPUs."""
    marks = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    return ", ".join(sorted(marks)) or None


def _card(gpus: Any) -> str | None:
    names = {gpu["name"] for gpu in gpus or [] if isinstance(gpu, dict) and gpu.get("name")}
    return ", ".join(sorted(names)) or None


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
            *(_number(value) for value in (node.cpus, node.free_cpus, node.gpus, node.free_gpus)),
            (node.gpu_type or "unknown") if node.gpus else "",
            _gib(node.memory),
        )
    console.print(table)
    gone = len(view.nodes) - len(view.alive)
    count = len(view.alive)
    say(
        console,
        f"total: {count} node{'' if count == 1 else 's'}, {_number(view.total('cpus'))} CPUs "
        f"({_number(view.total('free_cpus'))} free), {_number(view.total('gpus'))} GPUs "
        f"({_number(view.total('free_gpus'))} free), {_gib(view.total('memory') or 0)}"
        + (f"; {gone} more left or died" if gone else ""),
    )
    say(console, versions_line(view))


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
