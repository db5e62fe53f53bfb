"""Where the next trial goes: a pure function of the trials before it, by Optuna's TPE."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.space.conditions import deciders, key_of
from tune.space.parameters import ChoiceParameter, FloatParameter, IntParameter, is_number

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.trial import FrozenTrial

    from tune.space.parameters import Parameter
    from tune.space.space import SearchSpace

_ATTEMPTS = 6
"""Draws of a point that was not tried yet before one of the others is taken."""
_MOST_POINTS = 100_000
"""Points of a space that are looked at for one that was not tried yet."""


def propose(
    space: SearchSpace,
    seed: int,
    trials: Sequence[FrozenTrial],
    number: int,
    earlier: Sequence[FrozenTrial] = (),
) -> dict[str, Any] | None:
    """The next settings, which no trial had before; None where every point of the space was tried.

    All settings while fewer than `startup_trials` have ended, and later those that no ended trial has, are drawn at
    random: from a range's prior where it has one, but from everywhere alike in the second half of these trials. Priors
    shape random proposals only: the model learns from what those came to. A scale that is bent by the prior would leave
    it blind at its far ends, where what was measured may prove the prior wrong.

    Args:
        space: what to search, its bounds resolved.
        number: of the trial, from 1; seed and number together give this proposal random numbers of its own.
        earlier: trials of other experiments, which count for the model only: here their points are new.
    """
    import numpy as np
    import optuna

    tried = {_key(trial.params) for trial in trials}

    def is_new(point: Mapping[str, Any]) -> bool:
        return _key(space.named(point)) not in tried

    if first := next(filter(is_new, space.try_first), None):
        return dict(first)
    random, known = np.random.default_rng((seed, number)), [*earlier, *trials]
    ended = [trial for trial in known if trial.state.is_finished()]
    startup = space.searcher.startup_trials
    enough = len(ended) >= startup
    prior = enough or len(ended) < startup / 2
    learned = {key for trial in ended for key in trial.params} if enough else set()
    model = optuna.create_study()
    model.add_trials(map(_for_tpe, known))

    def value(trial: optuna.Trial | None, name: str, parameter: Parameter) -> Any:
        key = key_of(name, parameter)
        if trial and key in learned:
            return _suggested(trial, key, parameter)
        return _drawn(parameter, random, prior=prior)

    for _ in range(_ATTEMPTS):
        model.sampler = _tpe(space, int(random.integers(2**31)))
        # Where its point was tried it stays in the model, as one that is running, hence poor.
        trial = model.ask() if learned else None
        point = space.draw(functools.partial(value, trial))
        if is_new(point):
            return point
    # One branch may have few points and all of them tried, while another has a range of real numbers.
    every = space.all_points(real=lambda parameter: _drawn(parameter, random, prior=prior))
    left = list(filter(is_new, itertools.islice(every, _MOST_POINTS)))
    return left[int(random.integers(len(left)))] if left else None


def _drawn(parameter: Parameter, random: np.random.Generator, *, prior: bool) -> Any:
    """A value at random; with `prior` from the prior where there is one."""
    if not prior and not isinstance(parameter, ChoiceParameter):
        parameter = dataclasses.replace(parameter, prior=None)
    return _rounded(parameter.drawn(random.random()), parameter)


def _tpe(space: SearchSpace, seed: int) -> optuna.samplers.TPESampler:
    """In a space with conditions each group of settings that come together has its own model."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `group`
        return optuna.samplers.TPESampler(
            seed=seed,
            n_startup_trials=0,
            n_ei_candidates=24,  # all is named, since defaults differ between versions
            multivariate=True,
            group=bool(deciders(space.ranges)),
            constant_liar=True,
        )


def _for_tpe(trial: FrozenTrial) -> FrozenTrial:
    """A trial as TPE is to see it.

    Optuna leaves out failed trials, so that it proposes settings that have no memory again and again, and takes
    running ones for poor until they end, so that it learns from a good one only when its whole budget is spent.
    Here failed and diverged trials count as poor ones, as running ones do with `constant_liar`, and a running one
    counts by its last evaluation, as one that was stopped there.
    """
    from optuna.trial import TrialState, create_trial

    settings = {"params": trial.params, "distributions": trial.distributions}
    if trial.state == TrialState.FAIL:
        return create_trial(state=TrialState.RUNNING, **settings)
    if trial.state == TrialState.RUNNING and trial.intermediate_values:
        return create_trial(
            state=TrialState.PRUNED, intermediate_values=trial.intermediate_values, **settings
        )
    return trial


def _suggested(trial: optuna.Trial, key: str, parameter: Parameter) -> Any:
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(key, parameter.values)
    known: Any = parameter.to_optuna()
    suggest = trial.suggest_int if isinstance(parameter, IntParameter) else trial.suggest_float
    return _rounded(suggest(key, known.low, known.high, step=known.step, log=known.log), parameter)


def _rounded(value: Any, parameter: Parameter) -> Any:
    """Real numbers to six digits, as people write them, within the range.

    So the last bits of a sum change no proposal either.
    """
    if not isinstance(parameter, FloatParameter) or parameter.step is not None:
        return value
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    return min(max(float(f"{value:.6g}"), low), high)


def _key(params: Mapping[str, Any]) -> str:
    """Equal for equal settings, also where a number is written in another way: 3 x 0.05 is not quite 0.15."""
    plain = ((name, f"{value:.12g}" if is_number(value) else value) for name, value in params.items())
    return repr(sorted(plain))
