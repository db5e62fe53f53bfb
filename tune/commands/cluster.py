"""`tune-whisper cluster`: what a Ray cluster has; on Vertex AI also creating, scaling and deleting one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainer.errors import ConfigError
from tune.commands.jobs import connect_to
from tune.commands.options import Parser, add_dashboard, add_vertex
from tune.remote.vertex import vertex_sdk
from tune.remote.view import print_cluster, read_cluster
from tune.util.console import make_console, say
from tune.util.errors import first_line

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Resources
    from rich.console import Console

_PRICES = "prices: https://cloud.google.com/vertex-ai/pricing"


def cluster_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper cluster",
        description="Show a Ray cluster: its nodes, CPUs and GPUs, and whether its Ray and Python are those of this "
        "machine.",
    )
    parser.set_defaults(run=_show)
    add_dashboard(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(
        title="on Vertex AI (pip install 'tune-whisper[vertex]'), by Google's SDK",
        description="Each shows what it will do and asks for confirmation.",
        metavar="ACTION",
    )
    for run, what in (
        (_create, "create a Ray cluster from a YAML file; waits until it runs"),
        (_scale, "change the number of workers of a cluster; waits until they are ready"),
        (_delete, "delete a cluster, even if searches are running on it"),
    ):
        # What is given before the action stays: an option has no default behind it.
        action = actions.add_parser(
            run.__name__[1:], help=what, description=what, argument_default=argparse.SUPPRESS
        )
        action.set_defaults(run=run)
        add_vertex(action)
        add = action.add_argument
        add("--yes", action="store_true", default=False, help="do not ask for confirmation")
        if run == _create:
            add(
                "file", type=Path, metavar="FILE", help="cluster file; docs/vertex_cluster.yaml is an example"
            )
        else:
            add("name", metavar="NAME", help="name, or vertex_ray:// address")
        if run == _scale:
            workers_help = "new number of machines, one number for each worker pool"
            add("--workers", type=int, nargs="+", required=True, metavar="N", help=workers_help)
    return parser


def cluster(words: list[str]) -> int:
    parser = cluster_parser()
    arguments = parser.parse_args(words)
    if arguments.run is not _show and (arguments.json or arguments.address):
        parser.error("--address and --json: create, scale and delete do not take them; leave them out")
    arguments.run(arguments, make_console())
    return 0


def _show(arguments: argparse.Namespace, console: Console) -> None:
    view = read_cluster(connect_to(arguments))
    if arguments.json:
        print(json.dumps(dataclasses.asdict(view), indent=2))
    else:
        print_cluster(view, console)


def _create(arguments: argparse.Namespace, console: Console) -> None:
    """Give the SDK's `create_ray_cluster` what a file says, in the SDK's own words."""
    file = _read(arguments.file)
    name = file["cluster_name"]
    with vertex_sdk(name, arguments.project, arguments.location) as (vertex_ray, full_name):
        head = _pool(vertex_ray, file.pop("head_node_type"))
        workers = [_pool(vertex_ray, each) for each in file.pop("worker_node_types")]
        say(
            console,
            f"{full_name}: the head {_described(head)}; workers {', '.join(map(_described, workers))}; {_PRICES}",
        )
        if _confirmed(console, f"Create {name}? It costs money until it is deleted.", yes=arguments.yes):
            say(console, "creating; this takes 10 to 20 minutes, even if this command is interrupted ...")
            vertex_ray.create_ray_cluster(head_node_type=head, worker_node_types=workers, **file)
            say(
                console,
                f"running: --address vertex_ray://{name}; it costs money until tune-whisper cluster delete {name}",
            )


def _read(path: Path) -> dict[str, Any]:
    """The arguments of `create_ray_cluster` in a YAML file, with those that say what it will cost."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({first_line(error)})") from error
    needed = ("cluster_name", "head_node_type", "worker_node_types")
    missing = [key for key in needed if not isinstance(content, dict) or key not in content]
    if missing:
        raise ConfigError(f"{path}: {missing[0]}: is missing; docs/vertex_cluster.yaml is a complete example")
    found: dict[str, Any] = content
    return found


def _pool(vertex_ray: Any, content: dict[str, Any]) -> Resources:
    pool: Resources = vertex_ray.Resources(**content)
    if pool.autoscaling_spec is not None:
        pool.autoscaling_spec = vertex_ray.AutoscalingSpec(**content["autoscaling_spec"])
    return pool


def _described(pool: Resources) -> str:
    """As `4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each`."""
    scaling = pool.autoscaling_spec
    count = f"{scaling.min_replica_count} to {scaling.max_replica_count}" if scaling else str(pool.node_count)
    gpus = f" with {pool.accelerator_count} {pool.accelerator_type} each" if pool.accelerator_type else ""
    return f"{count} {pool.machine_type}{gpus}"


def _scale(arguments: argparse.Namespace, console: Console) -> None:
    name, workers = arguments.name, arguments.workers
    with vertex_sdk(name, arguments.project, arguments.location) as (vertex_ray, full_name):
        pools = vertex_ray.get_ray_cluster(full_name).worker_node_types
        before = ", ".join(map(_described, pools))
        # The SDK would do nothing for 0, and say that it had; a pool merged with the head's could never grow again.
        if len(pools) != len(workers) or min(workers) < 1:
            raise ConfigError(f"--workers: give a number of at least 1 for each pool; there are {before}")
        for pool, count in zip(pools, workers, strict=True):
            pool.node_count = count
        after = ", ".join(map(_described, pools))
        if _confirmed(console, f"{_PRICES}\nScale {name} ({before} → {after})?", yes=arguments.yes):
            vertex_ray.update_ray_cluster(full_name, pools)
            say(console, f"{name} has {after} now")


def _delete(arguments: argparse.Namespace, console: Console) -> None:
    with vertex_sdk(arguments.name, arguments.project, arguments.location) as (vertex_ray, full_name):
        question = f"Delete {full_name}, with all running searches and all files on its disks?"
        if _confirmed(console, question, yes=arguments.yes):
            vertex_ray.delete_ray_cluster(full_name)
            say(console, "it is being deleted, which takes some minutes")


def _confirmed(console: Console, question: str, *, yes: bool) -> bool:
    """Ask y/N on a terminal, and say where nothing is done; raises `ConfigError` where there is none to ask on."""
    say(console, question if yes else f"{question} [y/N]")
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError("cannot ask for confirmation without a terminal; nothing was done; add --yes")
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say(console, "nothing was done")
    return agreed
