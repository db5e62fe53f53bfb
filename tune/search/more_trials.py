"""What more trials would gain, judged by how far the best ones so far lie apart."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence

from tune.search.records import Trial

MORE = 8
_LEAST = 3
"""Trials that must have had their whole budget; the best three tell how fast low WERs get rare."""
_BEYOND = 0.05
"""Probability that the gain is larger than the upper end; smaller than the lower end, zero, it never is."""


@dataclasses.dataclass(frozen=True)
class MoreTrials:
    """What so many more trials would bring."""

    trials: int
    gain: float
    """Expected, in points of WER."""
    upper_end: float
    """Of its 90 % interval, which begins at 0."""
    seconds: float
    """Training time of all of them together, if they take as long as those before."""


def more_trials(trials: Sequence[Trial]) -> MoreTrials | None:
    """What `MORE` trials would gain; None where fewer than three have had their whole budget.

    Of n trials with independent settings the lowest WERs lie, where the distribution falls off exponentially, at
    normalised spacings i (x[i+1] - x[i]) with the same mean s (Weissman, JASA 1978). Then m more trials gain more than
    g points with the probability r / (r + exp(g / s)), r = m / n, and s log(1 + r) on average. Searches are not like
    that: their WERs have a lowest, two spacings tell s badly, and the searcher learns. How often the interval held in
    simulated ones is in `benchmarks/README.md`; with three spacings it was too wide.
    """
    ended = [trial for trial in trials if trial.status != "running"]
    lowest = sorted(
        trial.best_value for trial in ended if trial.status == "completed" and trial.best_value is not None
    )[:_LEAST]
    if len(lowest) < _LEAST:
        return None
    spacing = statistics.fmean(
        rank * (worse - better) for rank, (better, worse) in enumerate(itertools.pairwise(lowest), 1)
    )
    ratio = MORE / len(ended)
    upper_end = max(0.0, spacing * math.log(ratio * (1 - _BEYOND) / _BEYOND))
    gain, upper_end = (min(points, lowest[0]) for points in (spacing * math.log1p(ratio), upper_end))
    return MoreTrials(MORE, gain, upper_end, MORE * statistics.fmean(trial.seconds for trial in ended))
