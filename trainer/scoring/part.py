"""A fixed part of the validation split, on which the trials of a search are compared.

Trials are only compared with each other and with the base model, on the same clips; a part of a large split says as
much in less time. What is exported is chosen by finalists that are measured on all clips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.scoring.alignment import ClipErrors
from trainer.scoring.intervals import ratio

LEAST_CLIPS, MOST_CLIPS = 500, 2000
LEAST_OF_SOURCE = 20
"""Fewer clips are never taken of each of several sources."""
_POINTS = 0.5
"""Standard error that a comparison bears, in WER points: re-runs of published trainings differ by as much."""


def chosen_clips(sources: Sequence[str], count: int, seed: int) -> list[int]:
    """Numbers of the clips in the part, in rising order; all where `count` is not less than there are.

    Each of the `sources` of the clips has its share of them, and at least `LEAST_OF_SOURCE`.
    """
    if count >= len(sources):
        return list(range(len(sources)))
    chosen: list[int] = []
    for number, source in enumerate(dict.fromkeys(sources)):
        mine = np.flatnonzero([each == source for each in sources])
        least = LEAST_OF_SOURCE if len(mine) < len(sources) else 0
        some = min(len(mine), max(round(count * len(mine) / len(sources)), least))
        generator = np.random.default_rng([seed, len(mine), *([number] if number else [])])
        chosen += mine[generator.choice(len(mine), some, replace=False)].tolist()
    return sorted(chosen)


def enough_clips(utterances: ClipErrors) -> int | None:
    """How many clips give a WER with a standard error of about half a point; None where those are all.

    Of what the base model's errors on all clips show.
    """
    errors, words = utterances.word_errors, utterances.words
    n_clips = len(words)
    if n_clips <= LEAST_CLIPS or not words.sum():
        return None
    # First the clips that an unlimited set would need, then what the limited one saves of them (Cochran, Sampling
    # Techniques, 3rd ed., section 4.4).
    _, error, _ = ratio(errors, words)
    unlimited = n_clips * (100 * error / _POINTS) ** 2
    count = min(MOST_CLIPS, max(LEAST_CLIPS, math.ceil(unlimited / (1 + unlimited / n_clips))))
    return count if count < n_clips else None
