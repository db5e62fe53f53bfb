"""Where the next trial goes: a pure function of the trials before it, by Optuna's samplers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.search.samplers import as_tpe_sees, gaussian_process, one_thread, projected, tpe

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, TrialState

    from tune.space.space import SearchSpace

EARLIER = "from"
"""User attribute of trials that belong to another experiment."""
_ATTEMPTS = 10
"""Draws of a point that was not tried yet before one of the others is taken."""
_MOST_POINTS = 100_000
"""Points of a space without ranges that are looked at for one that was not tried yet."""


class Proposer:
    """Proposes the next settings, from nothing but the space, the seed and the trials before.

    What it keeps from one proposal to the next are the trials as TPE is to see them: of hundreds that have ended
    none needs to be made anew.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        """Args:
        space: what to search, its bounds resolved.
        seed: of the search.
        """
        self._space, self._seed = space, seed
        self._distributions = space.to_optuna()
        self._whole: Mapping[str, BaseDistribution] | None = self._distributions
        """None where some trial has not all parameters, as one of another experiment."""
        self._tried: set[str] = set()
        self._known = 0
        """Trials that were looked at for these."""
        self._seen: dict[int, tuple[tuple[TrialState, int], FrozenTrial]] = {}
        """By number: state and number of evaluations, and what TPE is to see of such a trial."""

    def propose(self, trials: Sequence[FrozenTrial], number: int) -> dict[str, Any] | None:
        """The next settings, which no trial had before; None where every point of the space was tried.

        Args:
            trials: all trials before, in the order of their numbers: those of the last call, and others after them.
            number: of the trial, from 1; seed and number together give this proposal random numbers of its own.
        """
        import numpy as np

        # What another experiment tried counts for the model only: here it is new.
        new = trials[self._known :]
        self._tried.update(_key(trial.params) for trial in new if EARLIER not in trial.user_attrs)
        if any(trial.distributions != self._distributions for trial in new):
            self._whole = None
        self._known = len(trials)
        space, points = self._space, self._space.try_first
        if number <= len(points) and _key(points[number - 1]) not in self._tried:
            return dict(points[number - 1])
        random = np.random.default_rng((self._seed, number))
        early = len(trials) < space.searcher.gp_trials
        model = projected(trials) if early else self._as_tpe_sees(trials)
        for attempt in range(_ATTEMPTS):
            if early and attempt == _ATTEMPTS // 2:  # the same corner of the space again and again
                early, model = False, self._as_tpe_sees(trials)
            sampler_seed = int(random.integers(2**31))
            model.sampler = (
                gaussian_process(space, sampler_seed) if early else tpe(space, sampler_seed, self._whole)
            )
            # A point that was tried stays in the model as running, hence as a poor one.
            with one_thread() if early else contextlib.nullcontext():
                asked = model.ask(fixed_distributions=self._distributions)
            params = _rounded(asked.params, self._distributions)
            if _key(params) not in self._tried:
                return params
        left = [point for point in _all_points(self._distributions) if _key(point) not in self._tried]
        return left[int(random.integers(len(left)))] if left else None

    def _as_tpe_sees(self, trials: Sequence[FrozenTrial]) -> optuna.Study:
        """The trials as TPE is to see them; the study that people look at keeps what they are."""
        import optuna

        storage = optuna.storages.InMemoryStorage()
        model = optuna.create_study(storage=storage, direction="minimize")
        study = storage.get_study_id_from_name(model.study_name)
        for trial in trials:
            stage = trial.state, len(trial.intermediate_values)
            before, seen = self._seen.get(trial.number, (None, trial))
            if before != stage:
                seen = as_tpe_sees(trial)
                self._seen[trial.number] = stage, seen
            storage.create_new_trial(study, seen)
        return model


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
