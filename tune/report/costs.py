"""What an experiment cost, by outcome, and what early stopping saved."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tune.experiments.results import more_of
from tune.report.analysis import Analysis
from tune.search.more_trials import MORE
from tune.search.records import OUTCOMES, Trial

FINALISTS, AVERAGES = "repeats of finalists", "mean of repeats"


@dataclasses.dataclass(frozen=True)
class Share:
    """All runs with one outcome."""

    name: str
    runs: int
    hours: float
    """Of all devices of the runs together."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """What trials and repeats held, in GPU-hours, or in CPU-hours where no trial held a GPU."""

    device: str
    """`GPU` or `CPU`."""
    each: float
    """Devices that a run holds."""
    shares: list[Share]
    full: float | None
    """Hours of all trials had none been stopped early; None where no trial showed what its whole budget takes."""

    @property
    def trials(self) -> float:
        """Hours of the trials, without the finalists' repeats and their averages."""
        return sum(share.hours for share in self.shares if share.name not in (FINALISTS, AVERAGES))

    @property
    def total(self) -> float:
        return sum(share.hours for share in self.shares)

    @property
    def saved(self) -> float:
        return max(0.0, self.full - self.trials) if self.full is not None else 0.0

    @property
    def unit(self) -> str:
        return f"{self.device}-hours"

    def tell(self, hours: float) -> str:
        """`3.4 GPU-hours`."""
        return f"{hours:.{0 if hours >= 100 else 1 if hours >= 2 else 2}f} {self.unit}"


def find_costs(analysis: Analysis) -> Costs:
    resources, trials = analysis.settings.resources, analysis.trials
    each = resources.gpus or resources.cpus
    groups: dict[str, Sequence[Trial]] = {
        name: [trial for trial in trials if trial.status == outcome] for outcome, name in OUTCOMES.items()
    }
    groups |= {FINALISTS: analysis.state.repeats.all(), AVERAGES: analysis.state.averages.all()}
    shares = [
        Share(name, len(runs), each * sum(run.elapsed for run in runs) / 3600)
        for name, runs in groups.items()
        if runs
    ]
    seconds = _whole_seconds(analysis)
    full = None if seconds is None else each * seconds / 3600
    return Costs("GPU" if resources.gpus else "CPU", each, shares, full)


def more_text(analysis: Analysis) -> str:
    """What more trials would gain and cost, for screen and page; empty where that is not known."""
    more = more_of(analysis)
    if more is None:
        return ""
    costs = find_costs(analysis)
    gain = f"WER about {more.gain:.1f} points lower (90 % interval 0 to {more.upper_end:.1f})"
    return f"{MORE} more trials: {gain}, for {costs.tell(costs.each * more.seconds / 3600)}"


def _whole_seconds(analysis: Analysis) -> float | None:
    """What the trials would have taken, had those that were stopped early gone to the end.

    A sample of each would then have taken the median of what it took in completed trials with its micro-batch, or in
    all that completed.
    """
    paces: dict[Any, list[float]] = {}
    for run in analysis.trials:  # repeats are measured on more clips, in longer windows
        if run.status == "completed":
            pace = run.seconds / analysis.state.budget_of(run)
            paces.setdefault(run.config.get("train_batch_size"), []).append(pace)
    if not paces:
        return None
    every, seconds = [pace for some in paces.values() for pace in some], 0.0
    for trial in analysis.trials:
        like = paces.get(trial.config.get("train_batch_size"), every)
        whole = statistics.median(like) * analysis.state.budget_of(trial)
        seconds += max(whole, trial.seconds) if trial.status == "early_stopped" else trial.elapsed
    return seconds
