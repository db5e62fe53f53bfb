"""What trials that were stopped early would have come to, by what others gained from there on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from optuna.trial import FrozenTrial, TrialState

BUDGET = "budget"
"""User attribute: samples of a trial's full budget, where not all trials have the longest."""


def projected(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials as the Gaussian process is to see them, which knows nothing of trials that were stopped early.

    Each counts with its WER at its full budget: its own where it came there, else a projection. That is its lowest WER
    so far less what others gained, in the mean, from there to each later share of their budgets at which any was
    measured. A share, and not samples, since trials may differ in their budget (`max_steps` with other batches), and
    the learning-rate schedule of each runs out at its own end. Between two evaluations a WER is taken to change evenly
    with the logarithm of the share, so that trials measured at other shares (of another experiment, or of another
    budget) count as well. Failed and diverged trials count as the worst.
    """
    import numpy as np
    from optuna.trial import TrialState

    longest = max((seen for trial in trials for seen in trial.intermediate_values), default=1)
    curves = {
        index: _curve(trial, longest)
        for index, trial in enumerate(trials)
        if trial.intermediate_values or trial.value is not None
    }
    at = sorted({place for places, _ in curves.values() for place in places})
    wers = np.array([np.interp(at, *curve, left=np.nan, right=np.nan) for curve in curves.values()])
    gains = [_mean(wers[:, here] - wers[:, there]) for here, there in itertools.pairwise(range(len(at)))]
    ends = {index: wers[-1] - sum(gains[at.index(places[-1]) :]) for index, (places, wers) in curves.items()}
    worst = max(ends.values(), default=None)
    found = []
    for index, trial in enumerate(trials):
        value = worst if trial.state == TrialState.FAIL else ends.get(index)
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        found.append(with_outcome(trial, state, value))
    return found


def _mean(gains: np.ndarray) -> float:
    """Of those that are known; 0 where none is."""
    import numpy as np

    known = gains[~np.isnan(gains)]
    return float(known.mean()) if len(known) else 0.0


def _curve(trial: FrozenTrial, longest: int) -> tuple[list[float], list[float]]:
    """Logarithms of the shares of a trial's budget at which it was measured, and its lowest WER until each."""
    seen = sorted(trial.intermediate_values)
    wers = list(itertools.accumulate((trial.intermediate_values[samples] for samples in seen), min))
    if trial.value is not None:
        seen, wers = seen or [longest], [*wers[:-1], trial.value]
        budget = seen[-1]
    else:
        budget = max(trial.user_attrs.get(BUDGET, longest), seen[-1])
    return [math.log(samples / budget) for samples in seen], wers


def with_outcome(
    trial: FrozenTrial,
    state: TrialState,
    value: float | None = None,
    intermediate_values: Mapping[int, float] | None = None,
) -> FrozenTrial:
    """The same settings with another outcome."""
    import optuna

    return optuna.trial.create_trial(
        state=state,
        value=value,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=dict(intermediate_values or {}),
    )
