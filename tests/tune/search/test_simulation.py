"""Whole searches on made-up curves: every trial is told to its end, and a search that was cut off goes on as it was."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from curves import FAMILIES, LearningCurves, draw_curves
from folded import folded
from optuna.trial import TrialState
from simulated_controller import Limits, Simulation, TrialFailure
from simulation import simulate_ray, simulate_search

from tune.search.records import Records
from tune.space.space import SearchSpace, load_space

RUNGS = (1024, 3072, 9216)
STATES = {
    **{"completed": TrialState.COMPLETE, "early_stopped": TrialState.PRUNED},
    **{"failed": TrialState.FAIL, "diverged": TrialState.FAIL},
}


def lr_batch() -> SearchSpace:
    return load_space("lr_batch").resolve(1e-5)


def mixed(config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
    """Diverges at high rates, fails with large batches, is noisy else."""
    for name in ("failing", "diverging"):
        rates = draw_curves(name, 3, RUNGS[-1])(config, samples_seen, trial_seed)
        if not math.isfinite(rates["wer"]):
            return rates
    return draw_curves("noisy", 3, RUNGS[-1])(config, samples_seen, trial_seed)


def after_kill(records: Records) -> Records:
    """What the log that a killed search left folds to."""
    return folded(records)


def shown(simulation: Simulation) -> list[tuple[Any, ...]]:
    return [
        (record.trial_id, record.config, record.status, repr(record.evaluations), repr(record.stop))
        for record in simulation.records.all()
    ]


def test_300_trials_are_all_told_to_their_end() -> None:
    simulation = simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=300), slots=4, baseline=65.0)
    records, trials = simulation.records.all(), simulation.searcher.study.trials
    assert len(records) == len(trials) == 300
    assert all(trial.state.is_finished() for trial in trials)
    assert set(Counter(record.status for record in records)) == set(STATES)
    for record, trial in zip(records, trials, strict=True):
        assert trial.user_attrs["trial_id"] == record.trial_id
        assert trial.state == STATES[record.status]
        assert trial.params == record.config
        assert trial.intermediate_values == dict(record.evaluations)
        assert trial.value == record.best_wer if record.status == "completed" else True
    assert len({repr(sorted(record.config.items())) for record in records}) == 300


@pytest.fixture(scope="module")
def unbroken() -> Simulation:
    return simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=24), seed=7, baseline=65.0)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 6, 8, 11, 15, 20, 26, 33, 40])
def test_a_search_cut_after_any_evaluation_goes_on_as_the_unbroken_one(
    cut: int, unbroken: Simulation
) -> None:
    options: dict[str, Any] = {"seed": 7, "baseline": 65.0}
    first = simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=24, evaluations=cut), **options)
    records = after_kill(first.records)
    assert sum(len(record.evaluations) for record in records.all()) <= cut
    left = 24 - sum(record.status != "running" for record in records.all())
    second = simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=left), records=records, **options)
    assert shown(second) == shown(unbroken)
    assert [trial.params for trial in second.searcher.study.trials] == [
        trial.params for trial in unbroken.searcher.study.trials
    ]


@pytest.mark.parametrize("cut", [1, 7, 22, 41])
def test_a_search_of_four_at_a_time_loses_and_repeats_nothing(cut: int) -> None:
    options: dict[str, Any] = {"seed": 7, "slots": 4, "baseline": 65.0}
    first = simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=40, evaluations=cut), **options)
    records = after_kill(first.records)
    before = {record.trial_id: record.config for record in records.all()}
    left = 40 - sum(record.status != "running" for record in records.all())
    second = simulate_search(lr_batch(), mixed, RUNGS, Limits(trials=left), records=records, **options)
    after = {record.trial_id: record.config for record in second.records.all()}
    assert list(after) == [f"{number:03d}" for number in range(1, 41)]
    assert {number: after[number] for number in before} == before
    assert len({repr(sorted(config.items())) for config in after.values()}) == 40
    assert all(record.status in STATES for record in second.records.all())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_best_of_a_family_is_what_its_definition_says(name: Any) -> None:
    curves = draw_curves(name, 11, RUNGS[-1])
    grid = itertools.product(
        [10 ** (-6 + step / 30) for step in range(61)],
        [step / 50 for step in range(16)],
        [4, 8, 16],
        [1, 2, 4],
    )
    names = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")
    finals = [curves.final_wer(dict(zip(names, point, strict=True))) for point in grid]
    assert curves.best_wer <= min(finals) <= curves.best_wer + 0.3


@pytest.mark.parametrize("name", FAMILIES)
def test_curves_are_the_same_each_time_and_end_where_they_say(name: Any) -> None:
    curves = draw_curves(name, 2, RUNGS[-1])
    config = {"learning_rate": 1e-5, "warmup_ratio": 0.1, "train_batch_size": 8}
    again = draw_curves(name, 2, RUNGS[-1])
    points = [curves(config, rung, 5) for rung in RUNGS]
    assert points == [again(config, rung, 5) for rung in RUNGS]
    assert points[-1]["wer"] == pytest.approx(curves.final_wer(config), abs=2 if name == "noisy" else 1e-9)
    assert curves.baseline > points[0]["wer"] > points[-1]["wer"]
    assert 9 <= curves.best_wer <= 30
    assert 60 <= curves.baseline <= 70


def test_what_sets_the_families_apart() -> None:
    def curves(name: Any) -> LearningCurves:
        return dataclasses.replace(draw_curves(name, 4, RUNGS[-1]), best_rate=0.0)

    slow, quick = ({"learning_rate": rate} for rate in (1e-5, 2.5e-5))
    crossing = curves("crossing")
    assert crossing(quick, RUNGS[0], 0)["wer"] < crossing(slow, RUNGS[0], 0)["wer"]
    assert crossing(quick, RUNGS[-1], 0)["wer"] > crossing(slow, RUNGS[-1], 0)["wer"]
    assert curves("noisy")(slow, 1024, 0) != curves("noisy")(slow, 1024, 1)
    diverged = curves("diverging")({"learning_rate": 1e-4}, RUNGS[-1], 0)["wer"]
    assert not diverged < 100
    with pytest.raises(TrialFailure):
        curves("failing")({"learning_rate": 1e-5, "train_batch_size": 16}, RUNGS[0], 0)


def test_rays_own_searcher_and_scheduler_run_on_the_same_clock() -> None:
    from ray.tune.schedulers import FIFOScheduler
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(lr_batch().to_optuna(), metric="wer", mode="min", seed=1)
    curves = draw_curves("smooth", 1, RUNGS[-1])
    simulation = simulate_ray(searcher, FIFOScheduler(), curves, RUNGS, Limits(trials=8), slots=4)
    assert [found.samples for found in simulation.timeline[::4]] == [4 * 9216, 8 * 9216]
    assert simulation.samples == 8 * 9216
    assert {record.status for record in simulation.records.all()} == {"completed"}
