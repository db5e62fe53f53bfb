"""The plan of batches: exact evaluation points for every batch size."""

import dataclasses
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainer.config import TrainConfig
from trainer.train import plan_batches
from trainer.training.batches import BatchPlan, PlannedBatches, evaluation_batches, plan_points


def plan(batch: int, accumulation: int, points: tuple[int, ...] = (48, 144, 432)) -> BatchPlan:
    return BatchPlan(n_clips=100, batch_size=batch, accumulation=accumulation, points=points, seed=3)


def micro_batches(made: BatchPlan, worker: int = 0) -> Iterator[list[int]]:
    """The clips of each forward pass."""
    return ([each.clip for each in clips] for clips in made.passes(worker))


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 4), (7, 3), (1, 16), (16, 1), (64, 8)])
def test_every_batch_size_lands_on_every_point_and_covers_epochs_without_repeats(
    batch: int, accumulation: int
) -> None:
    made = plan(batch, accumulation)
    seen = [made.samples_seen(step) for step in range(made.n_steps + 1)]
    assert [point for step, point in enumerate(seen) if made.is_point(step)] == list(made.points)
    sizes = [after - before for before, after in itertools.pairwise(seen)]
    assert min(sizes) >= 1 and max(sizes) <= batch * accumulation
    chunks = list(micro_batches(made))
    assert len(chunks) == made.n_steps * accumulation
    assert max(map(len, chunks)) <= batch
    stream = [clip for chunk in chunks for clip in chunk]
    assert len(stream) == 432
    for epoch in range(4):
        assert sorted(stream[100 * epoch : 100 * (epoch + 1)]) == list(range(100))
    assert stream[:100] != stream[100:200]


def test_order_does_not_depend_on_the_batch_size_but_on_the_seed() -> None:
    streams = [
        [clip for chunk in micro_batches(plan(*sizes)) for clip in chunk] for sizes in [(4, 1), (16, 4)]
    ]
    assert streams[0] == streams[1]
    other = dataclasses.replace(plan(4, 1, (48,)), seed=4)
    assert [clip for chunk in micro_batches(other) for clip in chunk] != streams[0][:48]


@pytest.mark.parametrize("max_steps", [1, 7, 50])
@pytest.mark.parametrize(("batch", "accumulation"), [(8, 1), (7, 3), (1, 2)])
@pytest.mark.parametrize("rungs", [(14, 42, 128), (64, 192), None])
def test_a_budget_in_steps_is_kept_to_the_step(
    max_steps: int, batch: int, accumulation: int, rungs: tuple[int, ...] | None
) -> None:
    config = TrainConfig(
        max_steps=max_steps,
        train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        evaluate_at=rungs,
    )
    clips: Any = SimpleNamespace(n_clips=100, epoch_samples=100.0, weights=lambda given: None)
    made = plan_batches(config, clips)
    assert made.n_steps == max_steps
    asked = max_steps * batch * accumulation
    on_batches = all(rung % (batch * accumulation) == 0 for rung in rungs or ())
    assert made.samples_seen(max_steps) == asked if on_batches else made.samples_seen(max_steps) <= asked
    assert all(point in made.points for point in rungs or () if point < made.points[-1])


def test_points_of_a_run_and_of_a_search() -> None:
    assert plan_points(100, 4, None) == (25, 50, 75, 100)
    assert plan_points(100, 4, (11, 33, 99)) == (11, 33, 99, 100)
    assert plan_points(40, 4, (11, 33, 99)) == (11, 33, 40)
    assert plan_points(100, 4, None, batch=16) == (32, 48, 80, 100)
    assert plan_points(16, 4, None, batch=8) == (8, 16)


@pytest.mark.parametrize(("batch", "accumulation", "workers"), [(4, 1, 4), (3, 3, 2), (1, 4, 3)])
def test_workers_share_every_step(batch: int, accumulation: int, workers: int) -> None:
    alone = plan(batch * workers, accumulation)
    shared = dataclasses.replace(plan(batch, accumulation), workers=workers)
    assert shared.boundaries.tolist() == alone.boundaries.tolist()

    def steps(made: BatchPlan, worker: int = 0) -> list[list[list[int]]]:
        passes = list(micro_batches(made, worker))
        assert max(len(clips) for clips in passes) <= made.batch_size
        return [passes[first : first + accumulation] for first in range(0, len(passes), accumulation)]

    parts = [steps(shared, worker) for worker in range(workers)]
    assert {len(part) for part in parts} == {shared.n_steps}, "a worker would wait for the others for ever"
    for step, whole in enumerate(steps(alone)):
        together = sorted(clip for part in parts for clips in part[step] for clip in clips)
        assert together == sorted(clip for clips in whole for clip in clips)


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize(("clips", "workers"), [(17, 2), (16, 4), (3, 8), (1, 1)])
def test_evaluation_is_split_evenly_and_leaves_nothing_out(clips: int, workers: int, windows: int) -> None:
    def batches(worker: int) -> list[list[int]]:
        return evaluation_batches(
            range(clips),
            4,
            n_tokens=lambda clip: 5 + clip % 7,
            window=lambda clip: clip % windows,
            worker=worker,
            workers=workers,
        )

    shares = [batches(worker) for worker in range(workers)]
    sizes = [[len(batch) for batch in share] for share in shares]
    assert all(each == sizes[0] for each in sizes), "a worker would wait for the others for ever"
    assert 0 < max(sizes[0]) <= 4
    assert {clip for share in shares for batch in share for clip in batch} == set(range(clips))
    for batch in (batch for share in shares for batch in share):
        assert len({clip % windows for clip in batch}) == 1
        tokens = [5 + clip % 7 for clip in batch]
        assert tokens == sorted(tokens, reverse=True)


