"""What trials that were stopped early would have come to, by what others gained from there on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tune.search.records import Trial


LEAST_WER = 0.01
"""In percent; below that logarithms would run away."""


def final_wers(trials: Sequence[Trial], budget_of: Callable[[Trial], int]) -> dict[str, float]:
    """By trial, its WER in percent at its full budget: measured, or its lowest so far times what others' fell by.

    That is the mean factor (of logarithms) from there to each later share of their budgets at which any was measured.
    A share, and not samples, since trials may differ in their budget (`max_steps` with other batches), and the
    learning-rate schedule of each runs out at its own end. Between two evaluations a WER is taken to change evenly
    with the logarithm of the share. Diverged trials count as the worst; those without an evaluation are left out.

    Args:
        trials: of one search, none of them failed.
        budget_of: samples of a trial's full budget.
    """
    import numpy as np
    import pandas as pd

    curves = {
        trial.trial_id: _curve(trial, budget_of(trial))
        for trial in trials
        if trial.evaluations and trial.status != "diverged"
    }
    at = sorted({place for places, _ in curves.values() for place in places})
    wers = [np.interp(at, *curve, left=np.nan, right=np.nan) for curve in curves.values()]
    gains = -pd.DataFrame(wers, columns=at).diff(axis="columns").mean()
    found = {
        name: math.exp(lows[-1] - gains[gains.index > places[-1]].sum())
        for name, (places, lows) in curves.items()
    }
    found |= {
        trial.trial_id: trial.best_value
        for trial in trials
        if trial.status == "completed" and trial.best_value is not None
    }
    diverged = [trial.trial_id for trial in trials if trial.status == "diverged"]
    return found | dict.fromkeys(diverged, max(found.values())) if found else {}


def _curve(trial: Trial, budget: int) -> tuple[list[float], list[float]]:
    """Logarithms of the shares of a trial's budget at which it was measured, and of its lowest WER until each."""
    seen, wers = zip(*trial.evaluations, strict=True)
    lows = list(itertools.accumulate((math.log(max(wer, LEAST_WER)) for wer in wers), min))
    whole = seen[-1] if trial.status == "completed" else max(budget, seen[-1])
    return [math.log(samples / whole) for samples in seen], lows
