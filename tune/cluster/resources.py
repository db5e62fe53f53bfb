"""What a trial or a training takes of the cluster: as it was asked for, and as it fits on the nodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.errors import ConfigError
from tune.util.errors import ResourceError

Node = Mapping[str, float]
"""Ray's resources of a node: `CPU`, `GPU` and others."""
_MOST_CPUS = 8.0
"""CPUs of a worker by default at most: beyond that a GPU's data loading gains nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    gpus: float | None = None
    """Of all workers together; None is one for each worker where there are any."""
    cpus: float | None = None
    """Of all workers together."""
    workers: int = 1
    """Processes that train together."""
    trials: int = 1
    max_concurrent: int | None = None
    per_worker: bool = False
    """Whether the options with which it was asked for count those of one worker, as a training's do."""

    def _option(self, kind: str, number: float) -> str:
        """An option as it was given, from a number of all workers together."""
        name = f"--{kind}-per-worker" if self.per_worker else f"--{kind}-per-trial"
        return f"{name} {number / self.workers if self.per_worker else number:g}"

    @property
    def _workers_option(self) -> str:
        return "--workers" if self.per_worker else "--workers-per-trial"

    def check(self, *, resumed: bool = False) -> None:
        """Check the numbers: each worker has one GPU or none, or a single one a share; more would be held unused.

        Raises:
            ConfigError: a number is out of range, or there are more GPUs than workers, or fewer.
        """
        gpus, workers = self.gpus, self.workers
        for kind, number in (("gpus", gpus), ("cpus", self.cpus)):
            if number is not None and not math.isfinite(number):
                raise ConfigError(f"{self._option(kind, number)}: must be a finite number")
        if self.cpus is not None and self.cpus <= 0:
            raise ConfigError(f"{self._option('cpus', self.cpus)}: must be above 0")
        if gpus is None or gpus in (0, workers) or (workers == 1 and 0 < gpus < 1):
            return
        given = self._option("gpus", gpus)
        if not self.per_worker and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
            raise ConfigError(f"{given}: must be a GPU fraction up to 1, or a whole number of GPUs")
        began = ", with which the search began" if resumed else ""
        share = ", or a GPU fraction" if workers == 1 else ""
        # Of whole GPUs a worker there are too many, however many workers.
        helps = not resumed and (not self.per_worker or 0 < gpus < workers)
        more = f" {self._workers_option} {max(1, math.ceil(gpus))}, or" if helps else ""
        raise ConfigError(
            f"{given}: each worker uses one GPU, and {self._workers_option} is {workers}{began}; "
            f"give{more} {self._option('gpus', workers)}{share} or 0"
        )

    def fit(self, nodes: Sequence[Node]) -> TrialResources:
        """Resources of a trial and the number of trials at once, from the resources of each node.

        Raises:
            ResourceError: a trial asks for more than there is, so it could never start.
        """
        workers = self.workers
        most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
        gpus = self.gpus / workers if self.gpus is not None else 1 if most_gpus else 0.0
        if gpus > most_gpus:
            have = f"{most_gpus:g} GPU{'' if most_gpus == 1 else 's'}"
            raise ResourceError(
                f"{self._option('gpus', gpus * workers)}: {_where(nodes)} {have}; "
                f"{'lower it' if most_gpus else 'use 0 to train on the CPU'}"
            )
        able = [node for node in nodes if node.get("GPU", 0.0) >= gpus]
        most_cpus = max((node.get("CPU", 0.0) for node in able), default=0.0)
        cpus = self.cpus / workers if self.cpus is not None else _default_cpus(gpus, able)
        if cpus > most_cpus:
            raise ResourceError(
                f"{self._option('cpus', cpus * workers)}: {_where(nodes, able)} {most_cpus:g} CPUs; lower it"
            )
        resources = TrialResources(gpus=gpus * workers, cpus=cpus * workers, concurrent=1, workers=workers)
        fitting = resources.fitting(nodes)
        if workers > 1 and not fitting:
            room = sum(_fitting(node, gpus, cpus) for node in able)
            raise ResourceError(
                f"{self._workers_option} {workers}: there is room for {room} with {gpus:g} GPU and {cpus:g} CPU each; "
                "lower it"
            )
        concurrent = max(1, min(fitting, self.max_concurrent or fitting, self.trials))
        return dataclasses.replace(resources, concurrent=concurrent)


@dataclasses.dataclass(frozen=True)
class TrialResources:
    """What each trial holds while it runs, and how many run at once."""

    gpus: float
    """GPUs of all workers of a trial together."""
    cpus: float
    """CPUs of all workers of a trial together."""
    concurrent: int
    workers: int = 1
    """Processes that train a trial together."""

    @property
    def gpus_per_worker(self) -> float:
        return self.gpus / self.workers

    @property
    def cpus_per_worker(self) -> float:
        return self.cpus / self.workers

    @property
    def each(self) -> dict[str, float]:
        """What Ray is asked for, for one process."""
        return {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}

    def request(self) -> Any:
        """What Ray Tune is asked for.

        With several workers: a bundle each, packed on as few nodes as can be. The empty one in front puts the
        trial's own process, which takes nothing, beside the first worker, whose checkpoints it hands on.
        """
        from ray.tune import PlacementGroupFactory

        if self.workers == 1:
            return {"cpu": self.cpus, "gpu": self.gpus}
        return PlacementGroupFactory([{}, *[self.each] * self.workers], strategy="PACK")

    def fitting(self, nodes: Sequence[Node]) -> int:
        """Trials that these nodes can run at once."""
        each = [_fitting(node, self.gpus_per_worker, self.cpus_per_worker) for node in nodes]
        return sum(each) if self.workers == 1 else sum(each) // self.workers


def _default_cpus(gpus: float, able: Sequence[Node]) -> float:
    """CPUs of a worker: its share of the node's beside its share of the GPUs, a fraction where there are fewer."""
    if not gpus:
        return 1.0
    share = min(_MOST_CPUS, *(node.get("CPU", 0.0) * gpus / node["GPU"] for node in able))
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1000) / 1000


def _where(nodes: Sequence[Node], able: Sequence[Node] = ()) -> str:
    """`able`: those of them that are spoken of."""
    if len(nodes) == 1:
        return "this machine has"
    return f"no node of the cluster {'with enough GPUs ' * (0 < len(able) < len(nodes))}has more than"


def _fitting(node: Node, gpus: float, cpus: float) -> int:
    """Workers that run on a node at once; fractions share a card but do not spread over two."""
    by_cpus = int(node.get("CPU", 0.0) / cpus + 1e-9) if cpus else 10**6
    if not gpus:
        return by_cpus
    cards = int(node.get("GPU", 0.0))
    return min(by_cpus, cards * int(1 / gpus + 1e-9) if gpus <= 1 else int(cards / gpus))
