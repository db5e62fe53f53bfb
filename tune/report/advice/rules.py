"""What to do next, in plain words, where the numbers carry it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tune.report.advice.results import (
    few_clips,
    finalists_tie,
    gain_is_noise,
    order_is_noise,
    rises_at_the_end,
    short_window,
    still_falling,
    usual_settings_do,
    worse_than_base,
)
from tune.report.advice.settings import all_diverged, at_bounds, did_not_matter, diverges_above
from tune.report.advice.trials import (
    clips_dropped,
    few_trials,
    rung_misleads,
    stopped_too_soon,
    stopping_saved,
    trials_failed,
)
from tune.report.analysis import Analysis
from tune.report.words import Advice

RULES: tuple[Callable[[Analysis], Iterator[Advice]], ...] = (
    worse_than_base,
    short_window,
    trials_failed,
    all_diverged,
    diverges_above,
    at_bounds,
    still_falling,
    rises_at_the_end,
    rung_misleads,
    stopped_too_soon,
    gain_is_noise,
    clips_dropped,
    few_clips,
    few_trials,
    finalists_tie,
    order_is_noise,
    usual_settings_do,
    did_not_matter,
    stopping_saved,
)
"""In the order in which they are told; each gives nothing where the numbers do not carry it."""


def advise(analysis: Analysis) -> list[Advice]:
    """All that the rules find, what calls for a change first."""
    found = [advice for rule in RULES for advice in rule(analysis)]
    return sorted(found, key=lambda advice: not advice.change)
