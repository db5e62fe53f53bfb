"""Reading one pool of a cluster's YAML file, and single values of it: what may stand there."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import yaml

from tune.vertex_machines import ACCELERATORS, MACHINES, gpu_problem
from tune.vertex_pools import Pool
from tune.yaml_nodes import Problems, items, nearest, scalar

Check = Callable[[Any], str | None]


def matches(pattern: str, meaning: str) -> Check:
    return lambda value: None if re.fullmatch(pattern, str(value)) else f"must be {meaning}"


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a whole number from {low} to {high}"

    return check


def _positive(value: Any) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6
    return None if good else "must be dollars an hour, as 1.25"


def _accelerator(value: Any) -> str | None:
    if value in ACCELERATORS:
        return None
    near = nearest(str(value).upper().replace("-", "_"), ACCELERATORS)
    return f"did you mean {near}?" if near else f"must be one of {', '.join(ACCELERATORS)}"


def _machine(value: Any) -> str | None:
    if re.fullmatch(r"[a-z][a-z0-9]+-[a-z0-9-]+", str(value)):
        near = nearest(str(value), MACHINES)
        family = {name.rpartition("-")[0] for name in MACHINES}
        typing_error = value not in MACHINES and near and str(value).rpartition("-")[0] not in family
        return f"did you mean {near}?" if typing_error else None
    return "must be a machine type, as n1-standard-16"


TEXT = matches(r"\S+", "a text without spaces")
_POOL_KEYS: dict[str, Check] = {
    "machine_type": _machine,
    "accelerator_type": _accelerator,
    "accelerator_count": _whole(0, 16),
    "replicas": _whole(1, 1000),
    "disk_gb": _whole(100, 64000),
    "image": TEXT,
    "price_per_hour": _positive,
}
_TEXTS = {"ray_version", "python_version"}
"""Taken as written: YAML would read 3.10 as the number 3.1."""


def has_key(root: yaml.MappingNode, key: str) -> bool:
    return any(getattr(node, "value", None) == key for node, _ in root.value)


def read_scalar(
    key: str,
    node: yaml.Node,
    keys: dict[str, Check],
    values: dict[str, Any],
    problems: Problems,
    where: str = "",
) -> None:
    value = scalar(node, as_text=key in _TEXTS)
    problem = "must be a plain value" if isinstance(value, (list, dict)) else keys[key](value)
    if problem:
        problems.add(node, f"{where}{key}={value}: {problem}")
    else:
        values[key] = value


def unknown_key(key: str, node: yaml.Node, names: list[str], problems: Problems, where: str = "") -> None:
    near = nearest(key, names)
    hint = f"did you mean {near}?" if near else f"known are {', '.join(names)}"
    problems.add(node, f"{where}{key}: unknown setting; {hint}")


def read_pool(where: str, node: yaml.Node, problems: Problems) -> Pool | None:
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{where}must be a mapping, as {{machine_type: n1-standard-16}}")
        return None
    before = len(problems.found)
    values: dict[str, Any] = {}
    for key, key_node, value_node in items(node, problems, where):
        if key in _POOL_KEYS:
            read_scalar(key, value_node, _POOL_KEYS, values, problems, where)
        elif key == "autoscaling":
            values.update(_autoscaling(where, value_node, problems))
        else:
            unknown_key(key, key_node, [*_POOL_KEYS, "autoscaling"], problems, where)
    if not has_key(node, "machine_type"):
        problems.add(node, f"{where}machine_type: is missing")
    if has_key(node, "autoscaling") and has_key(node, "replicas"):
        problems.add(node, f"{where}replicas: goes without autoscaling, which sets them; remove one")
    if "accelerator_type" in values:
        values.setdefault("accelerator_count", 1)
    elif values.get("accelerator_count") and not has_key(node, "accelerator_type"):
        problems.add(node, f"{where}accelerator_count: needs accelerator_type")
    if len(problems.found) > before:
        return None
    pool = _bundled(Pool(**values))
    problem = gpu_problem(*pool.kind)
    if problem:
        problems.add(node, f"{where}{problem}")
        return None
    return pool


def _bundled(pool: Pool) -> Pool:
    """The API wants the GPUs of a machine that always has them to be named."""
    machine = MACHINES.get(pool.machine_type)
    if machine and machine.gpu and pool.accelerator_type is None:
        return dataclasses.replace(pool, accelerator_type=machine.gpu, accelerator_count=machine.gpus)
    return pool


def _autoscaling(where: str, node: yaml.Node, problems: Problems) -> dict[str, int]:
    found: dict[str, Any] = {}
    if isinstance(node, yaml.MappingNode):
        found = {key: scalar(value) for key, _, value in items(node, problems, f"{where}autoscaling: ")}
    low, high = found.get("min"), found.get("max")
    whole = _whole(1, 1000)
    if set(found) != {"min", "max"} or whole(low) or whole(high) or low > high:  # type: ignore[operator]
        problems.add(
            node, f"{where}autoscaling: must be as {{min: 1, max: 4}}, whole numbers, min at least 1"
        )
        return {}
    return {"replicas": int(low), "most": int(high)}  # type: ignore[arg-type]
