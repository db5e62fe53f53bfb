"""Starting or joining Ray, and what a trial gets of it."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator

from rich.console import Console

from tune.errors import ResourceError
from tune.mlflow_store import worker_environment
from tune.plan import SearchRequest

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
    try:
        yield
    finally:
        ray.shutdown()


def trial_resources(request: SearchRequest, available: dict[str, float]) -> TrialResources:
    """Resources of a trial and the number of trials at once, from what the cluster has in all.

    Raises:
        ResourceError: one trial asks for more than there is, so the search could never start.
    """
    all_gpus, all_cpus = available.get("GPU", 0.0), available.get("CPU", 0.0)
    gpus = request.gpus_per_trial if request.gpus_per_trial is not None else (1.0 if all_gpus else 0.0)
    if gpus > all_gpus:
        raise ResourceError(
            f"--gpus-per-trial {gpus:g}: the cluster has {all_gpus:g} GPU{'' if all_gpus == 1 else 's'}; "
            f"{'lower it' if all_gpus else 'use 0 to train on the CPU'}"
        )
    cpus = request.cpus_per_trial
    if cpus is None:
        cpus = max(1.0, min(_MOST_CPUS, all_cpus * gpus // all_gpus)) if gpus else 1.0
    if cpus > all_cpus:
        raise ResourceError(f"--cpus-per-trial {cpus:g}: the cluster has {all_cpus:g} CPUs; lower it")
    fitting = int(all_cpus / cpus)
    if gpus:
        # Fractions share a card but do not spread over two.
        per_card = int(1 / gpus + 1e-9)
        fitting = min(fitting, int(all_gpus) * per_card if gpus <= 1 else int(all_gpus / gpus))
    return TrialResources(
        gpus=gpus,
        cpus=cpus,
        concurrent=max(1, min(fitting, request.max_concurrent or fitting, request.trials)),
    )
