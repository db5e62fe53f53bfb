"""Clusters on Vertex AI in the words of Google's SDK: pools of machines are its `Resources`, the rest are arguments of
its `create_ray_cluster`. Here a cluster's file is read, and pools are checked and described.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tune.remote.vertex import VertexError, check_our_versions, import_sdk, our_versions, supported_versions
from tune.util.yaml_nodes import Problems, compose, items, nearest, scalar

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources

PRICES = "https://cloud.google.com/vertex-ai/pricing"
_TEXTS = {
    "name": (r"[a-z][a-z0-9_-]{0,62}", "lower-case letters, digits, - and _, at most 63, a letter first"),
    "location": (r"[a-z]+-[a-z]+\d+", "a region, as us-central1"),
    "ray_version": (r"\d+\.\d+(\.\d+)?", 'a version, as "2.47"'),
    "python_version": (r"\d+\.\d+", 'a version, as "3.11"'),
    "network": (r"projects/[^/]+/global/networks/[^/]+", "projects/NUMBER/global/networks/NAME"),
    "service_account": (r"[^@\s]+@[^@\s]+", "an e-mail address"),
}
"""What some texts of a file must be; others are texts without spaces."""
_NUMBERS = {"accelerator_count": (0, 16), "boot_disk_size_gb": (100, 64000)}
"""From where to where some numbers go; others, which count machines, from 1 to 1000."""
_RENAMED = {
    **{"replicas": "node_count", "disk_gb": "boot_disk_size_gb", "image": "custom_image"},
    **{"autoscaling": "autoscaling_spec", "min": "min_replica_count", "max": "max_replica_count"},
}
"""Our own names of a pool's settings, in files from before Google's were taken."""


@dataclasses.dataclass(frozen=True)
class ClusterFile:
    """A cluster to create."""

    name: str
    head: Resources
    workers: list[Resources]
    project: str | None = None
    location: str | None = None
    ray_version: str | None = None
    python_version: str | None = None
    network: str | None = None
    service_account: str | None = None
    labels: dict[str, str] | None = None


def read_cluster_file(path: Path) -> ClusterFile:
    """Read and check a cluster's YAML file, as far as no table of machines is needed, which Vertex AI itself has.

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
    values: dict[str, Any] = {}
    if root is None and problems.found[-1][1].startswith("the file is empty"):
        problems.found[-1] = (1, "the file is empty; docs/vertex_cluster.yaml is a whole one")
    elif root is not None:
        pool = import_sdk().Resources
        types = {field.name: str for field in dataclasses.fields(ClusterFile)}
        values = _read_fields(types | {"head": pool, "workers": [pool], "labels": dict}, "", root, problems)
        _check_pools(root, values, problems)
    if problems.found:
        raise VertexError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(problems.found)))
    return ClusterFile(**values)


def _read_fields(types: Mapping[str, Any], where: str, node: yaml.Node, problems: Problems) -> dict[str, Any]:
    """The values of a mapping, each of the type that its key has."""
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{where}must be a mapping with some of {', '.join(types)}")
        return {}
    values = {}
    for key, key_node, value_node in items(node, problems, where):
        if key in types:
            values[key] = _read_value(types[key], key, where, value_node, problems)
            continue
        near = nearest(key, types)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(types)}"
        if _RENAMED.get(key) in types:
            hint = f"is {_RENAMED[key]} now, as in Google's SDK"
        problems.add(key_node, f"{where}{key}: unknown setting; {hint}")
    return values


