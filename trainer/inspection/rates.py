"""How long a text takes to speak, learned from the data set itself, to find texts that cannot be of their audio."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.inspection.entries import Entry
from trainer.inspection.texts import shorten

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


def usual_seconds(rate: float, units: float) -> float:
    """How long a text of so many letters usually is, where the usual rate is so many letters a second."""
    return (units + _EXTRA) / rate


def misfitting(
    clips: Sequence[tuple[Entry, float]], *, ratio: float = _RATIO
) -> tuple[float | None, list[tuple[Entry, str]]]:
    """Clips of one language whose texts are far too long or too short for them, the farthest first.

    Seconds are best those of the speech, without the silence around.

    Returns:
        The usual rate of long texts in letters a second, where there are enough clips to tell; and the clips, each
        with what is odd in words.
    """
    clips = [(entry, seconds) for entry, seconds in clips if entry.key]  # else no text is to be spoken
    lengths = np.maximum(np.array([seconds for _, seconds in clips], float), 0.02)
    letters = np.maximum(np.array([entry.units for entry, _ in clips], float), 1.0)
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
    misfits = np.flatnonzero(far)
    suspects = []
    for at in misfits[np.argsort(-distance[misfits], kind="stable")].tolist():
        entry, seconds = clips[at]
        usual = "" if rate is None else f", usually {usual_seconds(rate, max(1, entry.units)):.1f} s"
        suspects.append((entry, f"{entry.units} letters in {seconds:.1f} s{usual}: {shorten(entry.text)!r}"))
    return rate, suspects