def test_clips_of_like_length_share_a_step() -> None:
    frames = np.random.default_rng(0).integers(50, 250, 400)
    random = BatchPlan(n_clips=400, batch_size=8, accumulation=1, points=(200, 1000), seed=3, frames=frames)
    grouped = dataclasses.replace(random, by_length=True)
    assert grouped.boundaries.tolist() == random.boundaries.tolist()

    def waste(made: BatchPlan) -> float:
        """Frames of padding to the longest of the step, per frame of a clip."""
        steps = [frames[clips].tolist() for clips in micro_batches(made)]
        return sum(len(step) * max(step) for step in steps) / sum(map(sum, steps)) - 1

    assert waste(grouped) < 0.1 < waste(random)
    # By each point, and by the end of each epoch between them, the same clips have been seen as without.
    order, other = ([clip for clips in micro_batches(made) for clip in clips] for made in (random, grouped))
    for point in (200, 1000):
        assert sorted(order[:point]) == sorted(other[:point])
    lengths = [max(frames[clip] for clip in clips) for clips in micro_batches(grouped)]
    assert lengths != sorted(lengths), "short and long clips take turns"


@pytest.mark.parametrize("by_length", [False, True])
def test_the_longest_clip_of_a_step_counts_for_all_its_passes(by_length: bool) -> None:
    frames = np.arange(1, 49)
    unknown = BatchPlan(n_clips=48, batch_size=4, accumulation=2, points=(48,), seed=3, workers=2)
    plan = dataclasses.replace(unknown, frames=frames, by_length=by_length)
    assert (list(micro_batches(plan)) == list(micro_batches(unknown))) is not by_length
    passes = [list(PlannedBatches(plan, worker)) for worker in range(2)]
    for first in range(0, len(passes[0]), 2):
        together = [clip for part in passes for clips in part[first : first + 2] for clip in clips]
        assert {each.longest for each in together} == {max(frames[each.clip] for each in together)}


def test_clips_know_their_epoch_and_lengths_may_differ_by_it() -> None:
    """The third epoch begins within a step; the longest clip of a step is that of each clip's own epoch."""

    def lengths(epochs: np.ndarray, clips: np.ndarray) -> np.ndarray:
        return 100 * epochs + clips + 1

    plan = BatchPlan(n_clips=10, batch_size=8, accumulation=1, points=(24,), seed=3, frames=lengths)
    steps = list(plan.passes())
    seen = [(each.epoch, each.clip) for step in steps for each in step]
    assert [epoch for epoch, _ in seen] == [0] * 10 + [1] * 10 + [2] * 4
    for epoch in range(2):
        assert sorted(clip for number, clip in seen if number == epoch) == list(range(10))
    for step in steps:
        assert {each.longest for each in step} == {max(100 * each.epoch + each.clip + 1 for each in step)}
    grouped = dataclasses.replace(plan, by_length=True)
    assert sorted(seen) == sorted((each.epoch, each.clip) for step in grouped.passes() for each in step)


@pytest.mark.parametrize("weights", [(1.0, 0.25), (0.0, 2.0, 1.37), (3.0, 1.0)])
@pytest.mark.parametrize(("clips", "batch"), [(2, 1), (13, 4), (40, 9)])
def test_a_weight_is_how_often_a_clip_comes(weights: tuple[float, ...], clips: int, batch: int) -> None:
    of_clips = np.repeat(weights, clips)
    epoch = float(of_clips.sum())
    made = BatchPlan(
        **{"n_clips": len(of_clips), "batch_size": batch, "accumulation": 2, "seed": 5, "workers": 2},
        **{"points": (30, round(30 * epoch)), "weights": of_clips, "epoch_samples": epoch},
    )
    passes = [list(made.passes(worker)) for worker in range(2)]
    draws = [each for some in passes for one in some for each in one]
    assert len(draws) == made.points[-1] == made.samples_seen(made.n_steps), "what is planned is what comes"
    assert passes == [list(made.passes(worker)) for worker in range(2)], "by seed alone"
    assert len({(each.epoch, each.clip) for each in draws}) == len(draws), "each draw is changed otherwise"
    counts = np.bincount([each.clip for each in draws], minlength=len(of_clips)).reshape(len(weights), clips)
    for weight, of_source in zip(weights, counts, strict=True):
        # 30 epochs: of all clips of a weight to within what is drawn of one, and what the last epoch lacks.
        assert abs(of_source.mean() - 30 * weight) <= max(3, 6 * (30 * weight) ** 0.5 / clips) + weight
        if weight.is_integer():
            assert of_source.max() - of_source.min() <= 2 * max(weight, 1)
    assert made.epoch(made.n_steps) == pytest.approx(30, abs=0.5)