def _read_value(kind: Any, key: str, where: str, node: yaml.Node, problems: Problems) -> Any:
    """One value: a text, a number, a mapping of texts, or one of the SDK's dataclasses; of the last also several."""
    if isinstance(kind, list):
        nodes = _pool_nodes(node)
        keys = [f"{key}: pool {i}" if len(nodes) > 1 else key for i in range(1, len(nodes) + 1)]
        return [
            _read_value(kind[0], *each, problems)
            for each in zip(keys, [where] * len(nodes), nodes, strict=True)
        ]
    if kind is dict and isinstance(node, yaml.MappingNode):
        return {name: str(scalar(each, as_text=True)) for name, _, each in items(node, problems, f"{key}: ")}
    if dataclasses.is_dataclass(kind):
        hints = {
            name: (*typing.get_args(hint), hint)[0] for name, hint in typing.get_type_hints(kind).items()
        }
        return kind(**_read_fields(hints, f"{where}{key}: ", node, problems))  # type: ignore[operator]
    value = scalar(node, as_text=kind is str)  # as text: YAML would read the version 3.10 as the number 3.1
    problem = _problem(kind, key, value)
    if problem:
        problems.add(node, f"{where}{key}={value}: {problem}")
    return value


def _problem(kind: Any, key: str, value: Any) -> str | None:
    if kind is int:
        low, high = _NUMBERS.get(key, (1, 1000))
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a whole number from {low} to {high}"
    if key == "accelerator_type":
        from google.cloud.aiplatform_v1beta1.types import AcceleratorType

        names = [each.name for each in AcceleratorType if each.value]
        near = nearest(str(value).upper().replace("-", "_"), names)
        hint = f"did you mean {near}?" if near else f"must be one of {', '.join(names)}"
        return None if value in names else hint
    if kind is dict:
        return "must be a mapping, as {team: speech}"
    pattern, meaning = _TEXTS.get(key, (r"\S+", "a text without spaces"))
    return None if isinstance(value, str) and re.fullmatch(pattern, value) else f"must be {meaning}"


def _pool_nodes(node: yaml.Node) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]


def _check_pools(root: yaml.Node, values: dict[str, Any], problems: Problems) -> None:
    """What is missing, and what Google's SDK cannot create or cannot scale afterwards."""
    missing = [key for key in ("name", "head", "workers") if not values.get(key)]
    for key in missing if isinstance(root, yaml.MappingNode) else ():
        problems.add(root, f"{key}: is missing")
    if problems.found:
        return
    nodes = {key.value: node for key, node in root.value}
    head, seen = values["head"], []
    for pool, node in zip(
        [head, *values["workers"]], [nodes["head"], *_pool_nodes(nodes["workers"])], strict=True
    ):
        where = "head: " if pool is head else f"workers: {pool.machine_type}: "
        given = {key.value for key, _ in node.value}
        scaling, same = pool.autoscaling_spec, pool is not head and _kind(pool) == _kind(head)
        disks = [(each.boot_disk_type, each.boot_disk_size_gb, each.custom_image) for each in (pool, head)]
        wrong = {
            "machine_type: is missing": "machine_type" not in given,
            "accelerator_count: needs accelerator_type": pool.accelerator_count and not pool.accelerator_type,
            "there is one head; node_count and autoscaling_spec belong to workers": (
                pool is head and (scaling or pool.node_count != 1)
            ),
            "node_count: goes without autoscaling_spec, which sets it; remove one": (
                pool is not head and scaling and "node_count" in given
            ),
            "autoscaling_spec: min_replica_count is above max_replica_count; swap them": (
                scaling and scaling.min_replica_count > scaling.max_replica_count
            ),
            "two pools of the same machines; make them one": pool is not head and _kind(pool) in seen,
            "the head's machine, which cannot scale itself; choose another": same and scaling,
            "the head's machine, so boot disk and custom_image must be the head's": same
            and disks[0] != disks[1],
        }
        for text in [text for text, is_so in wrong.items() if is_so]:
            problems.add(node, where + text)
        if pool is not head:
            seen.append(_kind(pool))
        if pool.accelerator_type:
            pool.accelerator_count = pool.accelerator_count or 1


def _kind(pool: Resources) -> tuple[str | None, str | None, int | None]:
    """What makes two pools the same to Vertex AI."""
    return pool.machine_type, pool.accelerator_type, pool.accelerator_count


def most_nodes(pool: Resources) -> int | None:
    """The most machines of a pool that scales itself; None of any other."""
    return (pool.autoscaling_spec and pool.autoscaling_spec.max_replica_count) or None


