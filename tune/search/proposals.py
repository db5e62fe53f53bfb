"""Where the next trial goes: a pure function of the trials before it, by Optuna's samplers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.threads import one_torch_thread
from tune.search.samplers import as_tpe_sees, gaussian_process, load_gaussian_process, projected, tpe
from tune.space.conditions import key_of
from tune.space.parameters import ChoiceParameter, IntParameter

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

    from tune.space.parameters import FloatParameter, Parameter
    from tune.space.space import SearchSpace

EARLIER = "from"
"""User attribute of trials that belong to another experiment."""
_ATTEMPTS = 10
"""Draws of a point that was not tried yet before one of the others is taken."""
_LEAST_IN_BRANCH = 3
"""Measured trials of a branch, or half of `startup_trials`, from which on it has a Gaussian process of its own."""
_MOST_POINTS = 100_000
"""Points of a space that are looked at for one that was not tried yet."""


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
        self._whole: Mapping[str, BaseDistribution] | None = None if space.deciding else self._distributions
        """None where some trial has not all parameters: one of another experiment, or of a space with conditions."""
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
        if number <= len(points) and not self._was_tried(points[number - 1]):
            return dict(points[number - 1])
        random = np.random.default_rng((self._seed, number))
        early = len(trials) < space.searcher.gp_trials
        gp_alone, by_branch = early and not space.deciding, early and bool(space.deciding)
        model = projected(trials) if gp_alone else self._as_tpe_sees(trials)
        for attempt in range(_ATTEMPTS):
            if gp_alone and attempt == _ATTEMPTS // 2:  # the same corner of the space again and again
                gp_alone, model = False, self._as_tpe_sees(trials)
            sampler_seed = int(random.integers(2**31))
            # A point that was tried stays in the model as running, hence as a poor one.
            if gp_alone:
                point = self._by_process(model, gaussian_process(space, sampler_seed))
            else:
                point = self._asked(model, tpe(space, sampler_seed, self._whole))
                if by_branch and attempt < _ATTEMPTS // 2:
                    point = self._of_branch(trials, point, sampler_seed)
            if not self._was_tried(point):
                return point
        # One branch may have few points and all of them tried, while another has a range of real numbers.
        every = space.all_points(real=lambda parameter: _rounded(parameter.drawn(random.random()), parameter))
        every = itertools.islice(every, _MOST_POINTS)
        left = [point for point in every if not self._was_tried(point)]
        return left[int(random.integers(len(left)))] if left else None

    def _was_tried(self, point: Mapping[str, Any]) -> bool:
        return _key(self._space.named(point)) in self._tried

    def _asked(
        self, model: optuna.Study, sampler: BaseSampler, decided: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The point that a sampler proposes, setting by setting, as far as it is not decided."""
        model.sampler = sampler
        trial, known = model.ask(), decided or {}

        def choose(name: str, parameter: Parameter) -> Any:
            return known[name] if name in known else _suggested(trial, key_of(name, parameter), parameter)

        return self._space.draw(choose)

    def _by_process(
        self, model: optuna.Study, sampler: BaseSampler, decided: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        load_gaussian_process().join()
        with one_torch_thread():
            return self._asked(model, sampler, decided)

    def _of_branch(self, trials: Sequence[FrozenTrial], point: dict[str, Any], seed: int) -> dict[str, Any]:
        """The point with all that decides no condition proposed anew, by a Gaussian process of its branch alone.

        A process needs the same parameters in all its trials. One over all branches would know only what they share,
        and one that were told values of parameters that do not count would be sure of what nobody measured. While a
        branch has too few trials it is left to TPE, which learns what branches share from all of them.
        """
        space = self._space
        decided = {name: point[name] for name in space.deciding if name in point}
        if len(trials) < space.searcher.startup_trials or len(decided) == len(point):
            return point
        named, keys = space.named(decided), space.named(point).keys()
        model = projected(
            trials, lambda params: params.keys() == keys and named.items() <= params.items(), named
        )
        measured = sum(trial.values is not None for trial in model.get_trials(deepcopy=False))
        if measured < max(_LEAST_IN_BRANCH, space.searcher.startup_trials // 2):
            return point
        return self._by_process(model, gaussian_process(space, seed, startup=0), decided)

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


def _suggested(trial: optuna.Trial, key: str, parameter: Parameter) -> Any:
    """A sampler's value; real numbers to six digits, as people write them.

    So the last bits of a sum change no proposal either.
    """
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(key, parameter.values)
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if isinstance(parameter, IntParameter):
        step = int(parameter.step or 1)
        return trial.suggest_int(key, int(low), int(high), step=step, log=parameter.log)
    value = trial.suggest_float(key, low, high, step=parameter.step, log=parameter.log)
    return value if parameter.step is not None else _rounded(value, parameter)


def _rounded(value: float, parameter: FloatParameter) -> float:
    """To six digits, within the range."""
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    return min(max(float(f"{value:.6g}"), low), high)


def _key(params: Mapping[str, Any]) -> str:
    """Equal for equal settings."""
    return repr(sorted(params.items()))
