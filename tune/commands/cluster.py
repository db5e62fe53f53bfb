"""`tune-whisper cluster`: what a Ray cluster has; on Vertex AI also scaling, creating and deleting one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tune.commands.options import Parser, add_vertex
from tune.util.errors import ConfigError, UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources
    from rich.console import Console

_EPILOG = """\
on Vertex AI (pip install 'tune-whisper[vertex]'):
  tune-whisper cluster create FILE.yaml                            create a cluster
  tune-whisper cluster scale --address vertex_ray://NAME --workers N   more or fewer workers
  tune-whisper cluster delete vertex_ray://NAME                    delete a cluster
  each has its own --help, says what it will do and where prices are, and asks
"""


_ACTIONS = {
    "": "Show a Ray cluster: nodes, CPUs, GPUs, and whether its versions are ours.",
    "scale": "Give a worker pool of a cluster on Vertex AI more or fewer machines.",
    "create": "Create a Ray cluster on Vertex AI from a YAML file; waits until it runs.",
    "delete": "Delete a Ray cluster on Vertex AI.",
}


def cluster_parser(action: str = "") -> argparse.ArgumentParser:
    """Arguments of `tune-whisper cluster ACTION`."""
    parser = Parser(
        prog=f"tune-whisper cluster {action}".strip(),
        description=_ACTIONS[action],
        epilog=None if action else _EPILOG,
    )
    if action == "create":
        parser.add_argument("file", metavar="FILE", help="as docs/vertex_cluster.yaml")
    elif action == "delete":  # not from RAY_ADDRESS: what is deleted is named
        parser.add_argument("address", metavar="NAME", help="name, or vertex_ray:// address")
    else:
        parser.add_argument(
            "--address",
            metavar="A",
            help="http://HEAD:8265, vertex_ray://NAME, or on a node of it HEAD:6379 or auto (default: $RAY_ADDRESS)",
        )
    add_vertex(parser)
    if action == "scale":
        parser.add_argument(
            "--workers", type=int, required=True, metavar="N", help="machines that the pool shall have"
        )
        parser.add_argument(
            "--pool", type=int, metavar="I", help="which pool, from 1 (needed where there are several)"
        )
    if action:
        parser.add_argument("--yes", action="store_true", help="do not ask")
    else:
        parser.add_argument("--json", action="store_true", help="for programs")
    return parser


def cluster(words: list[str]) -> int:
    """Run `tune-whisper cluster ...`; returns the exit code."""
    from tune.util.console import make_console

    action = words[0] if words and words[0] in _ACTIONS else ""
    run = {"scale": _scale, "create": _create, "delete": _delete}.get(action, _show)
    run(cluster_parser(action).parse_args(words[bool(action) :]), make_console())
    return 0


def _address(arguments: argparse.Namespace) -> str:
    address = arguments.address or os.environ.get("RAY_ADDRESS")
    if not address:
        raise ConfigError(
            "--address: missing; give http://HEAD:8265, vertex_ray://NAME, HEAD:6379 or auto, or set RAY_ADDRESS"
        )
    if address == "local":  # with which a search starts a Ray of its own
        raise ConfigError("--address local: must be http://HEAD:8265, vertex_ray://NAME, HEAD:6379 or auto")
    return str(address)


def _show(arguments: argparse.Namespace, console: Console) -> None:
    """What a cluster has; on Vertex AI also its state, versions and pools, and these alone where it does not run."""
    address = _address(arguments)
    if address.startswith("vertex_ray://"):
        _show_vertex(address, arguments, console)
        return
    from tune.remote.view import print_cluster, read_dashboard, read_joined

    if "://" in address:
        from tune.remote.client import cluster_address, connect

        address = cluster_address(address)
        view = read_dashboard(connect(address), address)
    else:
        from rich.console import Console

        from tune.cluster.session import ray_session

        with ray_session(Console(quiet=True), address):
            view = read_joined(address)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(view), indent=2))
    else:
        print_cluster(view, console)


def _show_vertex(address: str, arguments: argparse.Namespace, console: Console) -> None:
    from tune.remote.vertex import cluster_name, dashboard_client, get_cluster
    from tune.remote.view import print_cluster, read_dashboard
    from tune.util.console import say

    name = cluster_name(address, arguments.project, arguments.location)
    cluster = get_cluster(name)
    view, problem = None, f"the cluster is {cluster.state}"
    if cluster.state == "RUNNING":
        try:  # looking needs no equal versions, unlike sending a job
            view = read_dashboard(dashboard_client(name), address)
        except UserError as error:
            problem = str(error)
    if arguments.json:
        keys = ("state", "ray_version", "python_version", "dashboard_address")
        shown = {"cluster_resource_name": name.resource} | {key: getattr(cluster, key) for key in keys}
        shown["head_node_type"] = dataclasses.asdict(cluster.head_node_type)
        shown["worker_node_types"] = [dataclasses.asdict(pool) for pool in cluster.worker_node_types]
        shown["ray"] = dataclasses.asdict(view) if view else None
        shown["ray_problem"] = None if view else problem
        print(json.dumps(shown, indent=2))
        return
    ray_version, python_version = cluster.ray_version or "unknown", cluster.python_version or "unknown"
    say(console, f"cluster   {name}: {cluster.state}\nversions  Ray {ray_version}, Python {python_version}")
    dashboard = f"https://{cluster.dashboard_address}" if cluster.dashboard_address else "none yet"
    say(console, f"dashboard {dashboard}")
    _say_pools(console, cluster.head_node_type, *cluster.worker_node_types)
    if view is not None:
        say(console, "")
        print_cluster(view, console)
    else:
        say(console, f"nodes: not known: {problem}")


def _say_pools(console: Console, head: Resources, *workers: Resources) -> None:
    """A line for each pool, as `  workers  4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each, 200 GB disk each`."""
    from tune.remote.vertex import describe_pool
    from tune.util.console import say

    for pool in (head, *workers):
        role = "head" if pool is head else "workers"
        say(console, f"  {role:<8} {describe_pool(pool)}, {pool.boot_disk_size_gb} GB disk each")
    say(console, "prices: https://cloud.google.com/vertex-ai/pricing")


def _confirmed(console: Console, question: str, *, yes: bool) -> bool:
    """Ask y/N on a terminal, and say where nothing is done; raises `ConfigError` where there is none to ask on."""
    from tune.util.console import say

    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can be asked here; nothing was done; add --yes to do it")
    say(console, f"{question} [y/N]")
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say(console, "nothing was done")
    return agreed


def _scale(arguments: argparse.Namespace, console: Console) -> None:
    """Give a worker pool another number of machines and wait until it has them."""
    from tune.remote.vertex import cluster_name, describe_pool, get_cluster, vertex_sdk
    from tune.util.console import say

    name = cluster_name(_address(arguments), arguments.project, arguments.location)
    cluster, workers = get_cluster(name), arguments.workers
    index = _pool_index(cluster, workers, arguments.pool)
    _say_pools(console, cluster.head_node_type, *cluster.worker_node_types)
    before = describe_pool(cluster.worker_node_types[index])
    cluster.worker_node_types[index].node_count = workers
    after = describe_pool(cluster.worker_node_types[index])
    if _confirmed(console, f"Scale {name.name} ({before} → {after})?", yes=arguments.yes):
        say(console, "scaling; this takes minutes ...")
        with vertex_sdk(name) as vertex_ray:
            vertex_ray.update_ray_cluster(name.resource, cluster.worker_node_types)
        say(console, f"{name.name} has {after} now")


def _pool_index(cluster: Cluster, workers: int, number: int | None) -> int:
    """The index of the pool that `--pool` names, by default the only one; it can have so many machines."""
    from tune.remote.vertex import describe_pool

    pools = cluster.worker_node_types
    listed = "; ".join(f"{i}: {describe_pool(pool)}" for i, pool in enumerate(pools, start=1))
    problem = None
    if cluster.state != "RUNNING":
        problem = f"the cluster is {cluster.state}; only a RUNNING one can be scaled"
    elif number not in range(1, len(pools) + 1) and (number is not None or len(pools) != 1):
        problem = f"give one of the cluster's worker pools by --pool: {listed or 'there are none'}"
    elif pools[(number or 1) - 1].autoscaling_spec:
        problem = f"the pool scales itself ({listed}); nothing to set by hand"
    elif workers < 1:
        # The SDK would do nothing for 0, and say that it had; a pool merged with the head's could never grow again.
        problem = "a pool keeps at least 1 machine; to stop all cost delete the cluster"
    if problem:
        raise ConfigError(f"--workers {workers}: {problem}")
    return (number or 1) - 1


def _create(arguments: argparse.Namespace, console: Console) -> None:
    """Create a cluster and wait until it runs."""
    import ray

    from tune.remote.client import minor
    from tune.remote.vertex import cluster_name, read_cluster_file, vertex_sdk
    from tune.util.console import say

    file = read_cluster_file(Path(arguments.file))
    project, location = arguments.project or file.get("project"), arguments.location or file.get("location")
    name = cluster_name(file["name"], project, location)
    versions = {
        "ray_version": file.get("ray_version") or minor(ray.__version__),
        "python_version": file.get("python_version") or minor(platform.python_version()),
    }
    say(console, f"cluster {name}: Ray {versions['ray_version']}, Python {versions['python_version']}")
    _say_pools(console, file["head"], *file["workers"])
    if not _confirmed(console, f"Create {name.name}, which costs until it is deleted?", yes=arguments.yes):
        return
    end = f"tune-whisper cluster delete {name.name} --project {name.project} --location {name.location}"
    say(console, "creating; this takes 10 to 20 minutes ...")
    try:
        with vertex_sdk(name, progress=True) as vertex_ray:
            vertex_ray.create_ray_cluster(
                cluster_name=name.name,
                head_node_type=file["head"],
                worker_node_types=file["workers"],
                network=file.get("network"),
                service_account=file.get("service_account"),
                labels=file.get("labels"),
                **versions,
            )
    except KeyboardInterrupt:
        say(console, f"the cluster is still being created and will cost; {end} deletes it")
        raise
    say(console, f"running; use it with --address vertex_ray://{name.name}; {end} ends the cost")


def _delete(arguments: argparse.Namespace, console: Console) -> None:
    """Delete a cluster, whatever runs on it."""
    from tune.remote.vertex import cluster_name, get_cluster, vertex_sdk
    from tune.util.console import say

    name = cluster_name(arguments.address, arguments.project, arguments.location)
    cluster = get_cluster(name)
    say(console, f"cluster {name}: {cluster.state}")
    _say_pools(console, cluster.head_node_type, *cluster.worker_node_types)
    say(console, "what it costs ends; so do searches on it, and what is on its disks is lost")
    if _confirmed(console, f"Delete {name.name}?", yes=arguments.yes):
        with vertex_sdk(name) as vertex_ray:
            vertex_ray.delete_ray_cluster(name.resource)
        say(console, f"{name.name} is being deleted; it takes minutes until it is gone")
