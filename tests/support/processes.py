"""Commands and trainings as processes of their own."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import psutil

    from trainer.config import TrainConfig

TUNE = ("-m", "tune")
TRAINING_SECONDS = 560.0
PREPARED = multiprocessing.get_context("forkserver")
"""Processes that have torch and transformers imported: 6 s of CPU less for each."""
PREPARED.set_forkserver_preload(["distributed_run", "trainer.training.whisper_trainer"])


def tune_whisper(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *TUNE, *words]
    options: Any = {"cwd": cwd, "env": {**os.environ, **environment}, "stdin": subprocess.DEVNULL}
    return subprocess.run(command, capture_output=True, text=True, timeout=560, check=False, **options)


def _work(action: str, folder: Path, environment: Mapping[str, str], log: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with Path(log).open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from distributed_run import act

    act(action, folder)


def run_workers(action: str, config: TrainConfig, folder: Path) -> str:
    """Do an action of `distributed_run.py` in as many processes as the config says; what they printed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):  # 3.11 does not pass sys.path on
        multiprocessing.forkserver.ensure_running()
    port = free_port()
    workers = []
    for rank in range(config.workers):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": config.workers}
        variables |= {"LOCAL_WORLD_SIZE": config.workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {name: str(value) for name, value in variables.items()} if config.workers > 1 else {}
        log = str(folder / f"log-{rank}")
        workers.append(PREPARED.Process(target=_work, args=(action, folder, {**os.environ, **told}, log)))
        workers[-1].start()
    deadline = time.monotonic() + TRAINING_SECONDS
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        if any(worker.exitcode for worker in workers):
            break  # one failed, and the others wait for it
        time.sleep(0.1)
    for worker in workers:
        worker.kill()
        worker.join(30)
    printed = "".join((folder / f"log-{rank}").read_text() for rank in range(config.workers))
    assert [worker.exitcode for worker in workers] == [0] * config.workers, printed[-6000:]
    return printed


# Below those that Linux gives to connections, one of which could take a port before its server does.
_PORTS = iter(random.SystemRandom().sample(range(20_000, 32_768), k=12_768))


def free_port() -> int:
    """Never the same one twice."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def ray_command() -> list[str]:
    return [str(Path(sys.executable).with_name("ray"))]


def family(process: psutil.Process) -> list[psutil.Process]:
    """The processes that a process has started, and those that they did."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []
