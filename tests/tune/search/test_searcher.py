"""What is proposed, what Optuna is told of the trials, and that a resumed search is an unbroken one."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState
from plans import space_of
from test_simulation import folded

from tune.search.proposals import propose
from tune.search.records import Records, Trial, TrialOutcome
from tune.search.searcher import TRIAL_ID, EarlierTrial, Searcher
from tune.space.space import SearchSpace, load_space

CHOICES = "train_batch_size: {type: choice, values: [4, 8]}\ngroup_by_length: {type: choice, values: [false, true]}\n"


def lr_batch() -> SearchSpace:
    return load_space("lr_batch").resolve(1e-3)


class Search:
    """A searcher with its records, driven as Ray and the callback drive it."""

    def __init__(self, space: SearchSpace, records: Records | None = None, **options: Any) -> None:
        self.records = records or Records()
        self.searcher = Searcher(space, **{"seed": 5, "records": self.records, **options})

    def begin(self, ray_id: str) -> Trial:
        config = self.searcher.suggest(ray_id)
        return self.records.start(config.pop(TRIAL_ID), config)

    def measure(self, ray_id: str, record: Trial, samples: int, wer: float, ends: bool = False) -> None:
        result = {
            **{"wer": wer, "cer": wer, "samples_seen": samples},
            **{"epoch": samples / 900, "finished": float(samples == 900)},
        }
        record.add_evaluation(result)
        if ends:
            self.end(ray_id, record, "completed")

    def end(self, ray_id: str, record: Trial, outcome: TrialOutcome) -> None:
        record.end(outcome)
        self.searcher.on_trial_complete(ray_id)

    @property
    def trials(self) -> list[Any]:
        return self.searcher.trials()


def restored(records: Records) -> Records:
    """As a search that goes on has them; ends that the test made up stay."""
    new = folded(records)
    for record in new.all():
        old = records[record.trial_id]
        record.status, record.best_value = old.status, old.best_value
    return new


def test_states_values_and_samples_seen() -> None:
    search = Search(lr_batch())
    a, b, c, d, _ = (search.begin(name) for name in "abcde")
    search.measure("a", a, 100, 30.0)
    search.measure("a", a, 300, 11.0)
    search.measure("a", a, 900, 12.0, ends=True)
    search.measure("b", b, 100, 70.0)
    search.end("b", b, "early_stopped")
    search.measure("c", c, 150, math.nan)
    search.end("c", c, "diverged")
    search.end("d", d, "failed")
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.FAIL, TrialState.RUNNING]
    assert [trial.state for trial in search.trials] == states
    assert search.trials[0].value == 11.0
    assert search.trials[0].intermediate_values == {100: 30.0, 300: 11.0, 900: 12.0}
    assert search.trials[1].intermediate_values == {100: 70.0}
    assert search.trials[2].intermediate_values == {}


def test_no_settings_twice_and_an_end_when_all_were_tried(tmp_path: Path) -> None:
    search = Search(space_of(tmp_path, CHOICES))
    for name in "abcd":
        search.measure(name, search.begin(name), 900, 20.0, ends=True)
    tried = [tuple(record.config.values()) for record in search.records.all()]
    assert sorted(tried) == [(4, False), (4, True), (8, False), (8, True)]
    for again in (search, Search(space_of(tmp_path, CHOICES), restored(search.records))):
        assert again.searcher.suggest("e") is None
        assert again.searcher.exhausted
    assert [trial.state for trial in search.trials] == [TrialState.COMPLETE] * 4


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("dropout: {type: float, low: 0, high: 0.3, step: 0.05}\ntry_first: [{dropout: 0.15}]\n", 7),
        ("max_grad_norm: {type: int, low: 1, high: 3}\ntry_first: [{max_grad_norm: 2}]\n", 3),
    ],
)
def test_numbers_that_are_written_differently_are_the_same_settings(
    text: str, count: int, tmp_path: Path
) -> None:
    """3 x 0.05 is 0.15000000000000002, and of the field's type 2 is 2.0."""
    search = Search(space_of(tmp_path, text))
    for number in range(count):
        search.measure(f"{number}", search.begin(f"{number}"), 900, 20.0, ends=True)
    assert search.searcher.suggest("one more") is None


