"""Creating, scaling and deleting clusters on Vertex AI: what it will cost, a question, then Google's SDK.

See tune/vertex.py for what the tests exercise of this and what they cannot.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tune.display import say
from tune.vertex import (
    SCHEME,
    ClusterName,
    check_our_versions,
    find_location,
    find_project,
    get_cluster,
    open_sdk,
    our_versions,
    supported_versions,
)
from tune.vertex_errors import VertexError, quiet_sdk, sdk_errors
from tune.vertex_file import ClusterFile
from tune.vertex_pools import Pool, describe_pool, pools_cost, pools_of
from tune.vertex_prices import Cost, price_note

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Resources


def _confirm(console: Console, question: str, *, yes: bool) -> bool:
    """Ask y/N on a terminal.

    Raises:
        VertexError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise VertexError(f"{question} Nobody can be asked here; nothing was done; add --yes to do it")
    say(console, f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _check_price(price: float | None) -> None:
    if price is not None and not 0 <= price < 1e6:
        raise VertexError(f"--price-per-hour {price:g}: must be dollars an hour, as 1.25")


def create(
    file: ClusterFile,
    *,
    project: str | None,
    location: str | None,
    price: float | None,
    yes: bool,
    console: Console,
) -> None:
    """Create a cluster and wait until it runs.

    Args:
        file: what to create.
        project: before the file's project and the environment's.
        location: the same for the region.
        price: dollars an hour of the whole cluster, instead of list prices.
        yes: do not ask.
        console: where to say what it costs.

    Raises:
        VertexError: it cannot be created, or nobody could be asked.
    """
    _check_price(price)
    name = ClusterName(
        find_project(project or file.project), find_location(location or file.location), file.name
    )
    vertex_ray = open_sdk(name.project, name.location)
    ray_version, python_version = _versions(file)
    cost = Cost(price) if price is not None else pools_cost([file.head, *file.workers])
    _say_plan(console, name, file, (ray_version, python_version), cost, own_price=price is not None)
    if not _confirm(console, f"Create {name.name} ({cost.show()})?", yes=yes):
        say(console, "nothing was created")
        return
    say(console, "creating; this takes 10 to 20 minutes ...")
    try:
        with sdk_errors(name), quiet_sdk(progress=True):
            vertex_ray.create_ray_cluster(
                head_node_type=_resources(vertex_ray, file.head),
                worker_node_types=[_resources(vertex_ray, pool) for pool in file.workers],
                ray_version=ray_version,
                python_version=python_version,
                network=file.network,
                service_account=file.service_account,
                cluster_name=file.name,
                labels=file.labels or None,
            )
    except KeyboardInterrupt:
        say(console, f"the cluster is still being created and will cost; {_delete_command(name)} deletes it")
        raise
    say(console, f"running; use it with --address {SCHEME}{name.name}; {_delete_command(name)} ends the cost")


def _say_plan(
    console: Console,
    name: ClusterName,
    file: ClusterFile,
    versions: tuple[str, str],
    cost: Cost,
    *,
    own_price: bool,
) -> None:
    say(
        console,
        f"cluster {name.name} in {name.project}, {name.location}: Ray {versions[0]}, Python {versions[1]}",
    )
    say(console, f"  head     {describe_pool(file.head)}, {file.head.disk_gb} GB disk")
    for pool in file.workers:
        say(console, f"  workers  {describe_pool(pool)}, {pool.disk_gb} GB disk each")
    say(console, f"cost: {cost.show()} from now until it is deleted")
    own = own_price or all(p.price_per_hour is not None for p in (file.head, *file.workers))
    say(console, "  " + ("as you gave it" if own else price_note(name.location)))


def _delete_command(name: ClusterName) -> str:
    return f"tune-whisper cluster delete {name.name} --project {name.project} --location {name.location}"


def _versions(file: ClusterFile) -> tuple[str, str]:
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


def _resources(vertex_ray: Any, pool: Pool) -> Resources:
    scaling = None
    if pool.most:
        scaling = vertex_ray.AutoscalingSpec(min_replica_count=pool.replicas, max_replica_count=pool.most)
    return vertex_ray.Resources(
        machine_type=pool.machine_type,
        node_count=pool.replicas,
        accelerator_type=pool.accelerator_type,
        accelerator_count=pool.accelerator_count,
        boot_disk_size_gb=pool.disk_gb,
        custom_image=pool.image,
        autoscaling_spec=scaling,
    )


def scale(
    name: ClusterName,
    *,
    workers: int,
    pool: int | None,
    price: float | None,
    yes: bool,
    console: Console,
) -> None:
    """Give a worker pool another number of machines and wait until it has them.

    Args:
        name: the cluster.
        workers: machines that the pool shall have.
        pool: its number from 1; None where there is one.
        price: dollars an hour of one machine of the pool, instead of the list price.
        yes: do not ask.
        console: where to say what it costs.

    Raises:
        VertexError: it cannot be scaled so, or nobody could be asked.
    """
    _check_price(price)
    vertex_ray = open_sdk(name.project, name.location)
    cluster = get_cluster(name)
    head, pools = pools_of(cluster)
    index = _which(pools, pool)
    _check_workers(head, pools[index], workers, cluster.state)
    if workers == pools[index].replicas:
        say(console, f"{name.name} has {describe_pool(pools[index])} already; nothing to do")
        return
    pools[index] = dataclasses.replace(pools[index], price_per_hour=price)
    after = list(pools)
    after[index] = dataclasses.replace(pools[index], replicas=workers)
    now, then = pools_cost([head, *pools]), pools_cost([head, *after])
    say(console, f"{name.name}: {describe_pool(pools[index])} → {describe_pool(after[index])}")
    say(console, f"cost: {now.show()} → {then.show()}")
    say(console, f"  {price_note(name.location)}")
    if not _confirm(console, f"Scale {name.name} ({now.show()} → {then.show()})?", yes=yes):
        say(console, "nothing was changed")
        return
    say(console, "scaling; this takes minutes ...")
    wanted = list(cluster.worker_node_types)
    wanted[index].node_count = workers
    with sdk_errors(name), quiet_sdk():
        vertex_ray.update_ray_cluster(name.resource, wanted)
    say(console, f"{name.name} has {describe_pool(after[index])} now")


def _which(pools: list[Pool], number: int | None) -> int:
    listed = "; ".join(f"{i}: {describe_pool(pool)}" for i, pool in enumerate(pools, start=1))
    if not pools:
        # Google's SDK compares the pools before and after, so it cannot add the first one.
        raise VertexError("--workers: the cluster has no worker pool to scale; create it anew with workers")
    if number is None and len(pools) > 1:
        raise VertexError(f"--pool: missing; the cluster has several ({listed})")
    if number is not None and not 1 <= number <= len(pools):
        raise VertexError(f"--pool {number}: there is none; the cluster has {listed}")
    return (number or 1) - 1


def _check_workers(head: Pool, pool: Pool, workers: int, state: str) -> None:
    if state != "RUNNING":
        raise VertexError(f"--workers {workers}: the cluster is {state}; only a RUNNING one can be scaled")
    if pool.most:
        raise VertexError(
            f"--workers {workers}: the pool scales itself ({describe_pool(pool)}); nothing to set by hand"
        )
    # The SDK would do nothing for 0, and say that it had; a pool merged with the head's could never grow again.
    if workers < 1:
        merged = " (they share the head's pool)" if pool.kind == head.kind else ""
        raise VertexError(
            f"--workers {workers}: a pool keeps at least 1 machine{merged}; to stop all cost delete the cluster"
        )
    if workers > 1000:
        raise VertexError(f"--workers {workers}: must be at most 1000")


def delete(name: ClusterName, *, yes: bool, console: Console) -> None:
    """Delete a cluster, whatever runs on it.

    Raises:
        VertexError: it cannot be deleted, or nobody could be asked.
    """
    vertex_ray = open_sdk(name.project, name.location)
    cluster = get_cluster(name)
    head, pools = pools_of(cluster)
    cost = pools_cost([head, *pools])
    say(
        console,
        f"{name.name} in {name.project}, {name.location}: {cluster.state}, {describe_pool(head)} and "
        + (", ".join(map(describe_pool, pools)) or "no workers"),
    )
    say(console, f"cost: {cost.show()} → nothing; searches on it end, and what is on its disks is lost")
    if not _confirm(console, f"Delete {name.name} ({cost.show()} → nothing)?", yes=yes):
        say(console, "nothing was deleted")
        return
    with sdk_errors(name), quiet_sdk():
        vertex_ray.delete_ray_cluster(name.resource)
    say(console, f"{name.name} is being deleted; it takes minutes until it is gone")
