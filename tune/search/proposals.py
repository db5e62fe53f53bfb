"""Where the next trial goes: a pure function of the trials before it, by Optuna's samplers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.threads import one_torch_thread
from tune.search.samplers import as_tpe_sees, gaussian_process, projected, tpe
from tune.space.conditions import key_of
from tune.space.parameters import ChoiceParameter, IntParameter

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from tune.space.parameters import FloatParameter, Parameter
    from tune.space.space import SearchSpace

_ATTEMPTS = 10
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

    Args:
        space: what to search, its bounds resolved.
        number: of the trial, from 1; seed and number together give this proposal random numbers of its own.
        earlier: trials of another experiment, which count for the model only: here their points are new.
    """
    import numpy as np

    tried = {_key(trial.params) for trial in trials}

    def is_new(point: Mapping[str, Any]) -> bool:
        return _key(space.named(point)) not in tried

    if first := next(filter(is_new, space.try_first), None):
        return dict(first)
    random, trials = np.random.default_rng((seed, number)), [*earlier, *trials]
    # The process needs the same parameters in all trials; what differs between branches it would not know.
    by_process = len(trials) < space.searcher.gp_trials and not space.deciding
    model = projected(trials) if by_process else _tpe_model(trials)
    for attempt in range(_ATTEMPTS):
        if by_process and attempt == _ATTEMPTS // 2:  # the same corner of the space again and again
            by_process, model = False, _tpe_model(trials)
        sampler_seed = int(random.integers(2**31))
        model.sampler = (gaussian_process if by_process else tpe)(space, sampler_seed)
        with one_torch_thread() if by_process else contextlib.nullcontext():
            trial = (
                model.ask()
            )  # one whose point was tried stays in the model as running, hence as a poor one
            point = space.draw(
                lambda name, parameter, trial=trial: _suggested(trial, key_of(name, parameter), parameter)  # type: ignore[misc]
            )
        if is_new(point):
            return point
    # One branch may have few points and all of them tried, while another has a range of real numbers.
    every = space.all_points(real=lambda parameter: _rounded(parameter.drawn(random.random()), parameter))
    left = list(filter(is_new, itertools.islice(every, _MOST_POINTS)))
    return left[int(random.integers(len(left)))] if left else None


def _tpe_model(trials: Sequence[FrozenTrial]) -> optuna.Study:
    import optuna

    model = optuna.create_study(direction="minimize")
    model.add_trials([as_tpe_sees(trial) for trial in trials])
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
