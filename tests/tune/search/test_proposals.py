"""What the Gaussian process is told of trials that were stopped early."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tune.search.projections import BUDGET, projected


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
