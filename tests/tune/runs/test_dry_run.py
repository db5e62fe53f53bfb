"""What `--dry-run` says that a search costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune.cluster.resources import TrialResources
from tune.runs.dry_run import Estimate, describe_cost, estimate_samples
from tune.space.space import load_space

RUNGS = (1024, 3072, 9216)


def test_an_estimate_lies_between_its_bounds_and_is_the_same_each_time() -> None:
    space = load_space("lr_batch").resolve(1e-5)
    estimate = estimate_samples(space, RUNGS, 12, slots=2)
    assert 12 * RUNGS[0] < estimate.least <= estimate.middle <= estimate.most < 12 * RUNGS[-1]
    assert estimate.unstopped == 12 * RUNGS[-1]
    assert estimate == estimate_samples(space, RUNGS, 12, slots=2)


def test_one_rung_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("dropout: {type: float, low: 0.0, high: 0.3}\nscheduler: {rungs: 1}\n")
    estimate = estimate_samples(load_space(str(path)).resolve(1e-5), (9216,), 4)
    assert estimate == Estimate(4 * 9216, 4 * 9216, 4 * 9216, 4 * 9216)
    assert estimate.describe() == "about 37,000 samples in all"


def test_more_trials_than_are_simulated_cost_more() -> None:
    space = load_space("lr_batch").resolve(1e-5)
    assert estimate_samples(space, RUNGS, 320).middle == 10 * estimate_samples(space, RUNGS, 32).middle


def test_a_budget_in_steps_is_shorter_for_small_batches() -> None:
    space = load_space("lr_batch").resolve(1e-5)

    def most(config: dict[str, int]) -> float:
        return 144 * config["train_batch_size"] * config["gradient_accumulation_steps"]

    whole = estimate_samples(space, RUNGS, 8)
    shorter = estimate_samples(space, RUNGS, 8, most_samples=most)
    assert shorter.middle < whole.middle
    assert shorter.unstopped < whole.unstopped


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (
            Estimate(40_123, 61_400, 90_900, 250_000),
            "about 61,000 samples in all (between 40,000 and 91,000), 4.1 x fewer than without stopping",
        ),
        (Estimate(90, 90, 90, 90), "about 90 samples in all"),
    ],
)
def test_an_estimate_in_words(estimate: Estimate, text: str) -> None:
    assert estimate.describe() == text


def test_the_cost_in_words() -> None:
    assert describe_cost(72_000, 0.5, TrialResources(gpus=2, cpus=8, concurrent=4)) == (
        "about 2h30m with 4 trials at a time, 20 GPU-hours"
    )
    assert describe_cost(7_200, 0.5, TrialResources(gpus=0, cpus=1, concurrent=1)) == (
        "about 1h with one trial at a time"
    )
