"""How sure an error rate is, and whether two models differ.

Words of one utterance are not independent of each other, so utterances are what varies. Drawing them anew (Bisani and
Ney, Bootstrap estimates for confidence intervals in ASR performance evaluation, ICASSP 2004) comes to the same as these
formulas for 200 clips and more; for fewer it is too sure: of 6 good clips nothing bad can be drawn.
`docs/scoring.md` has figures of both and says where neither holds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LEAST = 5
"""Utterances below which their spread says nothing."""
_UPPER = 0.975
"""The quantile at the upper end of a 95 % interval."""
_ROUNDING = 1e-12
"""A standard error, as a share of one, up to which it is none."""
_WORDS_ALIKE = 0.3
"""Correlation between the words of a clip, right or wrong, that is assumed where none can be seen."""
_ASSUMED_CLIPS = 10
"""As many clips of scaled sources the variance that is assumed counts for, beside the one that is seen."""
SIGNIFICANT = 0.05
"""p-values from here on count as no difference shown."""

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two models on the same utterances, in points of the rate's percent; negative: the first has fewer errors."""

    difference: float
    interval: Interval | None
    """95 %, of the difference; None for too few utterances, and for the same errors on each."""
    p_value: float
    utterances: int
    """Those that were compared: whose reference has words, or in which one of the models wrote some."""
    better: int
    """Utterances on which the first model makes fewer errors."""
    worse: int

    @property
    def same_errors(self) -> bool:
        """Whether both made as many errors on each utterance, between which no difference can be seen."""
        return not self.better and not self.worse

    @property
    def shown(self) -> bool:
        """Whether the data shows a difference."""
        return self.p_value < SIGNIFICANT


def rate_interval(errors: np.ndarray, lengths: np.ndarray, worst_of: int = 1) -> Interval | None:
    """95 % interval of a corpus-level rate, in percent: exact limits for the words that were effectively seen.

    Clips differ, so that 60 words of 6 clips may tell as little as 10 independent ones. That many are effective: as
    many as have the standard error of the clips, no more than there are, and fewer where that error rests on few clips.
    With them go the limits of a share of independent words (Korn and Graubard, Survey Methodology 1998; Clopper and
    Pearson, Biometrika 1934), or, where a clip has more errors than words, those of a count of independent errors
    (Garwood, Biometrika 1936). Both are skewed as rates of few errors are.

    Where all clips have the same rate, all words right or all wrong above all, their spread says nothing: the limits
    are then the rule of three's, 3 / words (Hanley and Lippman-Hand, JAMA 1983), for words that are alike in a clip.

    That of several sources which came out worst is partly so by chance, the more of them there are. If they are alike,
    chance takes one of them above the limit `worst_of` times as often (Dunn, JASA 1961), and hardly all of them below:
    then the lower end may have the 5 % to itself, a share for each source.

    Args:
        errors: of each utterance, shape (n,).
        lengths: reference words or characters of each, shape (n,); utterances without any, nor errors, are left out.
        worst_of: how many sources there are, where the utterances are those of the one that came out worst.

    Returns:
        Low and high end, or None for fewer than five utterances.
    """
    from scipy.special import betaincinv, gammaincinv, ndtri

    used = (lengths > 0) | (errors != 0)
    errors, lengths = errors[used], lengths[used]
    if len(errors) < LEAST:
        return None
    rate, error, quantile = ratio(errors, lengths)
    is_share = bool((errors <= lengths).all())
    if not error:
        reach = _rule_of_three(lengths)
        low, high = max(0.0, rate - reach), rate + reach
        return 100.0 * low, 100.0 * (min(1.0, high) if is_share else high)
    fewer = (float(ndtri(_UPPER)) / quantile) ** 2
    lower = (1.0 - _UPPER) * min(1.0, 2.0 / worst_of)
    if is_share:
        words = fewer * min(float(lengths.sum()), rate * (1.0 - rate) / _variance(rate, error, lengths))
        wrong = rate * words
        low = betaincinv(wrong, words - wrong + 1.0, lower)
        high = betaincinv(wrong + 1.0, words - wrong, _UPPER)
    else:
        wrong = fewer * (rate / error) ** 2
        low = rate / wrong * gammaincinv(wrong, lower)
        high = rate / wrong * gammaincinv(wrong + 1.0, _UPPER)
    return 100.0 * float(low), 100.0 * float(high)