def test_settings_that_fail_at_once_are_left_alone(tmp_path: Path) -> None:
    """Optuna's own TPE leaves failed trials out: it proposed batches without memory again and again."""
    text = (
        "train_batch_size: {type: choice, values: [4, 64]}\ndropout: {type: float, low: 0.0, high: 0.5}\n"
        "searcher: {startup_trials: 4}\n"
    )
    space = space_of(tmp_path, text)
    search = Search(space)
    for number in range(24):
        record = search.begin(str(number))
        if record.config["train_batch_size"] == 64:
            search.end(str(number), record, "failed")
        else:
            search.measure(str(number), record, 900, 20 + record.config["dropout"], ends=True)
    assert sum(record.status == "failed" for record in search.records.all()[10:]) <= 4


def test_no_more_trials_than_there_is_room_for() -> None:
    room = [2]
    search = Search(lr_batch(), capacity=lambda: room[0])
    a = search.begin("a")
    search.begin("b")
    assert search.searcher.suggest("c") is None
    room[0] = 3  # a node has joined
    assert search.searcher.suggest("c")[TRIAL_ID] == "003"
    room[0] = 1  # two have gone
    search.end("a", a, "failed")
    assert search.searcher.suggest("d") is None


def earlier_trials(*, comparable: bool = True) -> list[EarlierTrial]:
    """Twenty of them, best at a third of the default rate."""
    rates = [10 ** (-4 + number / 10) for number in range(20)]
    return [
        EarlierTrial({**POINT, "learning_rate": rate}, [(900, wer)], wer, comparable)
        for rate in rates
        for wer in [20 + 30 * abs(math.log10(rate / 3e-4))]
    ]


def test_earlier_trials_are_learned_from() -> None:
    """What is proposed lies around their best."""
    told, untold = Search(lr_batch(), earlier=earlier_trials()), Search(lr_batch())
    for search, expected in ((told, 0.35), (untold, None)):
        proposals = [search.begin(str(number)).config["learning_rate"] for number in range(12)][1:]
        off = sorted(abs(math.log10(rate / 3e-4)) for rate in proposals)[5]
        assert off < expected if expected else off > 0.35


@pytest.mark.parametrize(
    ("ended", "comparable", "same"), [(9, False, False), (10, False, True), (10, True, False)]
)
def test_trials_of_other_data_teach_until_enough_of_this_search_have_ended(
    ended: int, comparable: bool, same: bool
) -> None:
    """On data that are easier all of them would seem better than any of this search."""
    earlier = earlier_trials(comparable=comparable)
    told, untold = Search(lr_batch(), earlier=earlier), Search(lr_batch())
    for search in (told, untold):
        for number in range(ended):
            record = search.records.start(f"{number + 1:03d}", {**POINT, "learning_rate": 1e-3 * 1.1**number})
            search.measure("", record, 900, 60.0 + number, ends=True)
    proposed, alone = (search.begin("next").config for search in (told, untold))
    assert (proposed == alone) is same


POINT = {
    **{"learning_rate": 1e-3, "warmup_ratio": 0.1},
    **{"train_batch_size": 8, "gradient_accumulation_steps": 1},
}


@pytest.mark.parametrize("outcome", ["early_stopped", "running"])
def test_trials_without_their_whole_budget_are_learned_from(tmp_path: Path, outcome: TrialOutcome) -> None:
    """The good ones have rates about 1e-4; Optuna itself takes all that run for poor."""
    text = "learning_rate: {type: float, low: 1e-5, high: 1e-2, log: true}\nsearcher: {startup_trials: 4}"
    space = space_of(tmp_path, text)
    search = Search(space)
    for number, exponent in enumerate(np.linspace(-4.9, -2.1, 24)):
        record = search.records.start(f"{number + 1:03d}", {"learning_rate": 10**exponent})
        search.measure("", record, 100, 30 + 5 * (exponent + 4) ** 2)
        if outcome != "running" or abs(exponent + 4) > 1:
            record.end("early_stopped")
    rates = [propose(space, seed, search.trials, 25)["learning_rate"] for seed in range(12)]
    assert sum(abs(math.log10(rate / 1e-4)) < 0.5 for rate in rates) >= 9, rates
