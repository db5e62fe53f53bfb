"""What is proposed, what Optuna is told of the trials, and that a resumed search is an unbroken one."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from plans import space_of
from test_simulation import folded

from tune.search.projections import BUDGET, projected
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


def test_settings_that_fail_at_once_are_left_alone(tmp_path: Path) -> None:
    """Optuna's own TPE leaves failed trials out: it proposed batches without memory again and again."""
    text = (
        "train_batch_size: {type: choice, values: [4, 64]}\ndropout: {type: float, low: 0.0, high: 0.5}\n"
        "searcher: {startup_trials: 4}\n"
    )
    search = Search(space_of(tmp_path, text))
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


def test_earlier_trials_are_learned_from() -> None:
    """Twenty trials of before, best at a third of the default rate: what is proposed lies around it."""
    rates = [10 ** (-4 + number / 10) for number in range(20)]
    earlier = [
        EarlierTrial({**POINT, "learning_rate": rate}, [(900, wer)], wer)
        for rate in rates
        for wer in [20 + 30 * abs(math.log10(rate / 3e-4))]
    ]
    told, untold = Search(lr_batch(), earlier=earlier), Search(lr_batch())
    for search, expected in ((told, 0.35), (untold, None)):
        proposals = [search.begin(str(number)).config["learning_rate"] for number in range(12)][1:]
        off = sorted(abs(math.log10(rate / 3e-4)) for rate in proposals)[5]
        assert off < expected if expected else off > 0.35


POINT = {
    **{"learning_rate": 1e-3, "warmup_ratio": 0.1},
    **{"train_batch_size": 8, "gradient_accumulation_steps": 1},
}


def test_trials_stopped_early_are_learned_from_without_their_last_rungs(tmp_path: Path) -> None:
    """A trial far from the valley that had its whole budget is below a near one that was stopped at its first rung."""
    search = Search(
        space_of(tmp_path, "learning_rate: {type: float, low: 1e-5, high: 1e-2, log: true}\n"
                           "try_first: [{learning_rate: 1e-2}]\nsearcher: {startup_trials: 3}")
    )  # fmt: skip
    for number in range(12):
        record = search.begin(str(number))
        cost = 5 * math.log10(record.config["learning_rate"] / 1e-4) ** 2
        search.measure(str(number), record, 100, 60 + cost)
        if number in (0, 1):
            search.measure(str(number), record, 900, 30 + cost, ends=True)
        else:
            search.end(str(number), record, "early_stopped")
    rates = [trial.params["learning_rate"] for trial in search.trials[5:]]
    assert min(abs(math.log10(rate / 1e-4)) for rate in rates) < 0.15
    assert sum(abs(math.log10(rate / 1e-4)) < 1 for rate in rates) >= 5, rates


def test_each_trial_is_told_with_its_own_full_budget() -> None:
    search = Search(lr_batch(), budget=lambda record: 100 * record.config["train_batch_size"])
    records = [search.begin(name) for name in "abc"]
    budgets = [trial.user_attrs["budget"] for trial in search.trials]
    assert budgets == [100 * record.config["train_batch_size"] for record in records]


def one(
    curve: Mapping[int, float],
    state: TrialState = TrialState.PRUNED,
    *,
    value: float | None = None,
    budget: int | None = None,
    rate: float = 1e-3,
) -> optuna.trial.FrozenTrial:
    """A trial with these WERs at these samples."""
    return optuna.trial.create_trial(
        params={"learning_rate": rate},
        distributions={"learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True)},
        state=state,
        value=value,
        intermediate_values=dict(curve),
        user_attrs={} if budget is None else {BUDGET: budget},
    )


def complete(curve: Mapping[int, float], **options: Any) -> optuna.trial.FrozenTrial:
    return one(curve, TrialState.COMPLETE, value=min(curve.values()), **options)


def seen_by_the_gaussian_process(*trials: optuna.trial.FrozenTrial) -> list[float | None]:
    study = optuna.create_study()
    study.add_trials(trials)  # they get their numbers
    return [trial.value for trial in projected(study.get_trials(deepcopy=False))]


def falling(budget: int, end: float = 10.7, fall: float = 20.3 / math.log(9)) -> Callable[[int], float]:
    """WER by samples: it falls by the same with each doubling."""
    return lambda samples: end + fall * math.log(budget / samples)


def test_a_stopped_trial_is_projected_over_rungs_of_another_grid() -> None:
    """As after a warm start: no trial has passed two neighbouring ones of all rungs."""
    wer = falling(900)
    earlier, stopped, later = (
        {seen: wer(seen) for seen in grid} for grid in ((50, 250, 900), (100,), (100, 500))
    )
    assert stopped[100] == pytest.approx(31.0)
    found = seen_by_the_gaussian_process(complete(earlier), one(stopped), one(later))
    assert found == pytest.approx([10.7, 10.7, 10.7])


def test_a_complete_trial_counts_with_its_own_wer_at_its_own_end() -> None:
    """With `--max-steps` a smaller batch sees fewer samples: its end is a rung of others."""
    trials = [
        complete({100: 50.0, 300: 30.0}, budget=300),
        complete({100: 60.0, 300: 40.0, 900: 20.0}, budget=900),
    ]
    assert seen_by_the_gaussian_process(*trials) == [30.0, 20.0]


def test_a_stopped_trial_is_projected_to_its_own_end() -> None:
    """Curves of one shape over their budgets, of which one is a third of the other."""
    short, long = falling(300), falling(900)
    found = seen_by_the_gaussian_process(
        complete({seen: long(seen) for seen in (100, 300, 900)}, budget=900),
        one({100: short(100)}, budget=300),
        one({100: long(100)}, budget=900),
        one({100: short(100)}, TrialState.RUNNING, budget=300),
    )
    assert found == pytest.approx([10.7] * 4)


def test_failed_trials_count_as_the_worst_and_those_without_an_evaluation_as_running() -> None:
    found = seen_by_the_gaussian_process(
        complete({300: 20.0, 900: 10.0}),
        one({300: 50.0}),
        one({}, TrialState.FAIL),
        one({}, TrialState.RUNNING),
    )
    assert found == [10.0, 40.0, 40.0, None]
