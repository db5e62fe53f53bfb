"""How figures of an evaluation are written, the same on the screen and on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.scoring.intervals import LEAST

if TYPE_CHECKING:
    from trainer.scoring.intervals import Comparison, Interval
    from trainer.scoring.scores import Scores

_TOO_FEW = "too few clips"


def percent(number: float) -> str:
    """A rate without its sign: `9.19`."""
    return f"{number:.2f}"


def points(number: float) -> str:
    """A difference with its sign: `-59.33`, `+0.27`, `0.00`."""
    text = f"{number:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "\u2212")


def between(interval: Interval | None, *, signed: bool = False) -> str:
    """An interval: `8.02 to 10.51`; `too few` where there is none."""
    if interval is None:
        return _TOO_FEW
    written = points if signed else percent
    return f"{written(interval[0])} to {written(interval[1])}"


def difference_between(found: Comparison) -> str:
    """The interval of a difference, or why there is none, in as few words as a table has room for."""
    return "same errors" if _all_alike(found) else between(found.interval, signed=True)


def p_value(p: float) -> str:
    """`0.013`, or `< 0.001` where it is smaller."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def verdict(scores: Scores) -> str:
    """The comparison in a sentence, by the main rate."""
    assert scores.baseline is not None
    found, rate = scores.comparisons["wer"], scores.main_rate
    model, other = scores.model.model, scores.baseline.model
    if not found.shown:
        return (
            f"no difference shown: {rate} of {model} minus that of {other} is {points(found.difference)} points, "
            f"{_interval_sentence(found)}, {_p_sentence(found)}"
        )
    below, fewer = ("below", "fewer") if found.difference < 0 else ("above", "more")
    before = scores.baseline.rates["wer"].percent
    share = f" ({100.0 * abs(found.difference) / before:.0f} % {fewer} errors)" if before else ""
    return (
        f"{rate} of {model} is {abs(found.difference):.2f} points {below} that of {other}{share}: "
        f"{_interval_sentence(found, ' of the difference')}, {_p_sentence(found)}; fewer errors in {found.better:,} "
        f"clips, more in {found.worse:,}"
    )


def errors_in(errors: int, length: int, unit: str) -> str:
    """`3 errors in 4 words`, `1 error in 1 word`."""
    return f"{errors:,} error{'s' * (errors != 1)} in {length:,} {unit if length != 1 else unit.removesuffix('s')}"


def _interval_sentence(found: Comparison, of: str = "") -> str:
    if _all_alike(found):
        return "the same errors on every clip"
    if found.interval is None:
        return f"{_TOO_FEW} for a 95 % interval"
    return f"95 % interval{of} {between(found.interval, signed=True)}"


def _all_alike(found: Comparison) -> bool:
    """Whether two models made as many errors on each of enough clips to say so."""
    return found.same_errors and found.utterances >= LEAST


def _p_sentence(found: Comparison) -> str:
    return f"p {p_value(found.p_value)}" if found.p_value < 0.001 else f"p = {p_value(found.p_value)}"
