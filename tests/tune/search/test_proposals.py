"""A proposal depends on the trials before alone: what is kept from one to the next changes none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tune.search.proposals import EARLIER, Proposer
from tune.search.samplers import BUDGET, projected, tpe
from tune.space.space import SearchSpace, load_space

RANGES = """\
learning_rate: {type: float, low: 1.0e-5, high: 1.0e-2, log: true}
warmup_ratio: {type: float, low: 0, high: 0.3}
"""
CHOICES = "train_batch_size: {type: choice, values: [4, 8]}\n"
ONE = "gradient_accumulation_steps: {type: choice, values: [2]}\n"
TPE_ALONE = "gp_trials: 0, startup_trials: 4"


def space_of(folder: Path, text: str) -> SearchSpace:
    path = folder / "space.yaml"
    path.write_text(text)
    return load_space(str(path)).resolve(1e-3)


def told(study: optuna.Study, number: int, space: SearchSpace, params: dict[str, Any]) -> None:
    """Add a trial and lead the trials before it on: some go on, some end in each of the ways."""
    study.enqueue_trial(params)
    study.ask(fixed_distributions=space.to_optuna())
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        open_one = optuna.trial.Trial(study, trial._trial_id)
        if (trial.number + number) % 3 == 0:
            open_one.report(60.0 - 3 * ((7 * trial.number + number) % 11), 100 * (number - trial.number + 1))
        if number - trial.number > 3:
            state = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)[trial.number % 3]
            study.tell(open_one, 40.0 - trial.number % 7 if state == TrialState.COMPLETE else None, state)


@pytest.mark.parametrize(
    "text",
    [
        f"{RANGES}{CHOICES}searcher: {{{TPE_ALONE}}}",
        f"{RANGES}{ONE}searcher: {{{TPE_ALONE}, multivariate: false}}",
        f"{RANGES}{CHOICES}searcher: {{{TPE_ALONE}, constant_liar: false}}",
        f"{RANGES}{CHOICES}searcher: {{gp_trials: 7, startup_trials: 3}}",
    ],
    ids=["TPE", "each parameter by itself", "running ones left out", "a Gaussian process first"],
)
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_what_is_kept_changes_no_proposal(tmp_path: Path, text: str, warm: bool) -> None:
    space = space_of(tmp_path, text)
    study = optuna.create_study()
    distributions = {"learning_rate": space.to_optuna()["learning_rate"]}
    for place in range(6 if warm else 0):  # of an experiment that had fewer parameters
        study.add_trial(
            optuna.trial.create_trial(
                params={"learning_rate": 1e-4 * (place + 1)},
                distributions=distributions,
                value=30.0 + place,
                user_attrs={EARLIER: "an earlier experiment"},
            )
        )
    kept = Proposer(space, 3)
    seen = []
    for number in range(1, 20):
        trials = study.get_trials(deepcopy=False)
        params = kept.propose(trials, number)
        assert params is not None
        assert params == Proposer(space, 3).propose(study.get_trials(), number)
        assert all(params != other for other in seen)
        seen.append(params)
        told(study, len(trials), space, params)
    assert {trial.state for trial in study.trials} >= {
        TrialState.COMPLETE,
        TrialState.PRUNED,
        TrialState.FAIL,
    }


@pytest.mark.parametrize(
    "text", [f"{RANGES}{CHOICES}", f"{ONE}{RANGES}"], ids=["all free", "one of a single value"]
)
def test_the_sampler_need_not_look_for_the_parameters(tmp_path: Path, text: str) -> None:
    space = space_of(tmp_path, f"{text}searcher: {{{TPE_ALONE}}}")
    study = optuna.create_study()
    for number in range(12):
        proposals = []
        for whole in (space.to_optuna(), None):
            model = optuna.create_study(sampler=tpe(space, number, whole))
            model.add_trials(study.get_trials())
            proposals.append(model.ask(fixed_distributions=space.to_optuna()).params)
        assert proposals[0] == proposals[1]
        told(study, number, space, proposals[0])


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
    return [trial.value for trial in projected(study.get_trials(deepcopy=False)).trials]


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


def test_a_stretch_that_no_trial_passed_is_reached_by_going_on_backwards() -> None:
    """The earlier experiment measured nobody as early as where ours was stopped."""
    wer = falling(900)
    earlier, stopped = ({seen: wer(seen) for seen in grid} for grid in ((300, 900), (100,)))
    assert seen_by_the_gaussian_process(complete(earlier), one(stopped)) == pytest.approx([10.7, 10.7])


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


def test_an_overfit_trial_counts_with_its_best_wer() -> None:
    """It is what its export would have, and what its record says."""
    overfit = complete({100: 40.0, 300: 20.0, 900: 26.0})
    assert overfit.value == 20.0
    # From 300 on others gain nothing: neither does one that was stopped there, nor is it made worse.
    assert seen_by_the_gaussian_process(overfit, one({100: 44.0, 300: 24.0})) == [20.0, 24.0]


def test_failed_trials_count_as_the_worst_and_those_without_an_evaluation_as_running() -> None:
    found = seen_by_the_gaussian_process(
        complete({300: 20.0, 900: 10.0}),
        one({300: 50.0}),
        one({}, TrialState.FAIL),
        one({}, TrialState.RUNNING),
    )
    assert found == [10.0, 40.0, 40.0, None]
