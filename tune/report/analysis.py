"""All that a report says in numbers, found once for its pictures, its advice and its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tune.report.costs import Costs, find_costs
from tune.report.estimates import (
    Contender,
    contenders,
    noise_of,
    read_baseline_clips,
    read_clips,
)
from tune.report.importances import Importance, find_importances
from tune.report.known import Experiment
from tune.report.projections import expected_wers
from tune.search.finalists import PRIOR_FREEDOM, Noise, gain_interval
from tune.search.records import TrialRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    """An experiment with what follows from it."""

    experiment: Experiment
    expected: dict[str, float]
    """By trial, the WER at the full budget: measured, or what it would have come to; the worst where it diverged."""
    importances: list[Importance]
    """Empty where there are too few trials to tell."""
    costs: Costs
    contenders: list[Contender]
    """From the best to the base model, which is the last."""
    noise: float
    """Standard deviation between seeds, in WER points."""
    noise_measured: bool
    """Whether the finalists showed it; else it is the usual one."""
    gain: tuple[float, float] | None
    """95 % interval of the base model's WER minus the winner's; None where clips are not known."""

    @property
    def winner(self) -> Contender | None:
        """The model to take away; None where nothing was measured."""
        return next((found for found in self.contenders if found.kind == "winner"), None)

    @property
    def who(self) -> str:
        """What to call the winner: before the end it is only the best so far."""
        return "winner" if self.experiment.has_ended else "best trial"

    @property
    def recipe(self) -> TrialRecord | None:
        """The trial with the usual settings, if it was measured."""
        trial = self.experiment.recipe_trial
        return trial if trial is not None and trial.best_wer is not None else None

    @property
    def ranked(self) -> list[TrialRecord]:
        """Trials that did not diverge, from the lowest WER that they came to, or would have come to."""
        trials = [
            trial
            for trial in self.experiment.trials
            if trial.trial_id in self.expected and trial.status != "diverged"
        ]
        return sorted(trials, key=lambda trial: self.expected[trial.trial_id])

    @property
    def all_diverged(self) -> list[TrialRecord]:
        """Trials that diverged, where all did that came to an evaluation; empty where one did not."""
        judged = [
            trial for trial in self.experiment.trials if trial.evaluations or trial.status == "diverged"
        ]
        return judged if all(trial.status == "diverged" for trial in judged) else []

    @property
    def whole(self) -> list[TrialRecord]:
        """Trials that had their whole budget, from the lowest WER on."""
        return [trial for trial in self.ranked if trial.status == "completed"]

    @property
    def settings_order(self) -> list[str]:
        """The searched settings, the most important first where that is known."""
        told = [importance.name for importance in self.importances]
        return [*told, *(name for name in self.experiment.parameters if name not in told)]

    @property
    def pair_noise(self) -> float:
        """By how much two trainings with the same settings differ at most, in 95 of 100 pairs, in points."""
        return 1.96 * 2**0.5 * self.noise


def analyse(experiment: Experiment) -> Analysis:
    """Find everything; reads the clips' errors of a few checkpoints, and no other file."""
    noise, freedom = noise_of(experiment)
    expected = expected_wers(experiment)
    return Analysis(
        experiment=experiment,
        expected=expected,
        importances=find_importances(experiment, expected),
        costs=find_costs(experiment),
        contenders=contenders(experiment),
        noise=noise,
        noise_measured=freedom > PRIOR_FREEDOM,
        gain=_gain(experiment, (noise, freedom)),
    )


def _gain(experiment: Experiment, noise: Noise) -> tuple[float, float] | None:
    base = read_baseline_clips(experiment)
    runs = winning_runs(experiment)
    clips = [read_clips(experiment, run) for run in runs]
    known = [errors for errors in clips if errors is not None]
    if base is None or not known or len(known) < len(runs):
        return None
    return gain_interval(known, base, noise)


def winning_runs(experiment: Experiment) -> Sequence[TrialRecord]:
    """The trainings that the winner's WER is the mean of."""
    if experiment.verdict is None:
        return [experiment.winner] if experiment.winner is not None else []
    names = next(s.runs for s in experiment.verdict.standings if s.trial_id == experiment.verdict.winner)
    return [run for run in experiment.repeats if run.trial_id in names]
