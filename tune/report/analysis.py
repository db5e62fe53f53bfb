"""What a report says in numbers: the winner, stopped trials at their ends, what mattered, noise."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.scoring.alignment import ClipErrors
from trainer.scoring.intervals import Interval
from trainer.training.checkpoints import UTTERANCES_FILE
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.results import parse_clips
from tune.report.costs import Costs, find_costs
from tune.report.experiment import Experiment
from tune.search.finalists import Noise, describe_mean, gain_interval, objective_interval, seed_noise
from tune.search.records import TrialRecord
from tune.search.samplers import projected
from tune.search.searcher import EarlierTrial, optuna_trial
from tune.util.cloud_errors import cloud_errors

if TYPE_CHECKING:
    import optuna

_LEAST_TRIALS = 12
"""Fewer trials that compare tell nothing of the settings' weight."""
_LEAST_WER = 0.01
"""WERs below it count as it, where ratios are taken."""


@dataclasses.dataclass(frozen=True)
class Winner:
    """The settings to take away, with what is known of the uncertainty of their objective. In percent."""

    trial_id: str
    value: float
    """The objective; the mean of several seeds where there are any."""
    seeds: int
    """Trainings that it is the mean of."""
    interval: Interval | None
    """95 %; None where the clips' own errors are not known."""
    unfinished: bool
    """Whether it was stopped before its full budget, so that it would have come further."""

    def describe(self) -> str:
        """What the WER is the mean of, and how sure it is."""
        return describe_mean(self.seeds, self.interval)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """An experiment with what follows from it, each found once, when it is asked for.

    Reads the clips' errors of a few checkpoints, and no other file.
    """

    experiment: Experiment

    @functools.cached_property
    def _study(self) -> tuple[list[TrialRecord], optuna.Study]:
        """Trials that compare, and the same with the logarithms of the WERs that they came or would have come to.

        One that was stopped early or still runs counts with its lowest WER times what others' fell by from there to
        the end of its own budget (see `tune.search.projections`; the searcher subtracts instead of multiplying: it
        needs an order, and no figures that hold beside measured ones). Diverged trials count as the worst. Failed
        ones, and those that reached no rung, are left out: their settings may have nothing to do with it.
        """
        experiment, space, told = self.experiment, self.experiment.space, []
        assert space is not None  # a training has none, and nothing to compare
        trials = [
            trial
            for trial in experiment.trials
            if trial.status == "diverged" or (trial.evaluations and trial.status != "failed")
        ]
        for trial in trials:
            points = [(seen, _log(wer)) for seen, wer in trial.evaluations]
            value, status = None, "early_stopped"
            if trial.status == "diverged":
                status, points = "diverged", []
            elif trial.status == "completed" and trial.best_value is not None:
                status, value = "completed", _log(trial.best_value)
            one = EarlierTrial(trial.config, points, value, experiment.budget_of(trial))
            told.append(optuna_trial(one, space, status))
        return trials, projected(told)

    @functools.cached_property
    def expected(self) -> dict[str, float]:
        """By trial, the WER that it has at the full budget, or would have come to."""
        trials, study = self._study
        pairs = zip(trials, study.get_trials(deepcopy=False), strict=True)
        return {
            trial.trial_id: trial.best_value
            if trial.status == "completed" and trial.best_value is not None
            else math.exp(told.value)
            for trial, told in pairs
            if told.value is not None
        }

    @functools.cached_property
    def importances(self) -> dict[str, float]:
        """The share, from 0 to 1, of the differences between trials that each setting explains, the largest first.

        Of the settings that all trials have; empty where too few trials tell. By Optuna's mean decrease impurity: in
        40 searches on made-up curves, whose truth is known, it named the most important setting in 39, and fANOVA in
        all at four times the time; PED-ANOVA in 18.
        """
        from optuna.importance import MeanDecreaseImpurityImportanceEvaluator, get_param_importances

        trials, study = self._study
        if len(trials) < _LEAST_TRIALS or len(set(self.expected.values())) < 3:
            return {}
        evaluator = MeanDecreaseImpurityImportanceEvaluator(n_trees=64, seed=0)
        found = get_param_importances(study, evaluator=evaluator)
        return found if len(found) > 1 else {}

    @functools.cached_property
    def costs(self) -> Costs:
        """What the runs held, and what early stopping saved."""
        return find_costs(self.experiment)

    @functools.cached_property
    def winner(self) -> Winner | None:
        """The settings to take away; None where nothing was measured."""
        verdict, trial = self.experiment.verdict, self.experiment.winner
        if verdict is not None:
            won, runs = verdict.standing, self.winning_runs
            unfinished = any(run.status != "completed" for run in runs)
            return Winner(won.trial_id, won.mean, len(won.values), won.mean_interval, unfinished)
        if trial is None or trial.best_value is None:
            return None
        clips = self._clips([trial])
        interval = objective_interval(clips, self.seeds) if clips else None
        return Winner(trial.trial_id, trial.best_value, 1, interval, trial.status != "completed")

    def _clips(self, runs: Sequence[TrialRecord]) -> list[ClipErrors]:
        """The errors by clip of the runs' best checkpoints; none where those of any are gone, or cannot be read."""
        files, found = CheckpointFiles(self.experiment.folder), []
        for run in runs:
            try:
                clips = parse_clips(files.read(run.checkpoint, UTTERANCES_FILE)) if run.checkpoint else None
            except cloud_errors(OSError, StorageError):
                clips = None
            if clips is None:
                return []
            found.append(clips)
        return found

    @functools.cached_property
    def seeds(self) -> Noise:
        """The noise between seeds: what the finalists show of it, else the usual one."""
        return seed_noise(self.experiment.verdict.standings if self.experiment.verdict else ())

    @property
    def pair_noise(self) -> float:
        """By how much two trainings with the same settings differ at most, in 95 of 100 pairs, in points."""
        return 1.96 * 2**0.5 * self.seeds[0]

    @property
    def winning_runs(self) -> list[TrialRecord]:
        """The trainings that the winner's WER is the mean of."""
        experiment = self.experiment
        if experiment.verdict is not None:
            return experiment.runs(experiment.verdict.standing.runs)
        return [experiment.winner] if experiment.winner is not None else []

    @functools.cached_property
    def gain(self) -> tuple[float, float] | None:
        """95 % interval of the base model's WER minus the winner's; None where clips are not known."""
        base, clips = self.experiment.baseline_clips, self._clips(self.winning_runs)
        return None if base is None or not clips else gain_interval(clips, base, self.seeds)

    @property
    def who(self) -> str:
        """What to call the winner: before the end it is only the best so far."""
        return "winner" if self.experiment.has_ended else "best trial"

    @functools.cached_property
    def ranked(self) -> list[TrialRecord]:
        """Trials that did not diverge, from the lowest WER that they came to, or would have come to."""
        shown = [t for t in self.experiment.trials if t.trial_id in self.expected and t.status != "diverged"]
        return sorted(shown, key=lambda trial: self.expected[trial.trial_id])

    @property
    def whole(self) -> list[TrialRecord]:
        """Trials that had their whole budget, from the lowest WER on."""
        return [trial for trial in self.ranked if trial.status == "completed"]

    @property
    def all_diverged(self) -> list[TrialRecord]:
        """Trials that diverged, where all did that came to an evaluation; empty where one did not."""
        judged = [
            trial for trial in self.experiment.trials if trial.evaluations or trial.status == "diverged"
        ]
        return judged if all(trial.status == "diverged" for trial in judged) else []

    @property
    def all_diverged_words(self) -> str:
        """`All 3 trials diverged`: where a report begins to say so."""
        count = len(self.all_diverged)
        return f"All {count} trials diverged" if count > 1 else "The only trial that was measured diverged"


def _log(wer: float) -> float:
    return math.log(max(wer, _LEAST_WER))
