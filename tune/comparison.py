"""Which of several settings is the best, when each was trained with several seeds: noise told from difference."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_RESAMPLES = 2000
_INTERVAL = (2.5, 97.5)
_USUAL_SD = 0.5
"""Standard deviation between seeds, in points, where no settings have two repeats that show it."""
_CHEAPER = 0.95
"""Share of the other's time below which settings count as cheaper: less is noise of the machines."""


@dataclasses.dataclass(frozen=True)
class Repeat:
    """One training with a seed of its own."""

    run: str
    wer: float
    """Best WER in percent."""
    seconds: float
    word_errors: np.ndarray
    """Of each validation clip, shape (clips,)."""
    words: np.ndarray
    """Reference words of each clip, shape (clips,)."""


@dataclasses.dataclass(frozen=True)
class Standing:
    """Settings with what their repeats came to."""

    trial_id: str
    runs: list[str]
    wers: list[float]
    mean: float
    sd: float | None
    """Standard deviation between seeds (n - 1); None for one repeat."""
    seconds: float
    """Mean time of a repeat."""
    difference: float = 0.0
    """Mean WER minus that of the lowest mean, in points."""
    interval: tuple[float, float] = (0.0, 0.0)
    """95 % interval of that difference."""
    tied: bool = False
    """Whether the interval reaches zero."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The finalists from the lowest mean on, and the winner."""

    standings: list[Standing]
    winner: str
    tie: bool
    """Whether others are as good within noise, and the winner is the cheapest of them."""

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Verdict:
        """What `to_dict` gave, also in an earlier version."""
        standings = [
            Standing(**{**standing, "interval": tuple(standing["interval"])})
            for standing in saved["standings"]
        ]
        return cls(standings, saved["winner"], bool(saved["tie"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `results.json`."""
        return dataclasses.asdict(self)


def judge_finalists(repeats: Mapping[str, Sequence[Repeat]], seed: int = 0) -> Verdict:
    """Compare settings by the mean WER of their repeats.

    The interval of a difference has two sources of noise. Clips: a paired bootstrap (Bisani and Ney, ICASSP
    2004), where the same clips are drawn for both settings, since clips differ more than settings do. Seeds:
    Student's t with the standard deviation between repeats, pooled over all settings; drawing two or three
    repeats anew, as a bootstrap does, would make it far too narrow (Hesterberg, The American Statistician 2015).
    Where the interval reaches zero the two are tied, and of all that are tied with the lowest mean the cheapest
    wins.

    Args:
        repeats: by trial, each at least once; all on the same clips.
        seed: of the resampling.
    """
    standings = sorted(
        (_standing(trial, runs) for trial, runs in repeats.items()), key=lambda found: found.mean
    )
    lead = standings[0]
    judged = [lead]
    noise = seed_noise(standings)
    for other in standings[1:]:
        low, high = _interval(repeats[lead.trial_id], repeats[other.trial_id], noise, seed)
        judged.append(
            dataclasses.replace(
                other, difference=other.mean - lead.mean, interval=(low, high), tied=low <= 0.0
            )
        )
    tied = [lead, *(standing for standing in judged if standing.tied)]
    cheapest = min(tied, key=lambda standing: standing.seconds)
    winner = cheapest if cheapest.seconds < _CHEAPER * lead.seconds else lead
    return Verdict(judged, winner.trial_id, tie=len(tied) > 1)


def _standing(trial_id: str, repeats: Sequence[Repeat]) -> Standing:
    wers = [repeat.wer for repeat in repeats]
    return Standing(
        trial_id=trial_id,
        runs=[repeat.run for repeat in repeats],
        wers=wers,
        mean=statistics.fmean(wers),
        sd=statistics.stdev(wers) if len(wers) > 1 else None,
        seconds=statistics.fmean(repeat.seconds for repeat in repeats),
    )


def seed_noise(standings: Sequence[Standing]) -> tuple[float, int]:
    """Standard deviation between seeds in points, pooled over all settings, and its degrees of freedom."""
    spread = [(found.sd, len(found.wers) - 1) for found in standings if found.sd is not None]
    freedom = sum(number for _, number in spread)
    if not freedom:
        return _USUAL_SD, 0
    return math.sqrt(sum(number * sd**2 for sd, number in spread) / freedom), freedom


def _interval(
    lead: Sequence[Repeat], other: Sequence[Repeat], noise: tuple[float, int], seed: int
) -> tuple[float, float]:
    """95 % interval of `other`'s mean WER minus `lead`'s, in points."""
    generator = np.random.default_rng(seed)
    words = lead[0].words
    errors = [np.mean([repeat.word_errors for repeat in repeats], axis=0) for repeats in (lead, other)]
    more = errors[1] - errors[0]
    found = np.empty(_RESAMPLES)
    for index in range(_RESAMPLES):
        clips = generator.integers(len(words), size=len(words))
        found[index] = 100.0 * more[clips].sum() / max(1, words[clips].sum())
    sd, freedom = noise
    drawn = generator.standard_t(freedom, _RESAMPLES) if freedom else generator.normal(size=_RESAMPLES)
    found += sd * math.sqrt(1 / len(lead) + 1 / len(other)) * drawn
    low, high = np.percentile(found, _INTERVAL)
    return float(low), float(high)