def fewest_nodes(pool: Resources) -> int:
    """The machines of a pool, the fewest where it scales itself."""
    scaling = pool.autoscaling_spec
    return int(scaling.min_replica_count if scaling and most_nodes(pool) else pool.node_count)


def describe_pool(pool: Resources) -> str:
    """As `4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each`."""
    most = most_nodes(pool)
    count = f"{fewest_nodes(pool)} to {most}" if most else str(fewest_nodes(pool))
    gpus = f" with {pool.accelerator_count} {pool.accelerator_type} each" if pool.accelerator_type else ""
    return f"{count} {pool.machine_type}{gpus}"


def pool_lines(head: Resources, workers: list[Resources]) -> list[str]:
    """A line for each pool, as `  workers  4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each, 200 GB disk each`."""
    roles = [("head", head), *(("workers", pool) for pool in workers)]
    return [
        f"  {role:<8} {describe_pool(pool)}, {pool.boot_disk_size_gb} GB disk each" for role, pool in roles
    ]


def prices_line(per_hour: float | None, *machines: int) -> str:
    """Where prices are; where the user gave one of a machine, what so many cost.

    Raises:
        VertexError: it is no price.
    """
    if per_hour is None:
        return f"prices: {PRICES}"
    if not 0 <= per_hour < 1e6:
        raise VertexError(f"--price-per-hour {per_hour:g}: must be dollars an hour, as 1.25")
    costs = " → ".join(f"${per_hour * count:.2f} an hour" for count in machines)
    return f"cost: {costs}, by the price that you gave"


def versions_of(file: ClusterFile) -> tuple[str, str]:
    """Ray (as 2.47) and Python of the cluster: the file's, else ours; with an image of one's own also others."""
    ours = our_versions()
    ray_version = ".".join((file.ray_version or ours[0]).split(".")[:2])
    pair = ray_version, file.python_version or ours[1]
    if pair == ours:
        check_our_versions()
    elif pair not in supported_versions():
        known = ", ".join(f"{ray_} with {python}" for ray_, python in supported_versions())
        raise VertexError(
            f"ray_version={pair[0]} with python_version={pair[1]}: Vertex AI does not run them; it runs {known}"
        )
    return pair


def find_pool(pools: list[Resources], number: int | None) -> int:
    """The index of the pool that `--pool` names; raises `VertexError` where there is none, or a choice of several."""
    listed = "; ".join(f"{i}: {describe_pool(pool)}" for i, pool in enumerate(pools, start=1))
    if not pools:
        # Google's SDK compares the pools before and after, so it cannot add the first one.
        raise VertexError("--workers: the cluster has no worker pool to scale; create it anew with workers")
    if number is None and len(pools) > 1:
        raise VertexError(f"--pool: missing; the cluster has several ({listed})")
    if number is not None and not 1 <= number <= len(pools):
        raise VertexError(f"--pool {number}: there is none; the cluster has {listed}")
    return (number or 1) - 1


def check_workers(cluster: Cluster, pool: Resources, workers: int) -> None:
    """Refuse with a `VertexError` a number of machines that the pool cannot have."""
    if cluster.state != "RUNNING":
        raise VertexError(
            f"--workers {workers}: the cluster is {cluster.state}; only a RUNNING one can be scaled"
        )
    if most_nodes(pool):
        raise VertexError(
            f"--workers {workers}: the pool scales itself ({describe_pool(pool)}); nothing to set by hand"
        )
    # The SDK would do nothing for 0, and say that it had; a pool merged with the head's could never grow again.
    if workers < 1:
        merged = " (they share the head's pool)" if _kind(pool) == _kind(cluster.head_node_type) else ""
        raise VertexError(
            f"--workers {workers}: a pool keeps at least 1 machine{merged}; to stop all cost delete the cluster"
        )
    if workers > 1000:
        raise VertexError(f"--workers {workers}: must be at most 1000")
