"""What trainings that were stopped early would have come to, by what others gained from there on."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_NEAR = 0.2
"""Distance at which a training's gain says little of another's, in a space of sides 1."""
_FAR_WEIGHT = 0.02


@dataclasses.dataclass(frozen=True)
class Curve:
    """One training: rates at shares of its own full budget.

    A share, and not samples, since trainings may differ in their budget (`max_steps` with other batches), and the
    learning-rate schedule of each runs out at its own end.
    """

    shares: list[float]
    """Above 0, rising; the last one is 1 where the training had its whole budget."""
    rates: list[float]
    """At each of them; lower is better."""
    place: np.ndarray
    """The settings as a point, each from 0 to 1; not a number where the training has no such setting."""


def best_so_far(rates: Sequence[float]) -> list[float]:
    """The lowest rate until each: what a model exported there would have."""
    return list(itertools.accumulate(rates, min))


def expected_ends(curves: Sequence[Curve]) -> list[float]:
    """The rate of each training at its full budget: its own where it came there, else a projection.

    That is its last rate less what others gained from there to each later share at which any was measured, those
    with near settings above all: a high learning rate is quick and gains little later. Between two evaluations a
    rate is taken to change evenly with the logarithm of the share, so that trainings measured at other shares (of
    another experiment, or of another budget) count as well. Where nobody was measured on both sides of a stretch,
    those that were later are continued backwards.
    """
    import numpy as np

    shares = sorted({share for curve in curves for share in curve.shares})
    at = [math.log(share) for share in shares]
    within = np.array([_rates(curve, at) for curve in curves])
    beyond = np.array([_rates(curve, at, backwards=True) for curve in curves])
    places = [curve.place for curve in curves]
    ends = []
    for curve in curves:
        end, weights = curve.rates[-1], None
        for here, there in itertools.pairwise(range(shares.index(curve.shares[-1]), len(shares))):
            gains = within[:, here] - within[:, there]
            if np.isnan(gains).all():
                gains = beyond[:, here] - beyond[:, there]
            passed = ~np.isnan(gains)
            if passed.any():
                if weights is None:
                    apart = np.array([np.nansum((place - curve.place) ** 2) for place in places])
                    weights = np.exp(-apart / (2 * _NEAR**2)) + _FAR_WEIGHT
                end -= float(np.average(gains[passed], weights=weights[passed]))
        ends.append(end)
    return ends


def _rates(curve: Curve, at: Sequence[float], *, backwards: bool = False) -> np.ndarray:
    """A training's rates at logarithms of shares, not a number where it was not measured on both sides."""
    import numpy as np

    own = [math.log(share) for share in curve.shares]
    rates = np.interp(at, own, curve.rates, left=np.nan, right=np.nan)
    if backwards and len(own) > 1:
        slope = (curve.rates[1] - curve.rates[0]) / (own[1] - own[0])
        before = np.array(at) < own[0]
        rates[before] = curve.rates[0] + slope * (np.array(at)[before] - own[0])
    return rates
