"""A Ray cluster of two nodes on this machine, where the second does not see some of the first one's folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import ray
from processes import ray_command

ROOT = Path(__file__).resolve().parents[3]


def need_namespaces() -> None:
    """Skip where a process may not have mounts of its own."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs the right to unshare mounts (root on Linux), to hide folders from a node")


@contextlib.contextmanager
def two_nodes(hidden: Sequence[Path], home: Path, *, head_cpus: int, second_cpus: int) -> Iterator[None]:
    """The cluster, joined by this process from its first node; it is gone in the end, and no other Ray is touched.

    Args:
        hidden: existing folders that are empty for the second node.
        home: home of both nodes; its cache must be among `hidden` to be another one there.
        head_cpus: CPUs of the first node, where the test runs.
        second_cpus: CPUs of the second node.
    """
    need_namespaces()
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    ray.shutdown()  # whatever an earlier test left in this process
    host = ray.util.get_node_ip_address()
    session = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    environment = {
        **os.environ,
        "HOME": str(home),
        # Tasks find the functions of the test that sends them.
        "PYTHONPATH": os.pathsep.join([str(ROOT), *(path for path in sys.path if f"{ROOT}/tests" in path)]),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    environment.pop("XDG_CACHE_HOME", None)
    common = ["--num-gpus", "0", "--object-store-memory", "200000000", "--block"]
    head = [*ray_command(), "start", "--head", "--port", str(port), "--temp-dir"]
    head += [str(session), "--include-dashboard", "false", "--num-cpus", str(head_cpus), *common]
    second = [*ray_command(), "start", "--address", f"{host}:{port}", "--num-cpus", str(second_cpus), *common]
    mounts = " && ".join(f"mount -t tmpfs tmpfs '{folder}'" for folder in hidden)
    started = []
    log = (session / "nodes.log").open("wb")
    try:
        for words in (head, ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", *second]):
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
            started.append(process)
            if len(started) == 1:  # joined now, this process is on the first node: both have the same address
                _wait(lambda: "runtime started" in (session / "nodes.log").read_text(), session)
                ray.init(address=f"{host}:{port}", logging_level="ERROR", log_to_driver=False)
        _wait(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, session)
        yield
    finally:
        ray.shutdown()
        for process in reversed(started):
            _end(process)
        log.close()
        shutil.rmtree(session, ignore_errors=True)


def _wait(ready: Callable[[], bool], session: Path) -> None:
    deadline = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < deadline, (session / "nodes.log").read_text()
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a node with all it started: `ray start --block` ends its processes when it is told to go."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
