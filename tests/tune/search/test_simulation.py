"""Whole searches on made-up curves: every trial comes to its end, and a search that was cut off goes on as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from curves import draw_curves
from made_logs import folded
from simulation import Simulation, our_search

from tune.space.space import SearchSpace, load_space

RUNGS = (1024, 3072, 9216)


def lr_batch() -> SearchSpace:
    return load_space("lr_batch").resolve(1e-5)


def mixed(config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
    """Diverges at high rates, fails with large batches, is noisy else."""
    for name in ("failing", "diverging"):
        rates = draw_curves(name, 3, RUNGS[-1])(config, samples_seen, trial_seed)
        if not math.isfinite(rates["wer"]):
            return rates
    return draw_curves("noisy", 3, RUNGS[-1])(config, samples_seen, trial_seed)


def shown(simulation: Simulation) -> list[tuple[Any, ...]]:
    return [
        (record.trial_id, record.config, record.status, repr(record.evaluations), repr(record.stop))
        for record in simulation.records.all()
    ]


def test_100_trials_come_to_their_end() -> None:
    simulation = our_search(lr_batch(), mixed, RUNGS, trials=100, slots=4, baseline=65.0)
    records = simulation.records.all()
    assert len(records) == len({repr(sorted(record.config.items())) for record in records}) == 100
    assert {record.status for record in records} == {"completed", "early_stopped", "failed", "diverged"}


@pytest.fixture(scope="module")
def unbroken() -> Simulation:
    return our_search(lr_batch(), mixed, RUNGS, trials=24, seed=7, baseline=65.0)


@pytest.mark.parametrize("cut", [1, 4, 11, 26, 40])
def test_a_search_cut_after_any_evaluation_goes_on_as_the_unbroken_one(
    cut: int, unbroken: Simulation
) -> None:
    options: dict[str, Any] = {"seed": 7, "baseline": 65.0}
    first = our_search(lr_batch(), mixed, RUNGS, trials=24, evaluations=cut, **options)
    records = folded(first.records)
    assert sum(len(record.evaluations) for record in records.all()) <= cut
    left = 24 - sum(record.status != "running" for record in records.all())
    second = our_search(lr_batch(), mixed, RUNGS, trials=left, records=records, **options)
    assert shown(second) == shown(unbroken)