def difference_interval(differences: np.ndarray, lengths: np.ndarray) -> Interval | None:
    """95 % interval of the difference of two rates on the same clips, in points: Student's t; None as for a rate.

    `differences` are the errors of one model minus those of another, of each utterance; shapes as for a rate.
    """
    used = (lengths > 0) | (differences != 0)
    differences, lengths = differences[used], lengths[used]
    if len(differences) < LEAST:
        return None
    difference, error, quantile = ratio(differences, lengths)
    reach = quantile * error or _rule_of_three(lengths)
    return 100.0 * (difference - reach), 100.0 * (difference + reach)


def ratio(values: np.ndarray, lengths: np.ndarray) -> tuple[float, float, float]:
    """Their ratio, its standard error over the utterances, and the quantile of Student's t that goes with it.

    The linearised error of a ratio of sums (Cochran, Sampling Techniques, 1977, section 6.4). It is 0.0 where all
    utterances have the same ratio.
    """
    from scipy.special import stdtrit

    number, length = _independent(lengths), float(lengths.sum())
    ratio = float(values.sum()) / length
    squares = float(((values - ratio * lengths) ** 2).sum())
    error = math.sqrt(squares * number / (number - 1)) / length
    return ratio, error if error > _ROUNDING else 0.0, float(stdtrit(number - 1, _UPPER))


def _independent(lengths: np.ndarray) -> float:
    """As how many utterances these count: all, but where some of several sources were scaled up and others down.

    Then the lengths are no whole numbers, and the few of a small source tell nearly all (Satterthwaite 1946).
    """
    if not (lengths % 1).any():
        return len(lengths)
    squares = lengths**2
    return max(2.0, float(squares.sum() ** 2 / (squares**2).sum()))


def _variance(rate: float, error: float, lengths: np.ndarray) -> float:
    """The variance of a rate; of several sources that were scaled, one that is assumed counts as much as ten clips.

    The few clips of a small source, which tell nearly all, often have too few errors to show how alike these are. The
    one assumed is that of words as alike in a clip as `_WORDS_ALIKE` (Kish, Survey Sampling, 1965).
    """
    number, words = _independent(lengths), float(lengths.sum())
    if number == len(lengths):
        return error**2
    alike = 1.0 + (float((lengths**2).sum()) / words - 1.0) * _WORDS_ALIKE
    return (number * error**2 + _ASSUMED_CLIPS * rate * (1.0 - rate) * alike / words) / (
        number + _ASSUMED_CLIPS
    )


def _rule_of_three(lengths: np.ndarray) -> float:
    """The share of words that may be otherwise where all seen are alike: 3 / words, were these independent."""
    words = float(lengths.sum())
    alike = 1.0 + (words / _independent(lengths) - 1.0) * _WORDS_ALIKE
    return min(1.0, 3.0 * alike / words)


def compare(first: np.ndarray, second: np.ndarray, lengths: np.ndarray) -> Comparison:
    """Whether two models' errors differ on the same utterances: `difference_interval`, and the p-value of that t."""
    from scipy.special import stdtr  # type: ignore[import-untyped]

    used = (lengths > 0) | (first != 0) | (second != 0)
    differences, lengths = (first - second)[used], lengths[used]
    interval, p_value = None, 1.0
    if differences.any() and len(differences) >= LEAST:
        difference, error, quantile = ratio(differences, lengths)
        interval = difference_interval(differences, lengths)
        error = error or _rule_of_three(lengths) / quantile
        p_value = 2.0 * float(stdtr(_independent(lengths) - 1, -abs(difference) / error))
    return Comparison(
        difference=100.0 * float(differences.sum()) / float(lengths.sum()),
        interval=interval,
        p_value=p_value,
        utterances=len(differences),
        better=int((differences < 0).sum()),
        worse=int((differences > 0).sum()),
    )
