"""What a cluster on Vertex AI is: state, versions, pools, cost; and where it runs, Ray's own view of its nodes."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tune.cluster_view import ClusterView, print_cluster, read_dashboard
from tune.display import say
from tune.errors import UserError
from tune.vertex import ClusterName, cluster_name, dashboard_client, get_cluster, version_difference
from tune.vertex_pools import Pool, pools_cost, pools_of
from tune.vertex_prices import Cost, price_note

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster


def show_vertex_cluster(
    address: str, project: str | None, location: str | None, console: Console, *, as_json: bool
) -> None:
    """Print a cluster on Vertex AI.

    Args:
        address: `vertex_ray://NAME` or with the full resource name.
        project: project id, where the address does not hold it; None: the environment's.
        location: region, the same.
        console: for people.
        as_json: print JSON for programs instead.

    Raises:
        VertexError: it cannot be found or read.
    """
    name = cluster_name(address, project, location)
    cluster = get_cluster(name)
    head, workers = pools_of(cluster)
    view, problem = _nodes(name, cluster)
    cost = pools_cost([head, *workers])
    if as_json:
        pools = [dataclasses.asdict(pool) for pool in (head, *workers)]
        print(json.dumps(_as_json(name, cluster, pools, cost, view, problem), indent=2))
        return
    say(console, f"cluster   {name.name} in {name.project}, {name.location}: {cluster.state}")
    image = " (by its image, which is custom)" if cluster.ray_version is None else ""
    say(
        console,
        f"versions  Ray {cluster.ray_version or 'unknown'}, Python {cluster.python_version or 'unknown'}{image}",
    )
    say(console, f"dashboard {_dashboard(cluster) or 'none yet'}")
    console.print(_pool_table(head, workers))
    say(console, f"cost: {cost.show()}; {price_note(name.location)}")
    if view is not None:
        say(console, "")
        print_cluster(view, console)
    else:
        say(console, version_difference(cluster) or "Ray and Python as here" if cluster.ray_version else "")
        say(console, f"nodes: not known: {problem}")


def _nodes(name: ClusterName, cluster: Cluster) -> tuple[ClusterView | None, str | None]:
    """Ray's own view; else why there is none. Looking needs no equal versions, unlike sending a job."""
    if cluster.state != "RUNNING":
        return None, f"the cluster is {cluster.state}"
    try:
        return read_dashboard(dashboard_client(name), name.address), None
    except UserError as error:
        return None, str(error)


def _dashboard(cluster: Cluster) -> str | None:
    return f"https://{cluster.dashboard_address}" if cluster.dashboard_address else None


def _as_json(
    name: ClusterName,
    cluster: Cluster,
    pools: list[dict[str, Any]],
    cost: Cost,
    view: ClusterView | None,
    problem: str | None,
) -> dict[str, Any]:
    return {
        **dataclasses.asdict(name),
        "state": cluster.state,
        "ray_version": cluster.ray_version,
        "python_version": cluster.python_version,
        "dashboard": _dashboard(cluster),
        "pools": pools,
        "usd_per_hour": None if cost.unknown else round(cost.usd, 4),
        "no_price_for": list(cost.unknown),
        "price_note": price_note(name.location),
        "ray": view.as_json() if view else None,
        "ray_problem": problem,
    }


def _pool_table(head: Pool, workers: list[Pool]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("pool")
    table.add_column("machines", justify="right")
    for column in ("type", "GPUs each", "disk GB"):
        table.add_column(column)
    table.add_column("cost", justify="right")
    for number, pool in enumerate([head, *workers]):
        count = f"{pool.replicas} to {pool.most}" if pool.most else str(pool.replicas)
        gpus = f"{pool.accelerator_count} {pool.accelerator_type}" if pool.accelerator_type else ""
        role = f"workers {number}" if number else "head"
        table.add_row(role, count, pool.machine_type, gpus, str(pool.disk_gb), pools_cost([pool]).show())
    return table
