"""`tune-whisper cluster`: what a Ray cluster has; on Vertex AI also scaling, creating and deleting one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.commands.options import Parser, add_vertex

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources
    from rich.console import Console

    from tune.remote.vertex import ClusterName
    from tune.remote.view import ClusterView

_EPILOG = """\
on Vertex AI (pip install 'tune-whisper[vertex]'):
  tune-whisper cluster create FILE.yaml                            create a cluster
  tune-whisper cluster scale --address vertex_ray://NAME --workers N   more or fewer workers
  tune-whisper cluster delete vertex_ray://NAME                    delete a cluster
  each has its own --help, says what it will do and where prices are, and asks
"""


def cluster_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper cluster`."""
    parser = Parser(
        prog="tune-whisper cluster",
        description="Show a Ray cluster: nodes, CPUs, GPUs, what is free, and whether its versions are ours.",
        epilog=_EPILOG,
    )
    _add_address(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def scale_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper cluster scale`."""
    parser = Parser(
        prog="tune-whisper cluster scale",
        description="Give a worker pool of a cluster on Vertex AI more or fewer machines.",
    )
    _add_address(parser)
    parser.add_argument(
        "--workers", type=int, required=True, metavar="N", help="machines that the pool shall have"
    )
    parser.add_argument(
        "--pool", type=int, metavar="I", help="which pool, from 1 (needed where there are several)"
    )
    _add_price(parser, "one of the pool's machines")
    _add_yes(parser)
    return parser


def create_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper cluster create`."""
    parser = Parser(
        prog="tune-whisper cluster create",
        description="Create a Ray cluster on Vertex AI from a YAML file; waits until it runs.",
    )
    parser.add_argument("file", metavar="FILE", help="as docs/vertex_cluster.yaml")
    add_vertex(parser)
    _add_price(parser, "the whole cluster")
    _add_yes(parser)
    return parser


def delete_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper cluster delete`."""
    parser = Parser(prog="tune-whisper cluster delete", description="Delete a Ray cluster on Vertex AI.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="name, or vertex_ray:// address")
    _add_address(parser)
    _add_yes(parser)
    return parser


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        metavar="A",
        help="http://HEAD:8265, vertex_ray://NAME, or on a node of it HEAD:6379 or auto (default: $RAY_ADDRESS)",
    )
    add_vertex(parser)


def _add_price(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--price-per-hour", type=float, metavar="USD", help=f"what {what} costs you, to be told with it"
    )


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")


def cluster(words: list[str]) -> int:
    """Run `tune-whisper cluster ...`; returns the exit code."""
    actions = {"scale": _scale, "create": _create, "delete": _delete}
    if words and words[0] in actions:
        return actions[words[0]](words[1:])
    return _show(cluster_parser().parse_args(words))


def _address(arguments: argparse.Namespace) -> str:
    from tune.remote.joining import ClusterError

    address = arguments.address or os.environ.get("RAY_ADDRESS")
    if not address:
        raise ClusterError(
            "--address: missing; give http://HEAD:8265, vertex_ray://NAME, HEAD:6379 or auto, or set RAY_ADDRESS"
        )
    return str(address)


def _show(arguments: argparse.Namespace) -> int:
    from tune.util.console import make_console

    address = _address(arguments)
    console = make_console()
    if address.startswith("vertex_ray://"):
        _show_vertex(address, arguments, console)
        return 0

    from tune.remote.joining import read_by_joining
    from tune.remote.view import print_cluster, read_dashboard

    if "://" in address:
        from tune.remote.client import cluster_address, connect

        address = cluster_address(address)
        view = read_dashboard(connect(address), address)
    else:
        view = read_by_joining(address)
    if arguments.json:
        print_json(view.as_json())
    else:
        print_cluster(view, console)
    return 0


def print_json(value: dict[str, Any]) -> None:
    """Print for programs."""
    print(json.dumps(value, indent=2))


def _show_vertex(address: str, arguments: argparse.Namespace, console: Console) -> None:
    """What a cluster on Vertex AI is: state, versions, pools; and where it runs, Ray's own view of its nodes."""
    from tune.remote.vertex import cluster_name, get_cluster, version_difference
    from tune.remote.vertex_clusters import PRICES, pool_lines
    from tune.remote.view import print_cluster
    from tune.util.console import say

    name = cluster_name(address, arguments.project, arguments.location)
    cluster = get_cluster(name)
    view, problem = _nodes(name, cluster)
    ray_version, python_version = cluster.ray_version, cluster.python_version
    dashboard = f"https://{cluster.dashboard_address}" if cluster.dashboard_address else None
    pools = [cluster.head_node_type, *cluster.worker_node_types]
    if arguments.json:
        print_json(
            {
                **dataclasses.asdict(name),
                **{"state": cluster.state, "ray_version": ray_version, "python_version": python_version},
                **{"dashboard": dashboard, "pools": [_pool_json(pool) for pool in pools]},
                **{"ray": view.as_json() if view else None, "ray_problem": problem},
            }
        )
        return
    say(console, f"cluster   {name.name} in {name.project}, {name.location}: {cluster.state}")
    image = " (by its image, which is custom)" if ray_version is None else ""
    say(console, f"versions  Ray {ray_version or 'unknown'}, Python {python_version or 'unknown'}{image}")
    say(console, f"dashboard {dashboard or 'none yet'}")
    for line in pool_lines(pools[0], pools[1:]):
        say(console, line)
    say(console, f"prices: {PRICES}")
    if view is not None:
        say(console, "")
        print_cluster(view, console)
    else:
        say(console, version_difference(cluster) or "Ray and Python as here" if ray_version else "")
        say(console, f"nodes: not known: {problem}")


def _nodes(name: ClusterName, cluster: Cluster) -> tuple[ClusterView | None, str | None]:
    """Ray's own view; else why there is none. Looking needs no equal versions, unlike sending a job."""
    from tune.remote.vertex import dashboard_client
    from tune.remote.view import read_dashboard
    from tune.util.errors import UserError

    if cluster.state != "RUNNING":
        return None, f"the cluster is {cluster.state}"
    try:
        return read_dashboard(dashboard_client(name), name.address), None
    except UserError as error:
        return None, str(error)


def _pool_json(pool: Resources) -> dict[str, Any]:
    from tune.remote.vertex_clusters import fewest_nodes, most_nodes

    return {
        **{"machine_type": pool.machine_type, "accelerator_type": pool.accelerator_type},
        **{"accelerator_count": pool.accelerator_count or 0},
        **{"replicas": fewest_nodes(pool), "most": most_nodes(pool)},
        **{"disk_gb": pool.boot_disk_size_gb, "image": pool.custom_image},
    }


def _confirmed(console: Console, question: str, *, yes: bool) -> bool:
    """Ask y/N on a terminal, and say where nothing is done; raises `VertexError` where there is none to ask on."""
    from tune.remote.vertex import VertexError
    from tune.util.console import say

    if yes:
        return True
    if not sys.stdin.isatty():
        raise VertexError(f"{question} Nobody can be asked here; nothing was done; add --yes to do it")
    say(console, f"{question} [y/N]")
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say(console, "nothing was done")
    return agreed


def _scale(words: list[str]) -> int:
    """Give a worker pool another number of machines and wait until it has them."""
    arguments = scale_parser().parse_args(words)
    from tune.remote.vertex import cluster_name, get_cluster, open_sdk, quiet_sdk, sdk_errors
    from tune.remote.vertex_clusters import check_workers, describe_pool, find_pool, prices_line
    from tune.util.console import make_console, say

    name = cluster_name(_address(arguments), arguments.project, arguments.location)
    cluster = get_cluster(name)
    pools, workers, console = list(cluster.worker_node_types), arguments.workers, make_console()
    index = find_pool(pools, arguments.pool)
    check_workers(cluster, pools[index], workers)
    before, machines = describe_pool(pools[index]), pools[index].node_count
    prices = prices_line(arguments.price_per_hour, machines, workers)
    if workers == machines:
        say(console, f"{name.name} has {before} already; nothing to do")
        return 0
    pools[index] = dataclasses.replace(pools[index], node_count=workers)
    after = describe_pool(pools[index])
    say(console, f"{name.name}: {before} → {after}\n{prices}")
    if _confirmed(console, f"Scale {name.name} ({before} → {after})?", yes=arguments.yes):
        say(console, "scaling; this takes minutes ...")
        vertex_ray = open_sdk(name.project, name.location)
        with sdk_errors(name), quiet_sdk():
            vertex_ray.update_ray_cluster(name.resource, pools)
        say(console, f"{name.name} has {after} now")
    return 0


def _create(words: list[str]) -> int:
    """Create a cluster and wait until it runs."""
    arguments = create_parser().parse_args(words)
    from tune.remote.vertex import (
        SCHEME,
        ClusterName,
        find_location,
        find_project,
        open_sdk,
        quiet_sdk,
        sdk_errors,
    )
    from tune.remote.vertex_clusters import (
        describe_pool,
        pool_lines,
        prices_line,
        read_cluster_file,
        versions_of,
    )
    from tune.util.console import make_console, say

    prices, console = prices_line(arguments.price_per_hour, 1), make_console()
    file = read_cluster_file(Path(arguments.file))
    project = find_project(arguments.project or file.project)
    name = ClusterName(project, find_location(arguments.location or file.location), file.name)
    vertex_ray = open_sdk(name.project, name.location)
    ray_version, python_version = versions_of(file)
    place = f"{name.name} in {name.project}, {name.location}"
    say(console, f"cluster {place}: Ray {ray_version}, Python {python_version}")
    for line in (*pool_lines(file.head, file.workers), prices):
        say(console, line)
    pools = ", ".join(map(describe_pool, (file.head, *file.workers)))
    question = f"Create {name.name} ({pools}), which costs until it is deleted?"
    if not _confirmed(console, question, yes=arguments.yes):
        return 0
    end = f"tune-whisper cluster delete {name.name} --project {name.project} --location {name.location}"
    say(console, "creating; this takes 10 to 20 minutes ...")
    try:
        with sdk_errors(name), quiet_sdk(progress=True):
            vertex_ray.create_ray_cluster(
                head_node_type=file.head,
                worker_node_types=file.workers,
                ray_version=ray_version,
                python_version=python_version,
                network=file.network,
                service_account=file.service_account,
                cluster_name=file.name,
                labels=file.labels or None,
            )
    except KeyboardInterrupt:
        say(console, f"the cluster is still being created and will cost; {end} deletes it")
        raise
    say(console, f"running; use it with --address {SCHEME}{name.name}; {end} ends the cost")
    return 0


def _delete(words: list[str]) -> int:
    """Delete a cluster, whatever runs on it."""
    arguments = delete_parser().parse_args(words)
    from tune.remote.vertex import VertexError, cluster_name, get_cluster, open_sdk, quiet_sdk, sdk_errors
    from tune.remote.vertex_clusters import describe_pool
    from tune.util.console import make_console, say

    # Not from RAY_ADDRESS: what is deleted is named.
    named = [text for text in (arguments.name, arguments.address) if text]
    if len(named) != 1:
        raise VertexError("NAME or --address: give one of them, the cluster to delete")
    name = cluster_name(named[0], arguments.project, arguments.location)
    cluster, console = get_cluster(name), make_console()
    workers = ", ".join(map(describe_pool, cluster.worker_node_types)) or "no workers"
    pools = f"{describe_pool(cluster.head_node_type)} and {workers}"
    say(console, f"{name.name} in {name.project}, {name.location}: {cluster.state}, {pools}")
    say(console, "what it costs ends; so do searches on it, and what is on its disks is lost")
    if _confirmed(console, f"Delete {name.name} ({pools})?", yes=arguments.yes):
        vertex_ray = open_sdk(name.project, name.location)
        with sdk_errors(name), quiet_sdk():
            vertex_ray.delete_ray_cluster(name.resource)
        say(console, f"{name.name} is being deleted; it takes minutes until it is gone")
    return 0
