"""Where the next trial goes: a pure function of the trials before it, by Optuna's samplers."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from tune.search_space import SearchSpace

EARLIER = "from"
"""User attribute of trials that belong to another experiment."""
_ATTEMPTS = 10
"""Draws of a point that was not tried yet before one of the others is taken."""
_NEAR = 0.2
"""Distance at which a trial's gain says little of another's, in a space of sides 1."""
_FAR_WEIGHT = 0.02
_MOST_POINTS = 100_000
"""Points of a space without ranges that are looked at for one that was not tried yet."""


def propose(
    space: SearchSpace, trials: Sequence[FrozenTrial], seed: int, number: int
) -> dict[str, Any] | None:
    """The next settings, which no trial had before; None where every point of the space was tried.

    Args:
        space: what to search, its bounds resolved.
        trials: all trials before, in the order of their numbers.
        seed: of the search.
        number: of the trial, from 1; seed and number together give this proposal random numbers of its own.
    """
    import numpy as np

    # What another experiment tried counts for the model only: here it is new.
    tried = {_key(trial.params) for trial in trials if EARLIER not in trial.user_attrs}
    points = space.try_first
    if number <= len(points) and _key(points[number - 1]) not in tried:
        return dict(points[number - 1])
    distributions, random = space.to_optuna(), np.random.default_rng((seed, number))
    early = len(trials) < space.searcher.gp_trials
    model = _projected(trials) if early else _as_tpe_sees(trials)
    for attempt in range(_ATTEMPTS):
        if early and attempt == _ATTEMPTS // 2:  # the same corner of the space again and again
            early, model = False, _as_tpe_sees(trials)
        sampler_seed = int(random.integers(2**31))
        model.sampler = (_gaussian_process if early else _tpe)(space, sampler_seed)
        # A point that was tried stays in the model as running, hence as a poor one.
        with _one_thread() if early else contextlib.nullcontext():
            params = _rounded(model.ask(fixed_distributions=distributions).params, distributions)
        if _key(params) not in tried:
            return params
    left = [point for point in _all_points(distributions) if _key(point) not in tried]
    return left[int(random.integers(len(left)))] if left else None


def _gaussian_process(space: SearchSpace, seed: int) -> optuna.samplers.GPSampler:
    import optuna

    return optuna.samplers.GPSampler(
        seed=seed, n_startup_trials=space.searcher.startup_trials, deterministic_objective=False
    )


def _tpe(space: SearchSpace, seed: int) -> optuna.samplers.TPESampler:
    import optuna

    settings = space.searcher
    return optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=settings.startup_trials,
        n_ei_candidates=settings.ei_candidates,
        multivariate=settings.multivariate,
        constant_liar=settings.constant_liar,
    )


def _as_tpe_sees(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """The trials as TPE is to see them; the study that people look at keeps what they are.

    Optuna leaves out failed trials, so that it proposes settings that have no memory again and again, and takes
    running ones for poor until they end, so that it learns from a good one only when its whole budget is spent.
    Here failed and diverged trials count as poor ones, as running ones do with `constant_liar`, and a running one
    counts by its last evaluation, as one that was stopped there.
    """
    import optuna
    from optuna.trial import TrialState

    model = optuna.create_study(direction="minimize")
    for trial in trials:
        state, values = trial.state, trial.intermediate_values
        if state == TrialState.FAIL:
            state, values = TrialState.RUNNING, {}
        elif state == TrialState.RUNNING and values:
            state = TrialState.PRUNED
        model.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=trial.value if state == TrialState.COMPLETE else None,
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=values,
            )
        )
    return model


def _projected(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """The trials as the Gaussian process is to see them.

    It knows nothing of trials that were stopped early, so each counts with what it would come to: its last WER less
    what others gained from there to each later rung, those with near settings above all: a high learning rate is
    quick and gains little later. Failed and diverged ones count as the worst.
    """
    import numpy as np
    import optuna
    from optuna.trial import TrialState

    rungs = sorted({seen for trial in trials for seen in trial.intermediate_values})
    places = {trial.number: _place(trial) for trial in trials}
    expected = {}
    for trial in trials:
        if not trial.intermediate_values:
            continue
        last = max(trial.intermediate_values)
        expected[trial.number] = trial.intermediate_values[last]
        for here, there in itertools.pairwise(rung for rung in rungs if rung >= last):
            passed = [t for t in trials if here in t.intermediate_values and there in t.intermediate_values]
            if passed:
                gains = [t.intermediate_values[here] - t.intermediate_values[there] for t in passed]
                apart = [np.sum((places[t.number] - places[trial.number]) ** 2) for t in passed]
                weights = np.exp(-np.array(apart) / (2 * _NEAR**2)) + _FAR_WEIGHT
                expected[trial.number] -= float(np.average(gains, weights=weights))
    worst = max(expected.values(), default=None)
    model = optuna.create_study(direction="minimize")
    for trial in trials:
        value = worst if trial.state == TrialState.FAIL else expected.get(trial.number)
        model.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING if value is None else TrialState.COMPLETE,
                value=value,
                params=trial.params,
                distributions=trial.distributions,
            )
        )
    return model


def _place(trial: FrozenTrial) -> np.ndarray:
    """A trial's settings as a point: each range from 0 to 1, on its own scale, choices up to half apart."""
    import numpy as np
    from optuna.distributions import CategoricalDistribution

    point = []
    distribution: Any
    for name, distribution in trial.distributions.items():
        value: Any = trial.params[name]
        if isinstance(distribution, CategoricalDistribution):
            most = max(1, len(distribution.choices) - 1)
            point.append(distribution.choices.index(value) / most / 2)
        else:
            ends = (value, distribution.low, distribution.high)
            at, low, high = (math.log(end) for end in ends) if distribution.log else ends
            point.append((at - low) / (high - low) if high > low else 0.0)
    return np.array(point)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """The Gaussian process is PyTorch's: more threads are slower for so little, and sum in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rounded(params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Real numbers to six digits, as people write them; so the last bits of a sum change no proposal either."""
    from optuna.distributions import FloatDistribution

    rounded = dict(params)
    for name, distribution in distributions.items():
        if isinstance(distribution, FloatDistribution) and distribution.step is None:
            value = float(f"{params[name]:.6g}")
            rounded[name] = min(max(value, distribution.low), distribution.high)
    return rounded


def _all_points(distributions: Mapping[str, BaseDistribution]) -> Iterator[dict[str, Any]]:
    """The points of a space that has no range of real numbers, up to a limit; none where it has one."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    values: list[Sequence[Any]] = []
    for distribution in distributions.values():
        if isinstance(distribution, CategoricalDistribution):
            values.append(distribution.choices)
        elif isinstance(distribution, IntDistribution):
            values.append(range(distribution.low, distribution.high + 1, distribution.step or 1))
        else:
            low, high, step = distribution.low, distribution.high, distribution.step
            if step is None:
                return
            values.append([min(low + index * step, high) for index in range(round((high - low) / step) + 1)])
    for point in itertools.islice(itertools.product(*values), _MOST_POINTS):
        yield dict(zip(distributions, point, strict=True))


def _key(params: Mapping[str, Any]) -> str:
    """Equal for equal settings."""
    return repr(sorted(params.items()))
