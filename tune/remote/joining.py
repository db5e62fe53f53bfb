"""What a Ray cluster has, seen from one of its own nodes: joins it for a moment, without its dashboard."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import re
import socket
from collections.abc import Mapping
from typing import Any

from tune.remote.view import ClusterView, Node, gpu_type
from tune.util.errors import UserError

_CONNECT_SECONDS = 5


class ClusterError(UserError):
    """The cluster cannot be reached, or this machine is no part of it."""


def read_by_joining(address: str) -> ClusterView:
    """The cluster that this machine is part of: joins it, looks and leaves again.

    Args:
        address: `auto` or `HEAD:6379`.

    Raises:
        ClusterError: there is none, or this machine is no node of it.
    """
    _check_port(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, AssertionError) as error:
        raise ClusterError(_explain_joining(address, str(error))) from error
    try:
        # Ray has no public call for what is free on each node; this one is in 2.47 and 2.60.
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        nodes = tuple(_joined(node, free.get(node["NodeID"])) for node in ray.nodes())
        return ClusterView(address, ray.__version__, platform.python_version(), nodes)
    finally:
        ray.shutdown()


def _joined(node: Mapping[str, Any], free: Mapping[str, float] | None) -> Node:
    resources = node["Resources"] or {}
    cpus, gpus = float(resources.get("CPU", 0)), float(resources.get("GPU", 0))
    alive = bool(node["Alive"])
    known = alive and free is not None
    return Node(
        node_id=node["NodeID"],
        ip=node["NodeManagerAddress"],
        head="node:__internal_head__" in resources,
        alive=alive,
        cpus=cpus,
        gpus=gpus,
        gpu_type=gpu_type(resources),
        memory=float(resources.get("memory", 0)),
        free_cpus=float((free or {}).get("CPU", 0)) if known else None,
        free_gpus=float((free or {}).get("GPU", 0)) if known else None,
    )


def _check_port(address: str) -> None:
    """Ray itself would try for a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ClusterError(
            f"--address {address}: must be http://HEAD:8265, vertex_ray://NAME, HEAD:6379 or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(
            f"--address {address}: cannot be reached; is the cluster running, and is it this host and port?"
        ) from error


def _explain_joining(address: str, text: str) -> str:
    if "ersion mismatch" in text:
        found = re.findall(r"(Ray|Python): ([\d.]+)", text)
        there = ", ".join(f"{what} {version}" for what, version in found[:2])
        return f"--address {address}: other versions there ({there}); use an environment with the cluster's"
    if address == "auto" and "Could not find any running Ray" in text:
        return "--address auto: no Ray runs on this machine; for a cluster elsewhere give its dashboard, http://HEAD:8265"
    host = address.rpartition(":")[0] or "HEAD"
    return (
        f"--address {address}: this machine cannot join it as a node of the cluster; give its dashboard, "
        f"http://{host}:8265"
    )
