"""Starting or joining Ray, and what a trial gets of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from tune.errors import ResourceError
from tune.mlflow_store import worker_environment
from tune.plan import SearchPlan, SearchRequest

_MOST_CPUS = 8.0
"""CPUs of a trial by default at most: beyond that a GPU trial's data loading gains nothing."""


@dataclasses.dataclass(frozen=True)
class TrialResources:
    """What each trial holds while it runs, and how many run at once."""

    gpus: float
    cpus: float
    concurrent: int


@contextlib.contextmanager
def ray_session(console: Console) -> Iterator[None]:
    """Ray, quiet, for the length of the block."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own table would print over ours, also with verbose=0.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    # A trial that is stopped leaves its thread by itself; the default waits 2 s for it, too short after a save.
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", "30")
    # Our own callbacks write what there is to keep; Ray's would add CSV, JSON and TensorBoard files to each trial.
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    import ray

    # Failed trials are told on the screen in a line and in full in their folder.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with console.status("starting Ray ..."):
        ray.init(
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.ERROR,
            # Only this process writes to MLflow; no worker gets to see the store's credentials.
            runtime_env={"env_vars": worker_environment()},
        )
    # A cluster's scheduler ends a job with SIGTERM; Ray's own handler would abort and lose what was found.
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        ray.shutdown()


def trial_resources(request: SearchRequest, nodes: Sequence[Mapping[str, float]]) -> TrialResources:
    """Resources of a trial and the number of trials at once, from the resources of each node.

    Raises:
        ResourceError: a trial asks for more than any node has, so the search could never start.
    """
    most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    gpus = request.gpus_per_trial if request.gpus_per_trial is not None else (1.0 if most_gpus else 0.0)
    if gpus > most_gpus:
        have = f"{most_gpus:g} GPU{'' if most_gpus == 1 else 's'}"
        raise ResourceError(
            f"--gpus-per-trial {gpus:g}: {_where(nodes)} {have}; "
            f"{'lower it' if most_gpus else 'use 0 to train on the CPU'}"
        )
    able = [node for node in nodes if node.get("GPU", 0.0) >= gpus]
    most_cpus = max((node.get("CPU", 0.0) for node in able), default=0.0)
    cpus = request.cpus_per_trial
    if cpus is None:
        shares = [node.get("CPU", 0.0) * gpus // node["GPU"] for node in able] if gpus else []
        cpus = max(1.0, min([_MOST_CPUS, *shares])) if gpus else 1.0
    if cpus > most_cpus:
        raise ResourceError(f"--cpus-per-trial {cpus:g}: {_where(nodes)} {most_cpus:g} CPUs; lower it")
    fitting = sum(_fitting(node, gpus, cpus) for node in able)
    return TrialResources(
        gpus=gpus,
        cpus=cpus,
        concurrent=max(1, min(fitting, request.max_concurrent or fitting, request.trials)),
    )


def _where(nodes: Sequence[Mapping[str, float]]) -> str:
    return "this machine has" if len(nodes) == 1 else "no node of the cluster has more than"


def _fitting(node: Mapping[str, float], gpus: float, cpus: float) -> int:
    """Trials that run on a node at once; fractions share a card but do not spread over two."""
    by_cpus = int(node.get("CPU", 0.0) / cpus)
    if not gpus:
        return by_cpus
    cards = int(node["GPU"])
    return min(by_cpus, cards * int(1 / gpus + 1e-9) if gpus <= 1 else int(cards / gpus))


def this_machine() -> dict[str, float]:
    """CPUs and GPUs here, as Ray would count them, without starting it."""
    import torch

    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}


def check_precision(plan: SearchPlan, resources: TrialResources) -> None:
    """Refuse what no trial could run.

    Raises:
        ResourceError: half precision is fixed or searched, and trials have no GPU.
    """
    parameter = plan.space.parameters.get("precision")
    values = getattr(parameter, "values", [plan.base.precision])
    if "fp16" in values and not resources.gpus:
        raise ResourceError("precision='fp16': needs a GPU, and trials have none; use auto, fp32 or bf16")
