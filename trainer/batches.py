"""Which clips every optimiser step trains on, fixed beforehand for the whole budget.

A search compares trials at the same number of samples seen, whatever their batch size. So the stretch between
two evaluation points is cut into the fewest steps of nearly equal size that hold at most one effective batch
each: every trial lands exactly on every evaluation point, and no step is a stump.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The order of clips and the size of every step of one training.

    Epochs are independent permutations of the clips, drawn from `seed` and the epoch's number, laid end to end;
    steps are consecutive stretches of that stream.
    """

    n_clips: int
    """Training clips."""
    batch_size: int
    """Most clips in one forward pass of one worker."""
    accumulation: int
    """Forward passes of each worker in one optimiser step."""
    points: tuple[int, ...]
    """Samples seen at which to evaluate; increasing, the last one is the budget."""
    seed: int
    workers: int = 1
    """Workers that share the clips of each step."""

    @functools.cached_property
    def boundaries(self) -> np.ndarray:
        """Samples seen before the first and after every step, shape (steps + 1,)."""
        effective = self.batch_size * self.accumulation * self.workers
        pieces = [np.zeros(1, dtype=np.int64)]
        start = 0
        for point in self.points:
            n_steps = math.ceil((point - start) / effective)
            pieces.append(np.linspace(start, point, n_steps + 1).round().astype(np.int64)[1:])
            start = point
        return np.concatenate(pieces)

    @property
    def n_steps(self) -> int:
        """Optimiser steps of the full budget."""
        return len(self.boundaries) - 1

    def samples_seen(self, step: int) -> int:
        """Samples seen after `step` optimiser steps."""
        return int(self.boundaries[step])

    def epoch(self, step: int) -> float:
        """Passes over the training clips after `step` optimiser steps."""
        return self.samples_seen(step) / self.n_clips

    def is_point(self, step: int) -> bool:
        """Whether an evaluation is due after `step` optimiser steps."""
        return self.samples_seen(step) in self.points

    def micro_batches(self, worker: int = 0) -> Iterator[list[int]]:
        """The indices of every forward pass of a worker: `accumulation` lists a step, of at most `batch_size` clips.

        A step with fewer clips than passes yields empty lists for the rest (the collator turns those into
        a batch without labels, which adds nothing to the gradient). So all workers make equally many passes.
        """
        epoch, order = -1, np.empty(0, dtype=np.int64)
        taken: list[int] = []
        for step in range(self.n_steps):
            size = int(self.boundaries[step + 1] - self.boundaries[step])
            while len(taken) < size:
                epoch += 1
                order = np.random.default_rng([self.seed, epoch]).permutation(self.n_clips)
                taken.extend(order.tolist())
            step_clips, taken = taken[:size], taken[size:]
            chunks = np.array_split(np.asarray(step_clips, dtype=np.int64), self.accumulation * self.workers)
            for chunk in chunks[worker :: self.workers]:
                yield chunk.tolist()


class PlannedBatches:
    """One worker's part of a `BatchPlan` as PyTorch's `DataLoader(batch_sampler=...)` wants it."""

    def __init__(self, plan: BatchPlan, worker: int = 0) -> None:
        self.plan = plan
        self.worker = worker
        self.batch_size = plan.batch_size
        self.drop_last = False

    def __iter__(self) -> Iterator[list[int]]:
        return self.plan.micro_batches(self.worker)

    def __len__(self) -> int:
        return self.plan.n_steps * self.plan.accumulation


def evaluation_share(n_clips: int, worker: int, workers: int) -> list[int]:
    """The clips that a worker evaluates: every `workers`-th, with some twice so that all have equally many.

    The evaluation counts each clip once: clips carry their numbers.
    """
    share = list(range(worker, n_clips, workers))
    longest = math.ceil(n_clips / workers)
    return share + [0] * (longest - len(share))


def plan_points(
    budget: int, evaluations: int, evaluate_at: tuple[int, ...] | None, batch: int = 1
) -> tuple[int, ...]:
    """Samples seen at which to evaluate: those given below `budget`, or evenly spread ones, then `budget`.

    Points of our own choice lie on whole effective batches of `batch` clips.
    """
    if evaluate_at is None:
        evaluate_at = tuple(
            round(budget * (i + 1) / evaluations / batch) * batch for i in range(evaluations - 1)
        )
    return (*sorted({point for point in evaluate_at if 0 < point < budget}), budget)
