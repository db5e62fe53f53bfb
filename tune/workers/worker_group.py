"""Several workers in one trial: processes in the trial's own placement group that train together.

Ray Train started inside a trial asks for a second placement group, which a stopped trial never gives back
(ray#54305): later trials wait for ever. Here the trial's one placement group holds the workers as well. Tune
removes it with the trial, whatever happened, and with it every process in it. The trial's own process stays
outside the training: it hands evaluations on to Tune and can end the workers at any time, also in the middle of a
collective operation.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.training.report import Decision

Metrics = dict[str, float]
Decide = Callable[[Mapping[str, float]], Decision]
"""Takes an evaluation; what follows it."""
_CLEAN_SECONDS = 5.0
SECONDARY_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "DistNetworkError",
    "DistBackendError",
)
"""What the others say when one worker fails; not what went wrong."""


@dataclasses.dataclass(frozen=True)
class Address:
    node: str
    ip: str
    port: int
    """A free port there."""
    gpus: tuple[str, ...]


class Worker:
    """One process of the training, a Ray actor with three threads: training, reports, everything else."""

    def __init__(self) -> None:
        self._reports: queue.Queue[Metrics | None] = queue.Queue()
        self._answers: queue.Queue[Decision] = queue.Queue()
        self._scratch = ""

    def address(self) -> Address:
        with socket.socket() as free:
            free.bind(("", 0))
            port = int(free.getsockname()[1])
        context = ray.get_runtime_context()
        gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", []))
        return Address(context.get_node_id(), ray.util.get_node_ip_address(), port, gpus)

    def run(self, variables: Mapping[str, str], work: Callable[[Decide], Any]) -> Any:
        """Do `work` with torchrun's variables set; the first worker's evaluations wait until they are answered."""
        from trainer.training.distributed import private_folder

        os.environ.update(variables)
        private_folder(Path(variables["TMPDIR"]))
        self._scratch = variables["TMPDIR"]
        tempfile.tempdir = None
        try:
            return work(self._decide)
        finally:
            self._reports.put(None)
            if variables["LOCAL_RANK"] == "0":
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _decide(self, metrics: Mapping[str, float]) -> Decision:
        self._reports.put(dict(metrics))
        return self._answers.get()

    def next_report(self) -> Metrics | None:
        """The first worker's next evaluation, None at the end; waits for it."""
        return self._reports.get()

    def answer(self, decision: Decision) -> None:
        """Let the training go on after an evaluation, or end there."""
        self._answers.put(decision)

    def clean(self) -> None:
        """Remove what the training has on this node's disk."""
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def train_on_workers(
    work: Callable[[Decide], Any], decide: Decide, *, workers: int, cpus: float, gpus: float
) -> Any:
    """Do `work` in processes of the current placement group, a bundle each; what it returned in the first one.

    `decide` is called here with each evaluation of the first worker; all wait until it returns.

    Raises:
        Exception: what `work` raised in the worker that failed first, as Ray passes it on.
    """
    actors = _start(workers, cpus, gpus)
    try:
        variables = _variables(ray.get([actor.address.remote() for actor in actors]))
        runs = [actor.run.remote(values, work) for actor, values in zip(actors, variables, strict=True)]
        _pass_reports(actors, runs, decide)
        return ray.get(runs)[0]
    finally:
        _kill(actors)


def _start(workers: int, cpus: float, gpus: float) -> list[Any]:
    """The worker processes, in the order of their ranks."""
    group = ray.util.get_current_placement_group()
    actor_class = ray.remote(num_cpus=cpus, num_gpus=gpus, max_concurrency=3)(Worker)
    return [
        actor_class.options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index, placement_group_capture_child_tasks=True
            )
        ).remote()
        for index in range(workers)
    ]


def _kill(actors: list[Any]) -> None:
    ray.wait([actor.clean.remote() for actor in actors], num_returns=len(actors), timeout=_CLEAN_SECONDS)
    for actor in actors:
        ray.kill(actor)


def _variables(addresses: Sequence[Address]) -> list[dict[str, str]]:
    """torchrun's variables for each worker, and what keeps a broken group from waiting for ever."""
    scratch = str(Path(tempfile.gettempdir()) / f"tune-whisper-{uuid.uuid4().hex[:12]}")
    nodes = list(dict.fromkeys(address.node for address in addresses))
    environments: list[dict[str, str]] = []
    for rank, address in enumerate(addresses):
        beside = [other for other, there in enumerate(addresses) if there.node == address.node]
        values = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(addresses)),
            "LOCAL_RANK": str(beside.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(beside)),
            "MASTER_ADDR": addresses[0].ip,
            "MASTER_PORT": str(addresses[0].port),
            # Nodes may share their disk, as several on one machine do.
            "TMPDIR": f"{scratch}-{nodes.index(address.node)}",
            # A worker that is lost ends the others' waiting with an error.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }
        gpus = [gpu for other in beside for gpu in addresses[other].gpus]
        if gpus:
            # Every worker sees the cards of all workers on its node and takes its own by LOCAL_RANK, as
            # accelerate and DeepSpeed expect, and NCCL to pass data from card to card.
            values["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        environments.append(values)
    return environments


def _pass_reports(actors: list[Any], runs: list[Any], decide: Decide) -> None:
    """Pass on the first worker's evaluations, and what is decided on them, until it has ended."""
    running = list(runs)
    coming = actors[0].next_report.remote()
    while True:
        ready, _ = ray.wait([coming, *running], num_returns=1)
        if ready[0] is not coming:
            _raise_first_failure(ready[0], runs)
            running.remove(ready[0])
            continue
        received = ray.get(coming)
        if received is None:
            _raise_first_failure(runs[0], runs)
            return
        actors[0].answer.remote(decide(received))
        coming = actors[0].next_report.remote()


def _raise_first_failure(ended: Any, runs: list[Any]) -> None:
    """Raise what went wrong where `ended` failed: another's error, if this one only lost its connection."""
    try:
        ray.get(ended)
    except ray.exceptions.RayError as error:
        if any(text in str(error) for text in SECONDARY_ERRORS):
            others, _ = ray.wait(
                [run for run in runs if run is not ended], num_returns=len(runs) - 1, timeout=_CLEAN_SECONDS
            )
            for other in others:
                try:
                    ray.get(other)
                except ray.exceptions.RayError as cause:
                    if not any(text in str(cause) for text in SECONDARY_ERRORS):
                        raise cause from None
        raise
