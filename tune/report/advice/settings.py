"""Advice on the searched settings: ranges to widen or narrow, settings that did not matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trainer.errors import ConfigError
from tune.report.advice.advice import Advice
from tune.report.analysis import Analysis
from tune.report.scales import number
from tune.search.records import Trial
from tune.space.parameters import ChoiceParameter, IntParameter, Parameter, is_number, show
from tune.space.range_reader import checked

_LEAST_TRIALS = 8
"""Comparable trials below which nothing is said of a range."""
_BEST_SHARE = 0.15
_LEAST_BEST = 3
"""The best of the trials are so large a share of them, and no fewer than so many."""
_EDGE = 0.1
"""Share of a range, on its own scale, that counts as its end."""
_AT_EDGE = 2 / 3
"""Share of the best trials there from which the range seems too narrow."""
_CHANCE = 0.05
"""A choice's last value is named only where so many of the best would have it by chance less often than this."""
_ASTRAY = 0.8
"""Share of the trials above a learning rate that went astray from which the range is too high."""
_ASTRAY_BELOW = 0.1
"""... and of those below it, at most."""
_LEAST_ASTRAY = 3


def at_bounds(analysis: Analysis) -> Iterator[Advice]:
    """The best trials lie at the end of a range, and those elsewhere are worse by more than noise."""
    ranked = analysis.ranked
    if len(ranked) < _LEAST_TRIALS:
        return
    best = ranked[: max(_LEAST_BEST, math.ceil(_BEST_SHARE * len(ranked)))]
    for name, parameter in analysis.parameters.items():
        scale = analysis.scales[name]
        edge = scale.step or _EDGE
        for upper in (False, True):
            having = [trial for trial in ranked if name in trial.config]
            there = [trial for trial in having if abs(upper - scale.place(trial.config[name])) <= edge]
            inside = [trial for trial in best if trial in there]
            elsewhere = [trial for trial in ranked if trial not in there]
            if best[0] not in there or not elsewhere or not _are_enough(parameter, len(inside), len(best)):
                continue
            gap = analysis.expected[elsewhere[0].trial_id] - analysis.expected[best[0].trial_id]
            beyond = _beyond(name, parameter, upper=upper)
            if gap > analysis.pair_noise and beyond is not None:
                count = (
                    f"All {len(best)}" if len(inside) == len(best) else f"{len(inside)} of the {len(best)}"
                )
                values = sorted(trial.config[name] for trial in inside)
                yield _widen(name, parameter, values, count, beyond, upper=upper)


def _are_enough(parameter: Parameter, inside: int, best: int) -> bool:
    """Whether so many of the best at an end are more than chance would bring there."""
    if isinstance(parameter, ChoiceParameter):
        return inside == best and (1 / len(parameter.values)) ** best <= _CHANCE
    return inside >= _AT_EDGE * best


def _beyond(name: str, parameter: Parameter, *, upper: bool) -> Any:
    """A value beyond the end of a range that the setting allows; None where there is none."""
    if isinstance(parameter, ChoiceParameter):
        values = parameter.values
        if not all(map(is_number, values)):
            return None
        value: float = max(values) * 2 if upper else min(values) / 2
        if value in values:
            return None
    else:
        low, high = float(parameter.low or 0.0), float(parameter.high or 0.0)
        if parameter.log:
            value = high * 3 if upper else low / 3
        else:
            value = high + (high - low) / 2 if upper else low - (high - low) / 2
        if isinstance(parameter, IntParameter):
            value = math.ceil(value) if upper else math.floor(value)
        else:  # two digits of the distance
            value = round(value, 1 - math.floor(math.log10(abs(value - (high if upper else low)))))
    try:
        return checked(name, value)
    except ConfigError:
        return None


def _widen(
    name: str, parameter: Parameter, values: Sequence[Any], count: str, beyond: Any, *, upper: bool
) -> Advice:
    """`values` are those of the best trials at that end, `count` says how many of the best that are."""
    if isinstance(parameter, ChoiceParameter):
        largest = "largest" if upper else "smallest"
        return Advice(
            f"{count} best trials have `{name}` {show(values[0])}, the {largest} value searched.",
            f"Add {show(beyond)} to its values.",
        )
    bound = number(float((parameter.high if upper else parameter.low) or 0))
    spread = " to ".join(dict.fromkeys([number(values[0]), number(values[-1])]))
    return Advice(
        f"{count} best trials are at the {'upper' if upper else 'lower'} bound {bound} of `{name}` ({spread}).",
        f"Widen the range: `{'high' if upper else 'low'}: {number(float(beyond))}`.",
    )


def all_diverged(analysis: Analysis) -> Iterator[Advice]:
    """Every trial diverged: even the lowest learning rate was too high."""
    diverged = analysis.all_diverged
    if not diverged or (analysis.stage == "running" and len(diverged) < _LEAST_ASTRAY):
        return
    lowest = number(min(_learning_rate(analysis, trial) for trial in diverged))
    follows = f"They had `learning_rate` {lowest}: set a lower one."
    if "learning_rate" in analysis.parameters:
        follows = f"Lower the range of `learning_rate`: search below {lowest}, the lowest that diverged."
    yield Advice(f"{analysis.all_diverged_words}: a loss or WER was not a finite number.", follows)


def diverges_above(analysis: Analysis) -> Iterator[Advice]:
    """Nearly all trials above some learning rate went astray, and hardly any below."""
    astray = [trial for trial in analysis.trials if _went_astray(trial)]
    if len(astray) < _LEAST_ASTRAY or "learning_rate" not in analysis.parameters:
        return
    judged = [trial for trial in analysis.trials if trial.evaluations or _went_astray(trial)]
    rates = {trial.trial_id: _learning_rate(analysis, trial) for trial in judged}
    for rate in sorted(rates[trial.trial_id] for trial in astray):
        above = [trial for trial in judged if rates[trial.trial_id] >= rate]
        below = [trial for trial in judged if rates[trial.trial_id] < rate]
        bad, stray = (sum(_went_astray(trial) for trial in some) for some in (above, below))
        if (
            bad >= _LEAST_ASTRAY
            and bad >= _ASTRAY * len(above)
            and stray <= _ASTRAY_BELOW * len(below)
            and below
        ):
            yield Advice(
                f"{bad} of {len(above)} trials with `learning_rate` {number(rate)} or more diverged or ended far above "
                f"the base model's WER, and {stray} of {len(below)} with a lower one.",
                f"Lower the range: `high: {number(rate)}`; or search more warmup.",
            )
            return


def _learning_rate(analysis: Analysis, trial: Trial) -> float:
    """Its own, else that of all trials."""
    own: float = trial.config.get("learning_rate") or analysis.settings.base.learning_rate or 0.0
    return own


def _went_astray(trial: Trial) -> bool:
    return trial.status == "diverged" or (trial.stop is not None and trial.stop.reason == "above_baseline")
