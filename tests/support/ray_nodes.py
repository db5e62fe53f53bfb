"""A real Ray cluster for tests: `ray start` processes on this machine, with as many CPUs and GPUs as one says."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from processes import Command, family, free_port, ray_command
from ray_cluster import HIDDEN_GPUS


def need_namespaces() -> None:
    """Skip where a process may not have mounts of its own."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs the right to unshare mounts (root on Linux), to hide folders from a node")


class Nodes:
    """A head and worker nodes, each a `ray start --block` with processes of its own, which can be killed.

    Every node has an address of its own. Ray 2.47 would attach a search to any of several nodes with one address, and
    it would end with that node. Where a search is started there Ray reads in a file, so that keeps the head's.
    """

    def __init__(self, *, cpus: int = 0, gpus: int = 0, folder: str = "/tmp") -> None:
        # Ray's sockets lie below: their paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="rc", dir=folder))
        self.nodes: list[subprocess.Popen[bytes]] = []
        # Newer Ray wants its token, of all nodes and of whoever joins: searches that tests start inherit it.
        self._token_before = os.environ.get("RAY_AUTH_TOKEN")
        os.environ["RAY_AUTH_TOKEN"] = self._token = secrets.token_hex(32)
        try:
            self._start_head(cpus, gpus)
        except BaseException:
            self.close()
            raise

    def _start_head(self, cpus: int, gpus: int) -> None:
        for tries_left in (1, 0):
            self.port = free_port()
            self.address = f"127.0.0.1:{self.port}"
            head = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
            try:
                self._start([*head, f"--ray-client-server-port={free_port()}"], cpus, gpus)
                return
            except AssertionError:
                (log,) = self.folder.glob("node-*.log")
                if not tries_left or b"grpc server" not in log.read_bytes():
                    raise  # else another process had taken the port before Ray did
                self.kill(self.nodes.pop())

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        if self._token_before is None:
            os.environ.pop("RAY_AUTH_TOKEN", None)
        else:
            os.environ["RAY_AUTH_TOKEN"] = self._token_before
        for node in reversed(self.nodes):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *, cpus: int = 0, gpus: int = 0, hidden: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
        """Start a worker node, to which these folders are empty, and wait until it is up."""
        (here,) = self.folder.glob("session_2*/node_ip_address.json")
        of_head = here.read_text()
        node = self._start([f"--address={self.address}"], cpus, gpus, hidden)
        here.write_text(of_head)
        return node

    def _start(
        self, words: list[str], cpus: int, gpus: int, hidden: Sequence[Path] = ()
    ) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        log, ip = self.folder / f"node-{len(self.nodes)}.log", f"127.0.0.{len(self.nodes) + 1}"
        resources = [f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--object-store-memory=150000000"]
        ports = ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
        mounts = " && ".join(f"mount -t tmpfs tmpfs '{folder}'" for folder in hidden)
        apart = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh"] if hidden else []
        node = subprocess.Popen(
            [
                *apart,
                *ray_command(),
                "start",
                *words,
                *resources,
                *ports,
                f"--node-ip-address={ip}",
                "--block",
            ],
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            env={
                **environment,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_health_check_period_ms": "1000",  # a node that is gone is noticed in seconds
                "CUDA_VISIBLE_DEVICES": HIDDEN_GPUS,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN": self._token,
            },
            start_new_session=True,
        )
        self.nodes.append(node)
        deadline = time.monotonic() + 300
        while b"--block" not in log.read_bytes():  # what it prints once it is up
            assert node.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        return node

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """End a node's processes as a power cut would."""
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(node.pid)
            for process in [first, *family(first)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        node.wait(30)

    def suspend(self, node: subprocess.Popen[bytes]) -> None:
        """Hold what computes on a node, for good."""
        for process in family(psutil.Process(node.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if " ".join(process.cmdline()).startswith("ray::"):
                    process.suspend()

    def resources(self) -> tuple[dict[str, float], dict[str, float]]:
        """CPUs and GPUs that the cluster has, and those that are free, as another process sees them."""
        code = (
            "from tune.util.environment import use_ray_token; use_ray_token()\n"
            "import json, logging, ray\n"
            f"ray.init({self.address!r}, logging_level=logging.ERROR, log_to_driver=False)\n"
            "print(json.dumps([ray.cluster_resources(), ray.available_resources()]))"
        )
        seen, _ = Command(program=("-c", code), cwd=self.folder).communicate(timeout=60)
        total, free = json.loads(seen.splitlines()[-1])
        kinds = ("CPU", "GPU")
        return {kind: total.get(kind, 0.0) for kind in kinds}, {kind: free.get(kind, 0.0) for kind in kinds}
