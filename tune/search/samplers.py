"""The samplers of Optuna that propose settings, and the trials as they are to see them."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tune.search.projections import Curve, best_so_far, expected_ends
from tune.space.conditions import key_of

if TYPE_CHECKING:
    import numpy as np
    import optuna
    from optuna.samplers import BaseSampler, GPSampler, TPESampler
    from optuna.trial import FrozenTrial

    from tune.space.space import SearchSpace

BUDGET = "budget"
"""User attribute: samples of a trial's full budget, where not all trials have the longest."""


def gaussian_process(space: SearchSpace, seed: int) -> GPSampler:
    """Optuna's sampler by a Gaussian process, for the first trials; `seed` is that of one proposal.

    Before the space's `startup_trials`, and for what no trial has, it draws at random.
    """
    import optuna

    return optuna.samplers.GPSampler(
        seed=seed,
        independent_sampler=_prior_sampler(space, seed),
        n_startup_trials=space.searcher.startup_trials,
        deterministic_objective=False,
    )


def tpe(space: SearchSpace, seed: int) -> TPESampler:
    """Optuna's sampler, `seed` is that of one proposal; in a space with conditions each group of settings that come
    together has its own model.
    """
    import optuna
    from optuna.trial import TrialState

    settings, prior_sampler = space.searcher, _prior_sampler(space, seed)

    class PriorTPESampler(optuna.samplers.TPESampler):
        """Draws by the priors while it has no model (see `_prior_sampler`)."""

        def sample_independent(
            self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: Any
        ) -> Any:
            if prior_sampler is not None:
                ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
                known = any(param_name in other.params for other in ended)
                if not known or len(ended) < settings.startup_trials:
                    return prior_sampler.sample_independent(study, trial, param_name, param_distribution)
            return super().sample_independent(study, trial, param_name, param_distribution)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `group`
        return PriorTPESampler(
            seed=seed,
            n_startup_trials=settings.startup_trials,
            n_ei_candidates=24,  # all is named, since defaults differ between versions
            multivariate=True,
            group=bool(space.deciding),
            constant_liar=True,
        )


def _prior_sampler(space: SearchSpace, seed: int) -> BaseSampler | None:
    """Draws at random, each range with a prior from that; None where none has one.

    Priors shape random proposals only: both models learn from what those came to. A scale that is bent by the prior
    would leave them blind at its far ends, where what was measured may prove the prior wrong.
    """
    import optuna

    priors = {
        key_of(name, parameter): parameter
        for name, ranges in space.ranges.items()
        for parameter in ranges
        if parameter.prior is not None
    }
    if not priors:
        return None

    class PriorSampler(optuna.samplers.RandomSampler):
        def sample_independent(
            self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: Any
        ) -> Any:
            if param_name in priors:
                return priors[param_name].drawn(random.Random(f"{seed} {param_name}").random())
            return super().sample_independent(study, trial, param_name, param_distribution)

    return PriorSampler(seed)


def as_tpe_sees(trial: FrozenTrial) -> FrozenTrial:
    """A trial as TPE is to see it.

    Optuna leaves out failed trials, so that it proposes settings that have no memory again and again, and takes
    running ones for poor until they end, so that it learns from a good one only when its whole budget is spent.
    Here failed and diverged trials count as poor ones, as running ones do with `constant_liar`, and a running one
    counts by its last evaluation, as one that was stopped there.
    """
    import optuna
    from optuna.trial import TrialState

    state, values = trial.state, trial.intermediate_values
    if state == TrialState.FAIL:
        state, values = TrialState.RUNNING, {}
    elif state == TrialState.RUNNING and values:
        state = TrialState.PRUNED
    return optuna.trial.create_trial(
        state=state,
        value=trial.value if state == TrialState.COMPLETE else None,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=values,
    )


def projected(trials: Sequence[FrozenTrial]) -> optuna.Study:
    """The trials as the Gaussian process is to see them.

    It knows nothing of trials that were stopped early, so each of them counts with what it would come to at its own
    full budget (see `expected_ends`). A complete one counts with its own value, the best WER that it had; failed and
    diverged ones count as the worst.
    """
    import optuna
    from optuna.trial import TrialState

    longest = max((seen for trial in trials for seen in trial.intermediate_values), default=0)
    names = list(dict.fromkeys(name for trial in trials for name in trial.distributions))
    curves = {
        index: _curve(trial, longest, names) for index, trial in enumerate(trials) if _was_measured(trial)
    }
    expected = dict(zip(curves, expected_ends(list(curves.values())), strict=True))
    worst = max(expected.values(), default=None)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    model = optuna.create_study(direction="minimize")
    for index, trial in enumerate(trials):
        value = worst if trial.state == TrialState.FAIL else expected.get(index)
        model.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING if value is None else TrialState.COMPLETE,
                value=value,
                params=trial.params,
                distributions=trial.distributions,
            )
        )
    return model


def _was_measured(trial: FrozenTrial) -> bool:
    return bool(trial.intermediate_values) or trial.value is not None


def _curve(trial: FrozenTrial, longest: int, names: Sequence[str]) -> Curve:
    """A trial's best WER so far at each evaluation; `longest` is the budget of one that names none."""
    from optuna.trial import TrialState

    seen = sorted(trial.intermediate_values)
    wers = best_so_far([trial.intermediate_values[samples] for samples in seen])
    if trial.state == TrialState.COMPLETE:
        seen, wers = seen or [longest or 1], [*wers[:-1], trial.value]
        budget = seen[-1]
    else:
        budget = max(trial.user_attrs.get(BUDGET, longest), seen[-1])
    return Curve([samples / budget for samples in seen], wers, _place(trial, names))


def _place(trial: FrozenTrial, names: Sequence[str]) -> np.ndarray:
    """A trial's settings as a point: each range from 0 to 1, on its own scale, choices up to half apart."""
    import numpy as np
    from optuna.distributions import CategoricalDistribution

    point = np.full(len(names), np.nan)
    distribution: Any
    for name, distribution in trial.distributions.items():
        value: Any = trial.params[name]
        if isinstance(distribution, CategoricalDistribution):
            most = max(1, len(distribution.choices) - 1)
            place = distribution.choices.index(value) / most / 2
        else:
            ends = (value, distribution.low, distribution.high)
            at, low, high = (math.log(end) for end in ends) if distribution.log else ends
            place = (at - low) / (high - low) if high > low else 0.0
        point[names.index(name)] = place
    return point
