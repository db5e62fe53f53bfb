"""A real Ray cluster on this machine for tests: a head without CPUs, and as many more nodes as are asked for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from processes import Command, ray_command

HIDDEN_GPUS = ",".join(str(number) for number in range(100, 116))
"""`CUDA_VISIBLE_DEVICES` for a Ray that is told of GPUs: it takes at most as many as it names; CUDA finds none."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class RayCluster:
    """A head, started by `ray start`; `add_node` adds a node. Only its own processes are ended."""

    def __init__(self, environment: dict[str, str] | None = None, *, cpus: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # Ray's sockets need short paths
        usual = {"RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": HIDDEN_GPUS}
        self.environment = {**os.environ, **usual, **(environment or {})}
        for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
            self.environment.pop(name, None)
        self._cpus = cpus
        self.port, self.dashboard_port = free_port(), free_port()
        try:
            self._start_head()
        except BaseException:
            self.close()
            raise

    def _start_head(self) -> None:
        ports = (f"--port={self.port}", f"--dashboard-port={self.dashboard_port}")
        self._start("--head", *ports, f"--ray-client-server-port={free_port()}", f"--num-cpus={self._cpus}",
                    f"--temp-dir={self.folder}")  # fmt: skip
        self._wait_for_nodes(1)

    def add_node(self, *arguments: str, nodes: int) -> None:
        """Start another node and wait until the cluster has as many as said."""
        self._start(f"--address=127.0.0.1:{self.port}", *arguments)
        self._wait_for_nodes(nodes)

    def _start(self, *arguments: str) -> None:
        command = [
            # As from `nohup ray start ... &` in a script: SIGINT is ignored by all that it starts.
            *("sh", "-c", "trap '' INT; exec \"$@\"", "sh", *ray_command(), "start", *arguments),
            *("--disable-usage-stats", "--object-store-memory=100000000", "--min-worker-port=0"),
            *("--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"),
        ]
        with (self.folder / "start.log").open("w") as log:
            done = subprocess.run(
                command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, timeout=300, check=False
            )
        assert done.returncode == 0, (self.folder / "start.log").read_text()

    def _wait_for_nodes(self, count: int) -> None:
        for _ in range(60):
            asked = Command(
                "cluster", "--json", "--address", self.url, cwd=self.folder, environment=self.environment
            )
            out, error = asked.communicate(timeout=300)
            view = json.loads(out) if asked.returncode == 0 else None
            if view and len(view["nodes"]) >= count:
                return
            time.sleep(0.5)
        raise AssertionError(f"the cluster has not got {count} nodes: {out}{error}")

    @property
    def url(self) -> str:
        """The dashboard."""
        return f"http://127.0.0.1:{self.dashboard_port}"

    def close(self) -> None:
        """End the cluster's processes: those that name its folder on their command lines, and their children."""
        ours = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if process.pid != os.getpid() and any(str(self.folder) in word for word in words):
                ours += [process, *children(process)]
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):  # gone since with the one before it
                process.kill()
        psutil.wait_procs(ours, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
