"""Trainings in fresh processes, several workers among them, without each process importing PyTorch anew.

A server process imports what a training needs and is forked for each worker, which then has torchrun's variables.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing import connection
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig

SECONDS = 560.0
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["trainer.training.callbacks", "trainer.training.whisper_trainer", "trainer.train"]
)


def run(action: str, config: TrainConfig, folder: Path) -> str:
    """Do an action of `distributed_run.py` in `config.workers` processes; what they printed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    workers = []
    for rank in range(config.workers):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": config.workers}
        variables |= {"LOCAL_WORLD_SIZE": config.workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {name: str(value) for name, value in variables.items()} if config.workers > 1 else {}
        workers.append(_PROCESSES.Process(target=_work, args=(action, folder, rank, told)))
        workers[-1].start()
    deadline, waited = time.monotonic() + SECONDS, workers
    while waited and time.monotonic() < deadline and not any(worker.exitcode for worker in workers):
        connection.wait([worker.sentinel for worker in waited], timeout=1.0)
        waited = [worker for worker in workers if worker.exitcode is None]
    for worker in waited:  # one failed, and the others wait for it
        worker.kill()
        worker.join()
    printed = "".join((folder / f"log-{rank}").read_text() for rank in range(config.workers))
    assert [worker.exitcode for worker in workers] == [0] * config.workers, printed[-6000:]
    return printed


def _work(action: str, folder: Path, rank: int, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    log: Any = (folder / f"log-{rank}").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    from distributed_run import act

    try:
        act(action, folder)
    finally:
        log.flush()
