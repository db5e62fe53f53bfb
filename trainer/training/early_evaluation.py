"""Fewer clips for early evaluations: a fixed part of the validation split, and how far off its WER may be.

Before half of its budget a trial is only compared with others, on the same clips, to end the bad ones; a part of a
large validation split says as much in less time. From then on all clips count: what is exported was measured on all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trainer.scoring.alignment import UtteranceErrors

if TYPE_CHECKING:
    from trainer.training.batches import BatchPlan

LEAST_CLIPS = 100
"""Fewer are never taken: their error could not be told well."""
LEAST_OF_SOURCE = 20
"""The same of each of several sources."""
_POINTS, _SHARE = 0.5, 0.02
"""Standard error that a decision bears: half a WER point, which is what independent re-runs of published trainings
differ by, or this share of the base model's WER, since rates above 25 % are further apart at early rungs."""
_WORTH = 0.5
"""Above this share of the clips all are taken: what is saved would not be worth a rate that is not exact."""


def early_clips(sources: Sequence[str], count: int | None, seed: int) -> list[int]:
    """Numbers of the clips measured early, in rising order; all where `count` is none, 0 or not less than there are.

    Args:
        sources: of each clip; each source has its share of those chosen, and at least `LEAST_OF_SOURCE`.
        count: how many.
        seed: of the choice.
    """
    if not count or count >= len(sources):
        return list(range(len(sources)))
    chosen: list[int] = []
    for number, source in enumerate(dict.fromkeys(sources)):
        mine = np.flatnonzero([each == source for each in sources])
        least = LEAST_OF_SOURCE if len(mine) < len(sources) else 0
        some = min(len(mine), max(round(count * len(mine) / len(sources)), least))
        generator = np.random.default_rng([seed, len(mine), *([number] if number else [])])
        chosen += mine[generator.choice(len(mine), some, replace=False)].tolist()
    return sorted(chosen)


def is_early(plan: BatchPlan, step: int) -> bool:
    """Whether less than half of the budget has been seen after a step."""
    return 2 * plan.samples_seen(step) < plan.points[-1]


def wer_error(utterances: UtteranceErrors, sources: Sequence[str], n_clips: Mapping[str, int]) -> float:
    """Standard error in WER points of a rate measured on some of the clips, as the rate of all of them.

    The usual one of a ratio under simple random sampling without replacement (Cochran, Sampling Techniques, 3rd ed.,
    section 6.4), of each source by itself (section 6.11): 0 where all are measured.

    Args:
        utterances: of the clips measured.
        sources: of each of them.
        n_clips: all clips of each source.
    """
    errors, words = (np.asarray(values, dtype=float) for values in (utterances.word_errors, utterances.words))
    squares = 0.0
    for source in dict.fromkeys(sources):
        mine = np.flatnonzero([each == source for each in sources])
        of_source, total = words[mine], words.sum()
        if not of_source.sum() or len(mine) >= n_clips[source]:
            continue
        rest = (1 - len(mine) / n_clips[source]) / len(mine)
        share = float(of_source.sum() / total)
        squares += (share * _spread(errors[mine], of_source) / float(of_source.mean())) ** 2 * rest
    return 100 * math.sqrt(squares)


def enough_clips(utterances: UtteranceErrors) -> int | None:
    """How many clips decide early: as many as give a small enough standard error; None where all are needed.

    Args:
        utterances: of the base model, on all clips.
    """
    errors, words = (np.asarray(values, dtype=float) for values in (utterances.word_errors, utterances.words))
    n_clips = len(words)
    if not words.sum():
        return None
    allowed = max(_POINTS, _SHARE * 100 * float(errors.sum() / words.sum()))
    # The clips that an unlimited set would need, then what the limited one saves of them (Cochran, section 4.4).
    unlimited = (100 * _spread(errors, words) / float(words.mean()) / allowed) ** 2
    count = max(LEAST_CLIPS, math.ceil(unlimited / (1 + unlimited / n_clips)))
    return count if count <= _WORTH * n_clips else None


def _spread(errors: np.ndarray, words: np.ndarray) -> float:
    """Standard deviation of a clip's word errors around what its length lets expect."""
    rest = errors - words * (errors.sum() / words.sum())
    return math.sqrt(float((rest**2).sum()) / max(1, len(words) - 1))
