"""Model soups: which runs of the final round are averaged, and whether an average is better than the best of them.

And the points between the base model and a run at which models are measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from trainer.scoring.intervals import Interval, difference_interval
from tune.search.finalists import ClipErrors, same_clips
from tune.search.records import listed

POINTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of a run in its mean with the base model (WiSE-FT, Wortsman et al. 2022, arXiv:2109.01903)."""
INNER_POINTS = POINTS[1:-1]
"""Those that are neither of the two: they are measured on guards too."""


@dataclasses.dataclass(frozen=True)
class Soup:
    """How far greedy averaging has come."""

    members: tuple[str, ...]
    """Runs in the best average so far; one run where no average is as good as it."""
    wer: float
    """Of that average, or run, in percent."""
    next: tuple[str, ...] | None
    """Runs whose average is to be measured next; None where all is known."""
    left: int
    """Averages that are to be measured at most, `next` among them."""


def greedy_soup(runs: Mapping[str, float], averages: Mapping[frozenset[str], float | None]) -> Soup:
    """Greedy model soup: each run in turn is added where the average is then no worse.

    By Wortsman et al. 2022, arXiv:2203.05482, recipe 1, but for the order: the winner's runs come before those of other
    settings.

    Args:
        runs: WER of each run in percent, in the order in which they are added.
        averages: WER of each average that was measured, by its runs; None where it could not be.
    """
    (first, best), *others = runs.items()
    members: tuple[str, ...] = (first,)
    for place, (run, _) in enumerate(others):
        wanted = (*members, run)
        if frozenset(wanted) not in averages:
            return Soup(members, best, wanted, len(others) - place)
        wer = averages[frozenset(wanted)]
        if wer is not None and wer <= best:
            members, best = wanted, wer
    return Soup(members, best, None, 0)


@dataclasses.dataclass(frozen=True)
class SoupVerdict:
    """The best average beside the run that would be exported without it; WER in percent."""

    average: str
    members: list[str]
    wer: float
    run: str
    run_wer: float
    gain: float
    """WER of the run minus that of the average, in points."""
    interval: Interval | None
    """95 % interval of that gain over the same clips; None where the clips' errors are not known, or too few."""
    better: bool
    """Whether the interval lies above zero."""

    def describe(self) -> str:
        """In words that follow its members: `has 0.31 points less WER than 005-r1 (95 % interval 0.10 to 0.52)`."""
        amount = f"{abs(self.gain):.2f} points {'less' if self.gain >= 0 else 'more'} WER than {self.run}"
        if self.interval is None:
            return f"has {amount}; how sure that is cannot be told, so that run is exported"
        interval = f"95 % interval of the gain {self.interval[0]:.2f} to {self.interval[1]:.2f}"
        ending = "" if self.better else ", which noise may be: that run is exported"
        return f"has {amount} ({interval}){ending}"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model that could be exported."""

    name: str
    wer: float
    """In percent."""
    clips: ClipErrors | None
    """None where they are not known."""


def judge_soup(average: Candidate, members: Sequence[str], run: Candidate) -> SoupVerdict:
    """Whether an average is better than a run, by the paired test of finalists over the same clips.

    Both are models as they are, neither stands for settings, so that seeds are no source of noise here. That both were
    chosen on these clips is none that an interval could show.
    """
    interval = None
    if average.clips and run.clips and same_clips(average.clips, run.clips):
        more = run.clips.word_errors - average.clips.word_errors
        interval = difference_interval(more, run.clips.words)
    return SoupVerdict(
        average=average.name,
        members=list(members),
        wer=average.wer,
        run=run.name,
        run_wer=run.wer,
        gain=run.wer - average.wer,
        interval=interval,
        better=interval is not None and interval[0] > 0.0,
    )


def describe_soup(verdict: SoupVerdict | None, text: str) -> str:
    """What averaging came to, in one line; `text` is why there is no verdict, or what ended the averaging."""
    if verdict is None:
        return f"no average is exported: {text}"
    ended = f"; averaging ended because {text}" if text else ""
    return f"{verdict.average}, the average of {listed(verdict.members)}, {verdict.describe()}{ended}"
