"""The best trials once more, with other seeds, and which of their settings is the best: noise told from difference."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainer.scoring.alignment import ClipErrors
from trainer.scoring.intervals import Interval, difference_interval, rate_interval
from tune.search.records import Records, Trial, trial_of, trial_order

LEAST_TRIALS = 8
"""Searches of so many trials and more have finalists unless told otherwise."""
DEFAULT_COUNT, DEFAULT_REPEATS = 2, 2
_SEEDS = 2**32
"""Seeds that there are, from 0."""

Noise = tuple[float, int]
"""Standard deviation between seeds, in points of WER, and its degrees of freedom, at least one."""
USUAL_NOISE: Noise = (0.5, 4)
"""What is taken where no settings have two repeats: fine-tunings of one Whisper lie about half a point apart, and with
four degrees of freedom 95 % of deviations are held to be between 0.3 and 1.4 points."""

_NORMAL = statistics.NormalDist().inv_cdf(0.975)


def choose_finalists(records: Records, count: int) -> list[Trial]:
    """The best of the trials that had their whole budget."""
    completed = [
        record for record in records.all() if record.status == "completed" and record.best_value is not None
    ]
    return sorted(completed, key=lambda record: (record.best_value, trial_order(record.trial_id)))[:count]


def resumable_rungs(rungs: Sequence[int]) -> frozenset[int]:
    """The rungs, in samples, at which a run that nothing is decided on is saved so that it can go on after a kill.

    Those that are needed for hardly more samples to be lost than lie between the two that are furthest apart: where
    rungs are far apart at the end, what an early one would save is little.
    """
    # A tenth more, since rungs are rounded to whole batches.
    most = 1.1 * max((after - before for before, after in itertools.pairwise((0, *rungs))), default=0)
    found, last = set(), 0
    for rung, following in itertools.pairwise(rungs):
        if following - last > most:
            found.add(rung)
            last = rung
    return frozenset(found)


def repeat_settings(finalists: Sequence[Trial], repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Settings of every repeat by its name, as `005-r1`; all finalists get the same seeds, those after `seed`.

    None of them is a seed that a finalist was trained with, or its repeat would be a copy.

    Args:
        seed: that all trials were trained with, but for those whose own settings name one.
    """
    used = {seed, *(finalist.config.get("seed", seed) for finalist in finalists)}
    after = ((seed + step) % _SEEDS for step in itertools.count(1))
    seeds = list(itertools.islice((one for one in after if one not in used), repeats))
    return {
        f"{finalist.trial_id}-r{number}": {**finalist.config, "seed": own}
        for number, own in enumerate(seeds, 1)
        for finalist in finalists
    }


def describe_repeats(settings: dict[str, dict[str, Any]]) -> str:
    """What is trained again, in one line."""
    finalists = list(dict.fromkeys(trial_of(name) for name in settings))
    seeds = len(settings) // len(finalists)
    each = "a new seed" if seeds == 1 else f"{seeds} new seeds"
    return f"finalists, trained again at the full budget with {each} each: {', '.join(finalists)}"


@dataclasses.dataclass(frozen=True)
class Repeat:
    """One training with a seed of its own."""

    run: str
    value: float
    """Best objective in percent."""
    seconds: float
    """Wall time, with the process's start, evaluations and waiting."""
    clips: ClipErrors | None = None
    """None where they are not known."""


