"""What to do next, in plain words, where the numbers carry it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tune.report.advice import results, settings, trials
from tune.report.advice.advice import Advice
from tune.report.analysis import Analysis

RULES: tuple[Callable[[Analysis], Iterator[Advice]], ...] = (
    results.worse_than_base,
    results.most_is_wrong,
    results.nothing_left,
    trials.trials_failed,
    settings.all_diverged,
    settings.diverges_above,
    settings.at_bounds,
    results.still_falling,
    results.rises_at_the_end,
    trials.none_went_whole,
    trials.clips_dropped,
)
"""In the order in which they are told; each gives nothing where the numbers do not carry it."""


def advise(analysis: Analysis) -> list[Advice]:
    """All that the rules find; of a single training there is nothing to advise."""
    return [] if analysis.is_training else [advice for rule in RULES for advice in rule(analysis)]
