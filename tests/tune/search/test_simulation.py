"""Whole searches on made-up curves: all trials come to their end, a search that was cut off goes on as it was."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from curves.made_up import LearningCurves
from plans import space_of
from simulation import Simulation, our_search

from tune.experiments.events import (
    Entry,
    Evaluated,
    Event,
    TrialEnded,
    TrialProposed,
    TrialStarted,
    decode,
    encode,
)
from tune.experiments.state import SearchState
from tune.search.records import Records, Trial
from tune.search.searcher import Searcher
from tune.space.space import SearchSpace, load_space

RUNGS = (1024, 3072, 9216)


def lr_batch() -> SearchSpace:
    return load_space("lr_batch").resolve(1e-5)


def mixed(config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
    """Diverges at high rates, fails with large batches, is noisy else."""
    for name in ("failing", "diverging"):
        rates = LearningCurves(name, 3, RUNGS[-1])(config, samples_seen, trial_seed)
        if not math.isfinite(rates["wer"]):
            return rates
    return LearningCurves("noisy", 3, RUNGS[-1])(config, samples_seen, trial_seed)


def shown(simulation: Simulation) -> list[tuple[Any, ...]]:
    return [
        (record.trial_id, record.config, record.status, repr(record.evaluations), repr(record.stop))
        for record in simulation.records.all()
    ]


def folded(records: Records) -> Records:
    """What the log of these trials folds to; a search that was killed in mid-trial had not written their ends."""
    state = SearchState()
    for record in records.all():
        for event in _events_of(record):
            state.apply(decode(encode(Entry(state.events + 1, 1.0, event))))
    return state.records


def _events_of(record: Trial) -> Iterator[Event]:
    named: Any = {"trial_id": record.trial_id}
    yield TrialProposed(**named, config=record.config, effective_batch=record.effective_batch)
    yield TrialStarted(**named, folder=record.trial_id)
    rows = [
        (seen, {"wer": wer, "cer": wer / 3, "eval_loss": record.losses[seen]})
        for seen, wer in record.evaluations
    ]
    if record.outcome == "diverged":
        rows.append((record.samples_seen, {"wer": None}))  # type: ignore[dict-item]
    for seen, metrics in rows:
        last = seen == record.samples_seen
        ends: Any = {"finished": last and record.finished, "stop": record.stop if last else None}
        yield Evaluated(**named, samples_seen=seen, epoch=seen / 100, metrics=metrics, **ends)  # type: ignore[arg-type]
    if record.outcome != "running":
        yield TrialEnded(**named, status=record.outcome)


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


CONDITIONS = """\
learning_rate:
  - {type: float, low: 1.0e-6, high: 1.0e-3, log: true, when: {group_by_length: false}}
  - {type: float, low: 1.0e-5, high: 1.0e-2, log: true, when: {group_by_length: true}}
group_by_length: {type: choice, values: [false, true]}
mask_time_prob: {type: float, low: 0.02, high: 0.2, when: {spec_augment: true}}
spec_augment: {type: choice, values: [false, true], when: {group_by_length: false}}
searcher: {startup_trials: 6}
"""
BEST = {False: 2e-5, True: 1e-3}
"""Of the learning rate, by `group_by_length`."""


def valley(config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> Mapping[str, float]:
    """Each branch has a best learning rate of its own; masks are worth something where there are any."""
    off = math.log10(config["learning_rate"] / BEST[config["group_by_length"]])
    masks = 0.0 if "mask_time_prob" not in config else 20 * abs(config["mask_time_prob"] - 0.1) - 1
    wer = 20 + 5 * config["group_by_length"] + 8 * off**2 + masks + 10 * (1 - samples_seen / RUNGS[-1])
    return {"wer": wer, "cer": wer / 3, "eval_loss": wer / 50}


def test_under_conditions_each_trial_has_what_is_searched_there(tmp_path: Path) -> None:
    space = space_of(tmp_path, CONDITIONS, 1e-5).with_recipe(1e-5)
    records = our_search(space, valley, RUNGS, trials=32, seed=3, baseline=60.0).records.all()
    assert len(records) == len({repr(record.config) for record in records}) == 32
    both = {"learning_rate", "group_by_length"}
    masked = {*both, "spec_augment", "mask_time_prob"}
    assert {frozenset(record.config) for record in records} == {
        *map(frozenset, (both, both | {"spec_augment"}, masked))
    }
    for record in records:
        frozen = record.config["group_by_length"]
        assert space.outside(record.config) == []
        assert ("spec_augment" in record.config) is not frozen
        assert ("mask_time_prob" in record.config) is record.config.get("spec_augment", False)


def test_a_branch_of_few_points_ends_no_search(tmp_path: Path) -> None:
    """All that is easy to hit was tried soon; a range of real numbers below a rare value is never at its end."""
    text = (
        "train_batch_size: {type: int, low: 4, high: 20}\n"
        "group_by_length: {type: choice, values: [false, true], when: {train_batch_size: 8}}\n"
        "learning_rate: {type: float, low: 1.0e-6, high: 1.0e-3, log: true, when: {group_by_length: true}}\n"
    )
    space = space_of(tmp_path, text, 1e-5).with_recipe(1e-5)
    searcher = Searcher(space, seed=0, records=Records())
    points = [searcher.suggest(str(number)) for number in range(40)]
    assert not searcher.exhausted
    assert sum(point is not None and "learning_rate" in point for point in points) >= 40 - 18
    assert all(space.outside(point) == [] for point in points if point is not None)
