"""Fewer clips for early evaluations: a fixed part of the validation split, and how far off its WER may be.

Before half of its budget a trial is only compared with others, on the same clips, to end the bad ones; a part of a
large validation split says as much in less time. From then on all clips count: what is exported was measured on all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainer.scoring.alignment import UtteranceErrors

if TYPE_CHECKING:
    from trainer.training.batches import BatchPlan

LEAST_CLIPS = 100
"""Fewer are never taken: their error could not be told well."""
_POINTS, _SHARE = 0.5, 0.02
"""Standard error that a decision bears: half a WER point, which is what independent re-runs of published trainings
differ by, or this share of the base model's WER, since rates above 25 % are further apart at early rungs."""
_WORTH = 0.5
"""Above this share of the clips all are taken: what is saved would not be worth a rate that is not exact."""


def early_clips(n_clips: int, count: int | None, seed: int) -> list[int]:
    """Numbers of the clips measured early, in rising order; all where `count` is none, 0 or not less than there are."""
    if not count or count >= n_clips:
        return list(range(n_clips))
    chosen = np.random.default_rng([seed, n_clips]).choice(n_clips, count, replace=False)
    return sorted(chosen.tolist())


def is_early(plan: BatchPlan, step: int) -> bool:
    """Whether less than half of the budget has been seen after a step."""
    return 2 * plan.samples_seen(step) < plan.points[-1]


def wer_error(utterances: UtteranceErrors, n_clips: int) -> float:
    """Standard error in WER points of a rate measured on some of `n_clips` clips, as the rate of all of them.

    The usual one of a ratio under simple random sampling without replacement (Cochran, Sampling Techniques, 3rd ed.,
    section 6.4): 0 where all are measured.
    """
    errors, words = (np.asarray(values, dtype=float) for values in (utterances.word_errors, utterances.words))
    count = len(words)
    if count >= n_clips:
        return 0.0
    spread = _spread(errors, words)
    return 100 * spread * math.sqrt((1 - count / n_clips) / count) / float(words.mean())


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
