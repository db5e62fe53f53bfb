"""A real Ray head on this machine for tests, with its dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
from processes import family, free_port, ray_command

HIDDEN_GPUS = ",".join(str(number) for number in range(100, 116))
"""`CUDA_VISIBLE_DEVICES` for a Ray that is told of GPUs: it takes at most as many as it names; CUDA finds none."""


class RayCluster:
    """A head, started by `ray start`; only its own processes are ended."""

    def __init__(self, environment: dict[str, str], *, cpus: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # Ray's sockets need short paths
        usual = {"RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": HIDDEN_GPUS}
        known = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")
        }
        self.dashboard_port = free_port()
        try:
            self._start({**known, **usual, **environment}, cpus)
            self._wait()
        except BaseException:
            self.close()
            raise

    def _start(self, environment: dict[str, str], cpus: int) -> None:
        command = [
            # As from `nohup ray start ... &` in a script: SIGINT is ignored by all that it starts.
            *("sh", "-c", "trap '' INT; exec \"$@\"", "sh", *ray_command(), "start", "--head"),
            *(f"--port={free_port()}", f"--dashboard-port={self.dashboard_port}", f"--num-cpus={cpus}"),
            *(f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"),
            *("--disable-usage-stats", "--object-store-memory=100000000", "--min-worker-port=0"),
            *("--max-worker-port=0", f"--temp-dir={self.folder}"),
        ]
        with (self.folder / "start.log").open("w") as log:
            done = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=300, check=False
            )
        assert done.returncode == 0, (self.folder / "start.log").read_text()

    def _wait(self) -> None:
        """Until the dashboard tells of the node, or wants a token."""
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
                ours += [process, *family(process)]
        for process in ours:
            with contextlib.suppress(psutil.NoSuchProcess):  # gone since with the one before it
                process.kill()
        psutil.wait_procs(ours, timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)
