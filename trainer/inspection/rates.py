"""How long a text takes to speak, learned from the data set itself, to find texts that cannot be of their audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ENOUGH = 30
"""Clips from which a data set has a rate of its own."""
_EXTRA = 10.0
"""Letters that every text has on top: a short one takes its time too, and varies more."""
_Z = 4.5
"""Robust standard deviations from the usual length: with a tenth of 400 texts of read speech swapped for others of half
or twice the length and more, 94 % of these are beyond it (40 draws)."""
_RATIO, _SECONDS = 1.4, 0.5
"""Times longer or shorter than usual, and seconds: very even (synthetic) speech deviates by a few percent, and of one
word a part is easily taken for silence."""
_FASTEST, _SLOWEST, _AT_LEAST = 40.0, 0.8, 10
"""Letters a second that nobody speaks, whatever is usual in the data set; the first of texts of so many letters."""


class Misfit(NamedTuple):
    """A text that is too long or too short for its audio."""

    position: int
    usual: float | None
    """Seconds that such a text usually takes; None where the data set has too few clips to tell."""


def usual_seconds(rate: float, units: float) -> float:
    """How long a text of so many letters usually is, where the usual rate is so many letters a second."""
    return (units + _EXTRA) / rate


def find_misfits(
    seconds: Sequence[float], units: Sequence[int], *, ratio: float = _RATIO
) -> tuple[float | None, list[Misfit]]:
    """Clips whose texts are far too long or too short for them, the farthest first.

    Args:
        seconds: length of each clip, or better of its speech, without the silence around.
        units: letters of each text.
        ratio: times longer or shorter than usual that are never far.

    Returns:
        The usual rate of long texts in letters a second, where there are enough clips to tell, and the clips.
    """
    import numpy as np

    lengths = np.maximum(np.asarray(seconds, dtype=float), 0.02)
    letters = np.maximum(np.asarray(units, dtype=float), 1.0)
    per_second = letters / lengths
    far = ((per_second > _FASTEST) & (letters >= _AT_LEAST)) | ((per_second < _SLOWEST) & (lengths > 5))
    distance, rate = np.abs(np.log(per_second)), None
    if len(lengths) >= _ENOUGH:
        logs = np.log(lengths) - np.log(letters + _EXTRA)
        rate = float(np.exp(-np.median(logs)))
        distance = np.abs(logs - np.median(logs))
        # 1.4826 times the median distance is the standard deviation of a normal distribution; of very many clips some
        # are farther out by chance.
        deviations = max(_Z, float(np.sqrt(2 * np.log(len(lengths)))))
        limit = max(deviations * 1.4826 * float(np.median(distance)), np.log(ratio))
        far |= (distance > limit) & (np.abs(lengths - usual_seconds(rate, letters)) > _SECONDS)
    found = np.flatnonzero(far)
    return rate, [
        Misfit(int(at), None if rate is None else usual_seconds(rate, float(letters[at])))
        for at in found[np.argsort(-distance[found], kind="stable")]
    ]
