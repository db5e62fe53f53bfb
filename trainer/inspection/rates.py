"""How long a text takes to speak, learned from the data set itself, to find texts that cannot be of their audio."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

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


@dataclasses.dataclass(frozen=True)
class RateModel:
    """Usual seconds of a text of so many letters: `(units + 10) / rate`."""

    rate: float
    """Letters a second in a long text."""
    spread: float
    """Robust standard deviation of the logarithm of actual over usual seconds."""

    def usual_seconds(self, units: float) -> float:
        """How long a text of so many letters usually is."""
        return (units + _EXTRA) / self.rate


@dataclasses.dataclass(frozen=True, slots=True)
class Misfit:
    """A text that does not fit its audio."""

    position: int
    too_long: bool
    """Whether the text is too long for the audio; too short else."""
    usual: float | None
    """Seconds that such a text usually takes; None where the data set has too few clips to tell."""


def fit_rate(seconds: np.ndarray, units: np.ndarray) -> RateModel | None:
    """The usual rate of some clips, by medians; None where they are too few.

    Args:
        seconds: float (clips,), length of the speech.
        units: float (clips,), letters of the text.
    """
    import numpy as np

    if len(seconds) < _ENOUGH:
        return None
    logs = np.log(seconds) - np.log(units + _EXTRA)
    # 1.4826 times the median distance is the standard deviation of a normal distribution.
    spread = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return RateModel(float(np.exp(-np.median(logs))), spread)


def find_misfits(seconds: Sequence[float], units: Sequence[int]) -> tuple[RateModel | None, list[Misfit]]:
    """Clips whose texts are far too long or too short for them, the farthest first.

    Args:
        seconds: length of each clip, or better of its speech, without the silence around.
        units: letters of each text.

    Returns:
        What is usual, where there are enough clips to tell, and the clips that it does not hold for.
    """
    import numpy as np

    lengths = np.maximum(np.asarray(seconds, dtype=float), 0.02)
    letters = np.maximum(np.asarray(units, dtype=float), 1.0)
    model = fit_rate(lengths, letters)
    per_second = letters / lengths
    too_fast = (per_second > _FASTEST) & (letters >= _AT_LEAST)
    too_slow = (per_second < _SLOWEST) & (lengths > 5)
    distance = np.abs(np.log(per_second))
    if model is not None:
        usual = (letters + _EXTRA) / model.rate
        residuals = np.log(lengths) - np.log(usual)
        # Of very many clips some are farther out by chance.
        deviations = max(_Z, float(np.sqrt(2 * np.log(len(lengths)))))
        limit = np.maximum(deviations * model.spread, np.log(_RATIO))
        far = np.abs(lengths - usual) > _SECONDS
        too_fast |= far & (residuals < -limit)
        too_slow |= far & (residuals > limit)
        distance = np.abs(residuals)
    found = np.flatnonzero(too_fast | too_slow)
    return model, [
        Misfit(int(at), bool(too_fast[at]), model.usual_seconds(float(letters[at])) if model else None)
        for at in found[np.argsort(-distance[found], kind="stable")]
    ]
