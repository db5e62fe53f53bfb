"""Pools of machines of a cluster on Vertex AI: what they are, and what they cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tune.vertex_prices import Cost, machine_cost, total

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources


@dataclasses.dataclass(frozen=True)
class Pool:
    """Machines of one kind. `replicas` is the fewest where the pool scales itself, `most` then the most."""

    machine_type: str
    accelerator_type: str | None = None
    accelerator_count: int = 0
    replicas: int = 1
    most: int | None = None
    disk_gb: int = 100
    image: str | None = None
    price_per_hour: float | None = None
    """What one machine costs the user; None: the list price."""

    @property
    def kind(self) -> tuple[str, str | None, int]:
        """What makes two pools the same to Vertex AI."""
        return self.machine_type, self.accelerator_type, self.accelerator_count


def pools_of(cluster: Cluster) -> tuple[Pool, list[Pool]]:
    """The head and the worker pools of a cluster, as its YAML file would name them."""
    return _pool(cluster.head_node_type), [_pool(resources) for resources in cluster.worker_node_types]


def _pool(resources: Resources) -> Pool:
    scaling = resources.autoscaling_spec
    scales = scaling is not None and scaling.max_replica_count > 0
    return Pool(
        machine_type=resources.machine_type,
        accelerator_type=resources.accelerator_type,
        accelerator_count=resources.accelerator_count or 0,
        replicas=scaling.min_replica_count if scales else resources.node_count,
        most=scaling.max_replica_count if scales else None,
        disk_gb=resources.boot_disk_size_gb,
        image=resources.custom_image,
    )


def pools_cost(pools: list[Pool]) -> Cost:
    """What pools cost together; those with a price of the user's by that."""
    return total(
        (
            machine_cost(*pool.kind) if pool.price_per_hour is None else Cost(pool.price_per_hour),
            pool.replicas,
            pool.most or pool.replicas,
        )
        for pool in pools
    )


def describe_pool(pool: Pool) -> str:
    """As `4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each`."""
    count = f"{pool.replicas} to {pool.most}" if pool.most else str(pool.replicas)
    gpus = f" with {pool.accelerator_count} {pool.accelerator_type} each" if pool.accelerator_type else ""
    return f"{count} {pool.machine_type}{gpus}"
