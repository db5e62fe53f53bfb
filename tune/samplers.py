"""The samplers of Optuna that propose settings, and the trials as they are to see them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import GPSampler, TPESampler
    from optuna.trial import FrozenTrial

    from tune.search_space import SearchSpace

_NEAR = 0.2
"""Distance at which a trial's gain says little of another's, in a space of sides 1."""
_FAR_WEIGHT = 0.02


def gaussian_process(space: SearchSpace, seed: int) -> GPSampler:
    """Optuna's sampler by a Gaussian process, for the first trials; `seed` is that of one proposal."""
    import optuna

    return optuna.samplers.GPSampler(
        seed=seed, n_startup_trials=space.searcher.startup_trials, deterministic_objective=False
    )


def tpe(space: SearchSpace, seed: int, whole: Mapping[str, BaseDistribution] | None) -> TPESampler:
    """Optuna's sampler.

    Args:
        space: what to search.
        seed: of one proposal.
        whole: the distributions of the space where all trials have all of them: what the sampler would find out by
            comparing those of each trial with those of all others, for each proposal anew.
    """
    import optuna

    settings = space.searcher

    class WholeSpaceSampler(optuna.samplers.TPESampler):
        """See `tpe`."""

        def infer_relative_search_space(
            self, study: optuna.Study, trial: FrozenTrial
        ) -> dict[str, BaseDistribution]:
            if whole is None or not settings.multivariate:
                found: dict[str, BaseDistribution] = super().infer_relative_search_space(study, trial)
                return found
            return {name: whole[name] for name in sorted(whole) if not whole[name].single()}

    return WholeSpaceSampler(
        seed=seed,
        n_startup_trials=settings.startup_trials,
        n_ei_candidates=settings.ei_candidates,
        multivariate=settings.multivariate,
        constant_liar=settings.constant_liar,
    )


def as_tpe_sees(trial: FrozenTrial) -> FrozenTrial:
    """A trial as TPE is to see it.

    Optuna leaves out failed trials, so that it proposes settings that have no memory again and again, and takes
    running ones for poor until they end, so that it learns from a good one only when its whole budget is spent.
    Here failed and diverged trials count as poor ones, as running ones do with `constant_liar`, and a running one
    counts by its last evaluation, as one that was stopped there.
    """
    from optuna.trial import TrialState

    state, values = trial.state, trial.intermediate_values
    if state == TrialState.FAIL:
        state, values = TrialState.RUNNING, {}
    elif state == TrialState.RUNNING and values:
        state = TrialState.PRUNED
    return _shared_trial()(
        state=state,
        value=trial.value if state == TrialState.COMPLETE else None,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=values,
        **{"number": -1, "trial_id": -1, "user_attrs": {}, "system_attrs": {}},  # a study gives it its number
        **{"datetime_start": trial.datetime_start, "datetime_complete": trial.datetime_complete},
    )


@functools.cache
def _shared_trial() -> type[FrozenTrial]:
    """Optuna's trial, of which a study takes a shallow copy: all that is in it is replaced and never changed.

    The deep copies of a thousand trials take a tenth of a second for each proposal.
    """
    import optuna

    class SharedTrial(optuna.trial.FrozenTrial):
        """See `_shared_trial`."""

        def __deepcopy__(self, memo: dict[int, Any]) -> FrozenTrial:
            shared = SharedTrial.__new__(SharedTrial)
            shared.__dict__.update(self.__dict__)
            return shared

    return SharedTrial


def projected(trials: Sequence[FrozenTrial]) -> optuna.Study:
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
def one_thread() -> Iterator[None]:
    """The Gaussian process is PyTorch's: more threads are slower for so little, and sum in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
