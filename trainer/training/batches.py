"""Which clips every optimiser step trains on, fixed beforehand for the whole budget.

A search compares trials at the same number of samples seen, whatever their batch size. So the stretch between
two evaluation points is cut into the fewest steps of nearly equal size that hold at most one effective batch
each: every trial lands exactly on every evaluation point, and no step is a stump.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from trainer.errors import DataError

Frames: TypeAlias = "np.ndarray | Callable[[np.ndarray, np.ndarray], np.ndarray]"
"""Feature frames of every clip, shape (clips,), or what gives them for epochs and clips, where they differ by epoch."""
_POOL_STEPS = 32
"""Steps among which clips are sorted by length: enough that each has one length, few enough that all stay mixed."""


class PlannedClip(NamedTuple):
    clip: int
    longest: int = 0
    """Feature frames of the longest clip of its optimiser step; 0 where they are unknown."""
    epoch: int = 0


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The order of clips and the size of every step of one training.

    Epochs are independent permutations of the clips, drawn from `seed` and the epoch's number, laid end to end;
    steps are consecutive stretches of that stream. With weights a clip is in an epoch as often as its weight says, a
    fraction being drawn anew for each epoch: of the clips with weight 1.5 all come, and half of them twice.
    """

    n_clips: int
    batch_size: int
    """Most clips in one forward pass of one worker."""
    accumulation: int
    """Forward passes of each worker in one optimiser step."""
    points: tuple[int, ...]
    """Samples seen at which to evaluate; increasing, the last one is the budget."""
    seed: int
    workers: int = 1
    """Workers that share the clips of each step."""
    frames: Frames | None = dataclasses.field(default=None, compare=False)
    """Where each step has a window of its own."""
    by_length: bool = False
    """Whether clips of like length, by `frames`, share a step; else the order is random."""
    weights: np.ndarray | None = dataclasses.field(default=None, compare=False)
    """How often each clip comes in an epoch on average, shape (clips,); None: each once."""
    epoch_samples: float = 0.0
    """Samples that count as an epoch; 0: as many as clips."""
    streamed: bool = False
    """Whether clips come as a stream of each worker's own and are known by their places in it."""

    def __post_init__(self) -> None:
        if self.weights is not None and not self.weights.any():
            raise DataError(
                "source_weights: the weight of every source is 0, so nothing is trained on; raise one"
            )

    @functools.cached_property
    def boundaries(self) -> np.ndarray:
        """Samples seen before the first and after every step, shape (steps + 1,)."""
        effective = self.batch_size * self.accumulation * self.workers
        pieces = [np.zeros(1, dtype=np.int64)]
        for start, point in itertools.pairwise((0, *self.points)):
            n_steps = math.ceil((point - start) / effective)
            pieces.append(np.linspace(start, point, n_steps + 1).round().astype(np.int64)[1:])
        return np.concatenate(pieces)

    @property
    def n_steps(self) -> int:
        return len(self.boundaries) - 1

    def samples_seen(self, step: int) -> int:
        return int(self.boundaries[step])

    def epoch(self, step: int) -> float:
        """Passes over the training clips after `step` optimiser steps."""
        return self.samples_seen(step) / (self.epoch_samples or self.n_clips)

    def is_point(self, step: int) -> bool:
        return self.samples_seen(step) in self.points

    def passes(self, worker: int = 0) -> Iterator[list[PlannedClip]]:
        """The clips of every forward pass of a worker: `accumulation` lists a step, of at most `batch_size` clips.

        A step with fewer clips than passes yields empty lists for the rest (the collator turns those into
        a batch without labels, which adds nothing to the gradient). So all workers make equally many passes.

        Each comes with the feature frames of the longest clip of its step. Of the step, not of the pass: however a step
        is cut into passes and workers, its gradient is the same.
        """
        if self.streamed:
            yield from self._streamed_passes(worker)
            return
        epoch, parts = -1, self.accumulation * self.workers
        # Samples of all epochs, one after the other: a clip in one of its passes, of which an epoch may have several.
        taken: list[int] = []
        for pool in self._pools():
            size = int(self.boundaries[pool.stop] - self.boundaries[pool.start])
            while len(taken) < size:
                epoch += 1
                taken.extend(self._epoch(epoch).tolist())
            samples, taken = np.array(taken[:size], np.int64), taken[size:]
            lengths = self._lengths(samples)
            for step in self._steps(pool, lengths):
                longest = int(lengths[step].max(initial=0))
                for positions in np.array_split(step, parts)[worker :: self.workers]:
                    yield [
                        PlannedClip(sample % self.n_clips, longest, sample // self.n_clips)
                        for sample in samples[positions].tolist()
                    ]

    def _streamed_passes(self, worker: int) -> Iterator[list[PlannedClip]]:
        """Of each step as many clips as the worker would have of others; in place of the epoch its own number."""
        position, parts = 0, self.accumulation * self.workers
        for size in np.diff(self.boundaries).tolist():
            for part in np.array_split(np.arange(size), parts)[worker :: self.workers]:
                yield [PlannedClip(position + number, 0, worker) for number in range(len(part))]
                position += len(part)

    def _epoch(self, epoch: int) -> np.ndarray:
        """The samples of an epoch in their order, clip + clips x pass; all draws of a clip are different passes."""
        generator = np.random.default_rng([self.seed, epoch])
        if self.weights is None:
            return epoch * self.n_clips + generator.permutation(self.n_clips)
        most = math.ceil(self.weights.max())
        parts = []
        for weight in np.unique(self.weights):  # clips of one weight share what is left of it
            clips = np.flatnonzero(self.weights == weight)
            whole = int(weight)
            extra = (weight - whole) * len(clips)
            drawn = int(extra) + (generator.random() < extra - int(extra))
            passes = [clips] * whole + [generator.choice(clips, drawn, replace=False)]
            parts += [(epoch * most + number) * self.n_clips + some for number, some in enumerate(passes)]
        return generator.permutation(np.concatenate(parts))

    def _lengths(self, samples: np.ndarray) -> np.ndarray:
        """Feature frames of each sample; 0 where they are unknown."""
        if self.frames is None:
            return np.zeros(len(samples), np.int64)
        epochs, clips = np.divmod(samples, self.n_clips)
        return self.frames(epochs, clips) if callable(self.frames) else self.frames[clips]

    def _pools(self) -> Iterator[range]:
        """Steps that may exchange clips: some between the same two points, or each by itself."""
        most = _POOL_STEPS if self.by_length else 1
        ends = [step for step in range(1, self.n_steps + 1) if self.is_point(step)]
        for start, end in itertools.pairwise((0, *ends)):
            for first in range(start, end, most):
                yield range(first, min(end, first + most))

    def _steps(self, pool: range, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """The places of each step's clips in a pool: as they come, or by length, the steps in random order.

        Each step has the size that it would have, and all clips of the pool are seen by its end.
        """
        sizes = np.diff(self.boundaries[pool.start : pool.stop + 1])
        order, positions = np.arange(len(sizes)), np.arange(len(lengths))
        if self.by_length and self.frames is not None:
            positions = np.argsort(lengths, kind="stable")
            generator = np.random.default_rng([self.seed, pool.start, _POOL_STEPS])
            order = generator.permutation(len(sizes))
        parts = np.split(positions, np.cumsum(sizes[order])[:-1])
        return (parts[place] for place in np.argsort(order))


class PlannedBatches:
    """One worker's part of a `BatchPlan` as PyTorch's `DataLoader(batch_sampler=...)` wants it."""

    def __init__(self, plan: BatchPlan, worker: int = 0) -> None:
        self.plan = plan
        self.worker = worker
        self.batch_size = plan.batch_size
        self.drop_last = False

    def __iter__(self) -> Iterator[list[PlannedClip]]:
        return self.plan.passes(self.worker)

    def __len__(self) -> int:
        return self.plan.n_steps * self.plan.accumulation


def evaluation_batches(
    clips: Sequence[int],
    size: int,
    *,
    n_tokens: Callable[[int], int],
    window: Callable[[int], int],
    worker: int = 0,
    workers: int = 1,
) -> list[list[int]]:
    """A worker's batches of at most `size` of the clips to evaluate, those with long texts first.

    A batch is transcribed until its last clip has ended, so that texts of like length belong together; and clips of the
    same window, so that what is written for a clip depends on no other. All workers have equally many batches of
    the same sizes, for which some clips are in two; the evaluation counts each once, as clips carry their numbers.
    """
    batches = []
    for frames in sorted({window(clip) for clip in clips}, reverse=True):
        alike = sorted((clip for clip in clips if window(clip) == frames), key=n_tokens, reverse=True)
        alike += alike[-1:] * (-len(alike) % workers)
        for first in range(0, len(alike), size * workers):
            batches.append(alike[first + worker : first + size * workers : workers])
    return batches


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
