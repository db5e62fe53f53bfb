"""The YAML file of a cluster on Vertex AI, read with line numbers; all mistakes are told at once."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import yaml

from tune.vertex_errors import VertexError
from tune.vertex_pool_reader import TEXT, Check, has_key, matches, read_pool, read_scalar, unknown_key
from tune.vertex_pools import Pool
from tune.yaml_nodes import Problems, compose, items, scalar


@dataclasses.dataclass(frozen=True)
class ClusterFile:
    """A cluster to create."""

    name: str
    head: Pool
    workers: tuple[Pool, ...]
    project: str | None = None
    location: str | None = None
    ray_version: str | None = None
    python_version: str | None = None
    network: str | None = None
    service_account: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


_TOP_KEYS: dict[str, Check] = {
    "name": matches(
        r"[a-z][a-z0-9_-]{0,62}",
        "lower-case letters, digits, - and _, at most 63, beginning with a letter",
    ),
    "project": TEXT,
    "location": matches(r"[a-z]+-[a-z]+\d+", "a region, as us-central1"),
    "ray_version": matches(r"\d+\.\d+(\.\d+)?", 'a version, as "2.47"'),
    "python_version": matches(r"\d+\.\d+", 'a version, as "3.11"'),
    "network": matches(r"projects/[^/]+/global/networks/[^/]+", "projects/NUMBER/global/networks/NAME"),
    "service_account": matches(r"[^@\s]+@[^@\s]+", "an e-mail address"),
}


def read_cluster_file(path: Path) -> ClusterFile:
    """Read and check a cluster's YAML file.

    Raises:
        VertexError: it cannot be read or has mistakes; one line for each, `FILE:LINE: key=value: ...`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise VertexError(
            f"{path}: cannot be read ({reason}); give a YAML file as docs/vertex_cluster.yaml"
        ) from error
    problems = Problems()
    root = compose(text, problems)
    file = None
    if isinstance(root, yaml.MappingNode):
        file = _cluster(root, problems)
    elif root is not None:
        problems.add(root, "the top level must be a mapping such as name: my-cluster")
    elif problems.found[-1][1].startswith("the file is empty"):
        problems.found[-1] = (1, "the file is empty; docs/vertex_cluster.yaml is a whole one")
    if problems.found or file is None:
        raise VertexError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(problems.found)))
    return file


def _cluster(root: yaml.MappingNode, problems: Problems) -> ClusterFile | None:
    values: dict[str, Any] = {}
    sections: dict[str, yaml.Node] = {}
    labels: dict[str, str] = {}
    for key, key_node, node in items(root, problems):
        if key in ("head", "workers"):
            sections[key] = node
        elif key == "labels":
            labels = _labels(node, problems)
        elif key in _TOP_KEYS:
            read_scalar(key, node, _TOP_KEYS, values, problems)
        else:
            unknown_key(key, key_node, [*_TOP_KEYS, "head", "workers", "labels"], problems)
    for key in ("name", "head", "workers"):
        if key not in values and key not in sections and not has_key(root, key):
            problems.add(root, f"{key}: is missing")
    head = _head(sections.get("head"), problems)
    workers = _workers(sections.get("workers"), problems)
    if head:
        _check_pools(head, workers, problems)
    if problems.found or head is None:
        return None
    return ClusterFile(head=head, workers=tuple(pool for pool, _ in workers), labels=labels, **values)


def _labels(node: yaml.Node, problems: Problems) -> dict[str, str]:
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, "labels: must be a mapping, as {team: speech}")
        return {}
    labels = {}
    for key, _, value_node in items(node, problems, "labels: "):
        value = scalar(value_node, as_text=True)
        if (
            isinstance(value, str)
            and re.fullmatch(r"[\w-]{1,64}", key)
            and re.fullmatch(r"[\w-]{0,64}", value)
        ):
            labels[key] = value
        else:
            problems.add(
                value_node, f"labels: {key}={value}: letters, digits, - and _ only, at most 64 of them"
            )
    return labels


def _head(node: yaml.Node | None, problems: Problems) -> Pool | None:
    if node is None:
        return None
    pool = read_pool("head: ", node, problems)
    if pool and (pool.replicas != 1 or pool.most):
        problems.add(node, "head: there is one head; replicas and autoscaling belong to workers")
    return pool


def _workers(node: yaml.Node | None, problems: Problems) -> list[tuple[Pool, yaml.Node]]:
    if node is None:
        return []
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not nodes:
        problems.add(node, "workers: must have a pool, as - {machine_type: n1-standard-16, replicas: 2}")
    read = []
    for number, pool_node in enumerate(nodes, start=1):
        where = f"workers: pool {number}: " if len(nodes) > 1 else "workers: "
        pool = read_pool(where, pool_node, problems)
        if pool:
            read.append((pool, pool_node))
    return read


def _check_pools(head: Pool, workers: list[tuple[Pool, yaml.Node]], problems: Problems) -> None:
    """What Google's SDK cannot create, or cannot scale afterwards."""
    seen: list[tuple[str, str | None, int]] = []
    for pool, node in workers:
        if pool.kind in seen:
            problems.add(node, f"workers: {pool.machine_type}: two pools of the same machines; make them one")
        seen.append(pool.kind)
        if pool.kind != head.kind:
            continue
        if pool.most:
            problems.add(
                node,
                f"workers: {pool.machine_type}: the head's machine, which cannot scale itself; choose another",
            )
        elif pool.disk_gb != head.disk_gb or pool.image != head.image:
            problems.add(
                node,
                f"workers: {pool.machine_type}: the head's machine, so disk_gb and image must be the head's",
            )
