"""Starting or joining Ray, noticing when its head is gone, and what its nodes have."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.command import EXIT_FAILED
from trainer.memory import BF16_CAPABILITY, gpu_capability
from tune.cluster.resources import Node
from tune.util.console import say
from tune.util.environment import changed_environment, worker_environment
from tune.util.errors import ResourceError
from tune.util.redact import hide_password

_PROBE_SECONDS = 5.0
_NODE_SECONDS = 60.0
"""Nodes that have not answered within it are not waited for."""
_SOME_GPU = 0.001
"""Enough of a GPU to see it."""
_LOOK_SECONDS = 1.0
"""From one look for the head to the next."""
_PATIENCE = 30.0
"""A head that is restarted with its state elsewhere (Ray's fault tolerance of the GCS) comes back within it."""
_PENDING = "TUNE_MAX_PENDING_TRIALS_PG"
_MOST_PENDING = 8
"""Trials whose processes start at once; all of them are proposed before the first one starts."""
_OWN_PATIENCE = 5.0
"""The head that a search has started for itself does not come back."""
_SESSION = "/ray/session_2000-01-01_00-00-00_000000_{}/sockets/plasma_store"
"""Where Ray makes its sockets; behind the date stands its process."""
_LONGEST_SOCKET = 107
"""Bytes of a path that Unix takes for one."""


@contextlib.contextmanager
def ray_session(console: Console, address: str | None = None) -> Iterator[None]:
    """Ray, quiet, for the length of the block: the cluster at `address`, at `$RAY_ADDRESS`, or one of its own.

    Raises:
        ResourceError: there is no such cluster, or it runs another version.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own table would print over ours, also with verbose=0.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # Our own callbacks write what there is to keep; Ray's would add CSV, JSON and TensorBoard files to each trial.
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    # Trials save where they are before Tune ends them.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    # Nor is its own state of the experiment ever read: a search goes on from its log.
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "inf")
    # A raylet ends itself, and so the search, where its agent was not up within 30 s: others compute, the disk is slow.
    os.environ.setdefault("RAY_agent_register_timeout_ms", "180000")
    address = checked_address(address)
    # Failed trials are told on the screen in a line and in full in their folder.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    # A search proposes no more trials than there is room for. Where that room is ours alone, they start at once: Tune
    # would ask for the next trial only once the one before has its process.
    at_once = {} if address != "local" or _PENDING in os.environ else {_PENDING: str(_MOST_PENDING)}
    with changed_environment(at_once):
        _join(address, console)
        import ray

        # A cluster's scheduler ends a job with SIGTERM; Ray's own handler would abort and lose what was found.
        before = signal.signal(signal.SIGTERM, _as_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            ray.shutdown()


def joined_address(asked: str | None) -> str:
    """Where Ray is joined: as asked, else `$RAY_ADDRESS`, else `local`, which starts one."""
    return asked or os.environ.get("RAY_ADDRESS") or "local"


def checked_address(asked: str | None) -> str:
    """Where Ray is joined, and can be.

    Raises:
        ResourceError: it is one for jobs or of Ray's client, or nothing listens there; or Ray, started here, could not
            make its sockets.
    """
    address = joined_address(asked)
    if address == "local":
        if len(os.fsencode(_temp_folder() + _SESSION.format(os.getpid()))) > _LONGEST_SOCKET:
            raise _no_start("the paths of its sockets would be too long")
    elif address != "auto" and (problem := _problem_of(address)):
        shown = hide_password(address)
        if asked:
            raise ResourceError(f"--address {shown}: {problem}")
        raise ResourceError(f"RAY_ADDRESS={shown}: {problem}; or unset RAY_ADDRESS, and Ray starts here")
    return address


def _temp_folder() -> str:
    """Where Ray keeps its files, by its own rule."""
    return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"


def _no_start(reason: str) -> ResourceError:
    return ResourceError(
        f"Ray cannot be started with its files in {_temp_folder()}/ray: {reason}; set RAY_TMPDIR to a folder of yours "
        "with a short path"
    )


def _as_interrupt(number: int, frame: Any) -> None:
    """Do on SIGTERM what is done on SIGINT now: while trials run, they save where they are and end.

    Not by sending SIGINT, which is ignored by whatever a shell started in the background.
    """
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


def _problem_of(address: str) -> str | None:
    """Why no Ray can be joined at an address; None where one seems to listen."""
    if "://" in address:
        return (
            "start a search on a node of the cluster, with HOST:6379 or auto; from elsewhere use "
            "tune-whisper submit --address http://HOST:8265 (or vertex_ray://NAME) -- ..."
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return "must be HOST:PORT as ray start printed it (port 6379), or auto"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS) as probe:
            if not _speaks_http(probe):
                return None
    except OSError as error:
        return f"no Ray cluster answers ({error.strerror or error}); ray start --head starts one"
    return (
        "is a web server, probably Ray's dashboard; give HOST:6379 to join the cluster, or send a job with "
        f"tune-whisper submit --address http://{address} -- ..."
    )


def _speaks_http(probe: socket.socket) -> bool:
    """Whether a web server answers, as Ray's dashboard does; Ray's own service speaks gRPC."""
    probe.settimeout(1.0)
    try:
        probe.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def _join(address: str, console: Console) -> None:
    import ray

    # Only this process writes to MLflow; no worker gets to see the store's credentials. A trial that is stopped
    # leaves its thread by itself; the default waits 2 s for it, too short after a save.
    variables = {**worker_environment(), "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30"}
    local = address == "local"
    # A Ray of our own passes its environment on. A runtime environment would cost a process that makes it, and
    # the workers that Ray starts beforehand: 3 s.
    how: dict[str, Any] = {"include_dashboard": False} if local else {"runtime_env": {"env_vars": variables}}
    with console.status("starting Ray ..." if local else f"joining Ray at {address} ..."):
        try:
            with changed_environment(variables if local else {}):
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **how)
        except (OSError, RuntimeError) as error:
            reason = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:4])
            if local:
                raise _no_start(reason) from error
            raise ResourceError(f"--address {address}: cannot be joined: {reason}") from error
    if address != "local":
        nodes = alive_nodes()
        totals = ", ".join(
            f"{sum(node.get(kind, 0.0) for node in nodes):g} {kind}s" for kind in ("GPU", "CPU")
        )
        say(console, f"joined Ray at {address}: {len(nodes)} nodes, {totals}")
        if not any(node.get("GPU") for node in nodes):
            text = "no node has a GPU: trainings run on CPUs; if GPU nodes are still starting, wait for them"
            console.print(f"[yellow]{text}[/]")


@contextlib.contextmanager
def head_watched(advice: str, *, own: bool) -> Iterator[None]:
    """End this process with one line on stderr where Ray's head does not answer during the block.

    Any call to a head that is lost stands still inside of Ray, out of reach of Python's exceptions and signals,
    until Ray itself aborts the process after a minute, with words about its own insides. So a thread ends it, as
    SIGKILL would: all that a search needs to go on is on disk at any moment.

    Args:
        advice: what to do, the line's end.
        own: whether this process has started the head.
    """
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    lost = f"error: Ray's head at {host}:{port} is gone; {advice}"
    done, patience = threading.Event(), _OWN_PATIENCE if own else _PATIENCE

    def watch() -> None:
        answered = time.monotonic()
        while not done.wait(_LOOK_SECONDS):
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
                answered = time.monotonic()
            except OSError:
                if time.monotonic() - answered >= patience:
                    print(lost, file=sys.stderr, flush=True)
                    sys.stdout.flush()
                    os._exit(EXIT_FAILED)

    threading.Thread(target=watch, name="head-watch", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def alive_nodes() -> list[Node]:
    """The resources of every node that is up now."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def gpu_precision() -> str:
    """What `precision: auto` is for trials on any of the nodes that have GPUs now; `auto` where none says."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    capabilities = _on_nodes(nodes, gpu_capability, num_gpus=_SOME_GPU).values()
    known = [capability for capability in capabilities if capability is not None]
    if not known:
        return "auto"
    return "bf16" if min(known) >= BF16_CAPABILITY else "fp16"


def check_shared(folder: Path, storage: str) -> None:
    """Check that every node sees `folder`, which is made where there are several, by a file in it.

    Raises:
        ResourceError: trials on some nodes could not read and keep anything there.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if not others:
        return
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f".seen-{uuid.uuid4().hex}"
    token.touch()
    try:
        seen = _on_nodes(others, os.path.exists, str(token))
    finally:
        token.unlink()
    blind = [address for address, sees in seen.items() if not sees]
    if blind:
        raise ResourceError(
            f"--storage {storage}: is not seen by the node{'s' if len(blind) > 1 else ''} {', '.join(blind)}; give a "
            "folder that all nodes share, or s3://bucket/prefix or gs://bucket/prefix"
        )


def _on_nodes(
    nodes: Sequence[Mapping[str, Any]], work: Callable[..., Any], *arguments: Any, num_gpus: float = 0
) -> dict[str, Any]:
    """What `work` returns on each of Ray's nodes, by its address, without those that do not answer in time or leave."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        remote = ray.remote(num_cpus=0, num_gpus=num_gpus, max_retries=0, scheduling_strategy=there)
        asked[remote(work).remote(*arguments)] = node["NodeManagerAddress"]
    done, waiting = ray.wait([*asked], num_returns=len(asked), timeout=_NODE_SECONDS) if asked else ([], [])
    for task in waiting:
        ray.cancel(task)
    results = {}
    for task in done:
        try:
            results[asked[task]] = ray.get(task)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:  # a node that is just leaving
            continue
    return results


def this_machine() -> dict[str, float]:
    """CPUs and GPUs here, as Ray would count them, without starting it."""
    import torch

    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}
