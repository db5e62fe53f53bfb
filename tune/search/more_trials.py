"""By how much more trials would lower the lowest WER, estimated from the differences between the lowest ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from tune.search.records import Trial, rank

MORE = 8
"""Trials that the estimate is of."""
_LEAST = 16
"""Ended trials before which there is no estimate: after 8 the interval is too wide."""
_LOWEST = 3
"""WERs of completed trials that it is made from."""
_BEYOND = 0.1
"""Probability of a gain above the upper end, were the mean spacing known."""


@dataclasses.dataclass(frozen=True)
class MoreTrials:
    """The estimate for `MORE` trials."""

    gain: float
    """Expected, in points of WER."""
    upper_end: float
    """Of the 90 % interval, in points; its lower end is 0."""
    seconds: float
    """Wall time of all of them together, one after the other, if they take as long as those before."""


def more_trials(trials: Sequence[Trial]) -> MoreTrials | None:
    """By how much `MORE` trials after these would lower the lowest WER.

    The WERs of n trials with random settings are taken to fall off exponentially towards the lowest ones. Then the
    spacings i (x[i+1] - x[i]) of the sorted WERs have the same mean s (Weissman, JASA 1978), and m more trials gain
    more than g points with the probability r / (r + exp(g / s)), r = m / n, on average s log(1 + r). Here s is the mean
    of two spacings. In simulated searches the gain was in the interval in about nine of ten
    (`benchmarks/search.md`); with three spacings the interval was too wide.

    Args:
        trials: of a search that has ended.

    Returns:
        None where fewer than `_LEAST` trials have ended or fewer than three have completed, where the lowest WER is
        that of another one, where so many have ended (64) that a gain is unlikely, and where the WERs are too far apart
        or too close together for an estimate.
    """
    ended = [trial for trial in trials if trial.outcome not in ("running", "interrupted")]
    ranked = sorted((trial for trial in ended if trial.best_value is not None), key=rank)
    lowest = [rank(trial) for trial in ranked if trial.outcome == "completed"][:_LOWEST]
    if len(ended) < _LEAST or len(lowest) < _LOWEST or rank(ranked[0]) < lowest[0]:
        return None
    spacing = statistics.fmean(
        place * (higher - lower) for place, (lower, higher) in enumerate(itertools.pairwise(lowest), 1)
    )
    ratio = MORE / len(ended)
    gain, upper_end = spacing * math.log1p(ratio), spacing * math.log(ratio * (1 - _BEYOND) / _BEYOND)
    if not gain < upper_end < lowest[0]:
        return None
    return MoreTrials(gain, upper_end, MORE * statistics.fmean(trial.seconds for trial in ended))
