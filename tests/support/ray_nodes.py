"""A real Ray cluster for tests: `ray start` processes on this machine, with as many CPUs and GPUs as one says."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from processes import family, free_port, ray_command

HIDDEN_GPUS = ",".join(str(number) for number in range(100, 116))
"""`CUDA_VISIBLE_DEVICES` for a Ray that was given GPUs: it takes at most as many as it names; CUDA finds none."""


def need_namespaces() -> None:
    """Skip where a process may not have mounts of its own."""
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs the right to unshare mounts (root on Linux), to hide folders from a node")


class Nodes:
    """A head and worker nodes, each a `ray start --block` with processes of its own, which can be killed.

    Every node has an address of its own. Ray 2.47 would attach a search to any of several nodes with one address, and
    it would end with that node. Where a search is started there Ray reads in a file, so that keeps the head's.
    """

    def __init__(self, *, cpus: int = 0, gpus: int = 0, jobs: Mapping[str, str] | None = None) -> None:
        """With `jobs`, variables of its environment, the head has a dashboard that takes jobs.

        It is one as from `nohup ray start ... &` in a script: all that it starts ignores SIGINT.
        """
        # Ray's sockets lie below: their paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="rc", dir="/tmp"))
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._jobs = jobs
        # Newer Ray wants its token, of all nodes and of whoever joins: searches that tests start inherit it.
        self._token_before = os.environ.get("RAY_AUTH_TOKEN")
        self._environment = dict(jobs or {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
        if jobs is None:
            os.environ["RAY_AUTH_TOKEN"] = self._environment["RAY_AUTH_TOKEN"]
        try:
            self._start_head(cpus, gpus)
            if jobs is not None:
                self._wait_for_dashboard()
        except BaseException:
            self.close()
            raise

    def _start_head(self, cpus: int, gpus: int) -> None:
        for tries_left in reversed(range(5)):
            port, dashboard = free_port(), free_port()
            self.address, self.url = f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
            head = ["--head", f"--port={port}", f"--temp-dir={self.folder}", f"--dashboard-port={dashboard}"]
            head += [f"--include-dashboard={str(self._jobs is not None).lower()}"]
            try:
                self._start([*head, f"--ray-client-server-port={free_port()}"], cpus, gpus)
                return
            except AssertionError:
                (log,) = self.folder.glob("node-*.log")
                printed = log.read_bytes()
                if not tries_left or not (b"grpc server" in printed or b"start the dashboard" in printed):
                    raise  # else a port was taken before Ray did, or the dashboard took more than Ray's 20 s
                self.kill(self.nodes.pop())

    def _wait_for_dashboard(self) -> None:
        """Until it lists the node, or wants a token."""
        found: object = None
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"{self.url}/api/v0/nodes", timeout=30) as answer:
                    found = json.load(answer)["data"]["result"]["result"]
                if found:
                    return
            except urllib.error.HTTPError as error:
                found = error
                if error.code in (401, 403):
                    return
            except OSError as error:
                found = error
            time.sleep(0.5)
        raise AssertionError(f"the dashboard does not tell of its head: {found}")

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._token_before is None:
            os.environ.pop("RAY_AUTH_TOKEN", None)
        else:
            os.environ["RAY_AUTH_TOKEN"] = self._token_before
        for node in reversed(self.nodes):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *, cpus: int = 0, gpus: int = 0, hidden: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
        """Start a worker node, to which these folders are empty, and wait until it is up."""
        of_head = {path: path.read_text() for path in self.folder.glob("session_2*/node_ip_address.json")}
        node = self._start([f"--address={self.address}"], cpus, gpus, hidden)
        for path, text in of_head.items():  # Ray before 2.60 writes one file for all nodes of a folder
            path.write_text(text)
        return node

    def _start(
        self, words: list[str], cpus: int, gpus: int, hidden: Sequence[Path] = ()
    ) -> subprocess.Popen[bytes]:
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("RAY_") and key != "MLFLOW_TRACKING_URI"
        }
        log, ip = self.folder / f"node-{len(self.nodes)}.log", f"127.0.0.{len(self.nodes) + 1}"
        resources = [f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--object-store-memory=150000000"]
        ports = ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={free_port()}"]
        before = [f"mount -t tmpfs tmpfs '{folder}'" for folder in hidden]
        before += ["trap '' INT"] if self._jobs is not None else []
        apart = ["unshare", "-m"] if hidden else []
        node = subprocess.Popen(
            [
                *(*apart, "sh", "-c", " && ".join([*before, 'exec "$@"']), "sh"),
                *(*ray_command(), "start", *words, *resources, *ports, f"--node-ip-address={ip}", "--block"),
            ],
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            env={
                **inherited,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_health_check_period_ms": "1000",  # a node that is gone is noticed in seconds
                "CUDA_VISIBLE_DEVICES": HIDDEN_GPUS,
                **self._environment,
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
            "from tune.util.environment import set_ray_variables; set_ray_variables()\n"
            "import json, logging, ray\n"
            f"ray.init({self.address!r}, logging_level=logging.ERROR, log_to_driver=False)\n"
            "print(json.dumps([ray.cluster_resources(), ray.available_resources()]))"
        )
        words = [sys.executable, "-c", code]
        done = subprocess.run(
            words, cwd=self.folder, stdout=subprocess.PIPE, text=True, timeout=60, check=True
        )
        total, free = json.loads(done.stdout.splitlines()[-1])
        kinds = ("CPU", "GPU")
        return {kind: total.get(kind, 0.0) for kind in kinds}, {kind: free.get(kind, 0.0) for kind in kinds}