@dataclasses.dataclass(frozen=True)
class FinalistScore:
    """Settings with what their repeats came to."""

    trial_id: str
    runs: list[str]
    values: list[float]
    """The objective of each run, in percent."""
    mean: float
    sd: float | None
    """Standard deviation between seeds (n - 1); None for one repeat."""
    seconds: float
    """Mean time of a repeat."""
    difference: float = 0.0
    """Mean WER minus that of the lowest mean, in points."""
    interval: Interval = (0.0, 0.0)
    """95 % interval of that difference."""
    tied: bool = False
    """Whether the interval reaches zero, so that no difference is shown."""
    mean_interval: Interval = (0.0, 0.0)
    """95 % interval of the mean WER."""

    def describe(self) -> str:
        """What the mean is of, and how sure: `mean of 2 seeds, 95 % interval 8.10 to 10.20`."""
        return describe_mean(len(self.values), self.mean_interval)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The finalists from the lowest mean on, and the winner."""

    scores: list[FinalistScore]
    winner: str
    tie: bool
    """Whether others are as good within noise: no difference to them is shown."""
    passed_over: str | None = None
    """The trial that would have won, had it not lost too much on data that is not trained on."""

    @property
    def score(self) -> FinalistScore:
        return next(found for found in self.scores if found.trial_id == self.winner)

    @property
    def winner_first(self) -> list[str]:
        """The finalists: the winner, then the others from the lowest mean on."""
        return sorted((each.trial_id for each in self.scores), key=lambda name: name != self.winner)

    @property
    def undecided(self) -> list[str]:
        """Others that are as good as the lowest mean within noise, or have it, if the winner is one of these."""
        lead = self.scores[0]
        alike = [each.trial_id for each in self.scores if each.tied or (each is lead and self.tie)]
        return [name for name in alike if name != self.winner] if self.winner in alike else []

    def describe(self) -> str:
        """Why the winner won, in words that follow "trial": `001 has the lowest mean, by more than noise`; and to whom
        no difference is shown.
        """
        sure = ", by more than noise" if len(self.scores) > 1 and not self.tie else ""
        reason = f"{self.winner} has the lowest mean{sure}"
        if self.passed_over is not None:
            reason = f"{self.winner} wins, because {self.passed_over} loses more on the guards"
        others = [name for name in self.undecided if name != self.scores[0].trial_id]
        return f"{reason}; no difference to {', '.join(others)} is shown" if others else reason


def judge_finalists(repeats: Mapping[str, Sequence[Repeat]]) -> Verdict:
    """Compare settings by the mean WER of their repeats.

    The lowest mean wins.

    Beside it stands what is known of the differences, in 95 % intervals with two sources of noise: the clips (see
    `trainer.scoring.intervals`), and the seeds, by Student's t with `seed_noise`, since drawing two or three repeats
    anew would make an interval far too narrow (Hesterberg, The American Statistician 2015).
    Where an interval reaches zero no difference is shown, which is no reason to take the higher mean.

    Args:
        repeats: by trial, each at least once; all on the same clips. Where the clips' errors of some settings are
            not known, or those of fewer than five clips, their intervals have the seeds' noise alone.
    """
    scores = sorted((_score(trial, runs) for trial, runs in repeats.items()), key=lambda found: found.mean)
    lead, noise = scores[0], seed_noise(scores)
    judged = []
    for found in scores:
        runs = repeats[found.trial_id]
        known: dict[str, Any] = {"mean_interval": mean_interval(runs, noise)}
        if found is not lead:
            low, high = settings_difference(repeats[lead.trial_id], runs, noise)
            known |= {"difference": found.mean - lead.mean, "interval": (low, high), "tied": low <= 0.0}
        judged.append(dataclasses.replace(found, **known))
    return Verdict(judged, lead.trial_id, tie=any(found.tied for found in judged))


def _score(trial_id: str, repeats: Sequence[Repeat]) -> FinalistScore:
    values = [repeat.value for repeat in repeats]
    return FinalistScore(
        trial_id=trial_id,
        runs=[repeat.run for repeat in repeats],
        values=values,
        mean=statistics.fmean(values),
        sd=statistics.stdev(values) if len(values) > 1 else None,
        seconds=statistics.fmean(repeat.seconds for repeat in repeats),
    )


def seed_noise(scores: Sequence[FinalistScore]) -> Noise:
    """Standard deviation between seeds, pooled over all settings, and its degrees of freedom.

    Two finalists with two repeats have two degrees of freedom, and their intervals are as wide as these few repeats
    make them. A usual deviation is not pooled with it: seeds differ by 0.3 points in one search and by 3 in another,
    and with one of half a point that counted as four degrees of freedom intervals held 74 % where it was 3.

    Args:
        scores: without two repeats of any settings it is the usual deviation.
    """
    spread = [(found.sd, len(found.values) - 1) for found in scores if found.sd is not None]
    if not spread:
        return USUAL_NOISE
    freedom = sum(number for _, number in spread)
    return math.sqrt(sum(number * sd**2 for sd, number in spread) / freedom), freedom


def mean_interval(repeats: Sequence[Repeat], noise: Noise) -> Interval:
    """95 % interval of the mean WER of trainings with the same settings, in percent.

    Args:
        repeats: at least one; where no clips' errors are known the interval has the seeds' noise alone.
        noise: see `seed_noise`.
    """
    clips = _known_clips(repeats)
    mean = statistics.fmean(repeat.value for repeat in repeats)
    interval = _with_seeds(mean, _reach(_mean(clips)) or _widest(clips), noise, 1 / len(repeats))
    return _possible(interval, clips)


def describe_mean(seeds: int, interval: Interval | None) -> str:
    """What a WER is the mean of, and its 95 % interval where that is known."""
    text = "1 seed" if seeds == 1 else f"mean of {seeds} seeds"
    return text if interval is None else f"{text}, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"


def describe_lowest(lowest: float | None, values: Iterable[float | None]) -> str:
    """What to add to the objective of a trial that was not repeated, where it is the lowest of several."""
    known = [value for value in values if value is not None]
    return (
        f"the lowest of {len(known)} trials, which is partly luck"
        if len(known) > 1 and lowest == min(known)
        else ""
    )


def objective_interval(runs: Sequence[ClipErrors], noise: Noise | None = None) -> Interval | None:
    """95 % interval of the mean WER of trainings with the same settings, in percent, by their clips.

    Args:
        runs: the trainings; None comes out where they are not on the same clips, or on fewer than five.
        noise: see `seed_noise`; None for a model that was not trained here.
    """
    clips = _mean(runs)
    if clips is None:
        return None
    if noise is None:
        return rate_interval(clips.word_errors, clips.words, clips.worst_of)
    reach = _reach(clips)
    if reach is None:
        return None
    return _possible(_with_seeds(clips.rate, reach, noise, 1 / len(runs)), runs)


def _possible(interval: Interval, runs: Sequence[ClipErrors]) -> Interval:
    """Cut at 0, and where no clip has more errors than words at 100 %, as `rate_interval` is."""
    low, high = interval
    is_share = bool(runs) and all((run.word_errors <= run.words).all() for run in runs)
    return max(0.0, low), min(100.0, high) if is_share else high


def gain_interval(runs: Sequence[ClipErrors], base: ClipErrors, noise: Noise) -> Interval | None:
    """95 % interval of the base model's WER minus the runs' mean, in points, over the same clips.

    None where the clips are not the same, or fewer than five.
    """
    less = _difference(_mean(runs), base)
    reach = _reach(less, difference=True)
    return _with_seeds(less.rate, reach, noise, 1 / len(runs)) if less and reach else None


def settings_difference(lead: Sequence[Repeat], other: Sequence[Repeat], noise: Noise) -> Interval:
    """95 % interval of `other`'s mean WER minus `lead`'s, in points.

    Args:
        lead: trainings with the same settings, at least one.
        other: those with other settings.
        noise: see `seed_noise`.
    """
    runs, others = _known_clips(lead), _known_clips(other)
    difference = statistics.fmean(run.value for run in other) - statistics.fmean(run.value for run in lead)
    reach = _reach(_difference(_mean(runs), _mean(others)), difference=True)
    if reach is None and (one := _widest(runs)) and (two := _widest(others)):
        reach = math.hypot(one[1], two[0]), math.hypot(one[0], two[1])
    return _with_seeds(difference, reach, noise, 1 / len(lead) + 1 / len(other))


def _known_clips(repeats: Sequence[Repeat]) -> list[ClipErrors]:
    return [repeat.clips for repeat in repeats if repeat.clips is not None]


def _mean(runs: Sequence[ClipErrors]) -> ClipErrors | None:
    """Of the errors of each clip; None where there are no runs, or not on the same clips."""
    if not runs or not all(same_clips(run, runs[0]) for run in runs):
        return None
    errors = sum((run.word_errors for run in runs[1:]), runs[0].word_errors) / len(runs)
    return dataclasses.replace(runs[0], word_errors=errors)


def same_clips(one: ClipErrors, other: ClipErrors) -> bool:
    """Whether the same clips count; not where the worst source decides, and theirs are different ones."""
    return one.words.shape == other.words.shape and bool(((one.words > 0) == (other.words > 0)).all())


def _difference(less: ClipErrors | None, more: ClipErrors | None) -> ClipErrors | None:
    """What `more` has more of errors on each clip; None where one of them is not known, or not on the same clips."""
    if less is None or more is None or not same_clips(less, more):
        return None
    return ClipErrors(more.word_errors - less.word_errors, more.words)


def _reach(clips: ClipErrors | None, *, difference: bool = False) -> tuple[float, float] | None:
    """How far the clips' 95 % interval goes below and above their rate, in points; None for fewer than five clips.

    With `difference` the errors are one model's more than another's.
    """
    if clips is None:
        return None
    if difference:
        found = difference_interval(clips.word_errors, clips.words)
    else:
        found = rate_interval(clips.word_errors, clips.words, clips.worst_of)
    return None if found is None else (clips.rate - found[0], found[1] - clips.rate)


def _widest(runs: Sequence[ClipErrors]) -> tuple[float, float] | None:
    """The farthest that a run's own interval goes below and above: of runs whose worst sources are different ones."""
    known = [reach for run in runs if (reach := _reach(run)) is not None]
    return (max(below for below, _ in known), max(above for _, above in known)) if known else None


def _with_seeds(rate: float, reach: tuple[float, float] | None, noise: Noise, share: float) -> Interval:
    """A 95 % interval of both clips and seeds: their variances add, and its quantile is the mean of the normal and of
    Student's, each weighted with its variance (Cochran and Cox, Experimental Designs, 1950). Each side for itself, as
    that of the clips goes farther up than down.

    Args:
        rate: in percent, or a difference in points.
        reach: of the clips; None for the seeds alone.
        noise: between seeds.
        share: of one training's variance that the rate has: 1 / n for a mean of n.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    sd, freedom = noise
    student, seeds = float(stdtrit(freedom, 0.975)), sd**2 * share

    def side(of_clips: float) -> float:
        clips = (of_clips / _NORMAL) ** 2
        return (clips * _NORMAL + seeds * student) / math.sqrt(clips + seeds) if clips + seeds else 0.0

    below, above = reach or (0.0, 0.0)
    return rate - side(below), rate + side(above)
