"""What is known of an experiment, ended or not, and what follows: the winner, stopped trials at their ends, noise."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from trainer.files import is_locked
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.intervals import Interval
from trainer.scoring.objectives import objective_value
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.experiment import LOCK_FILE, Experiment, no_log
from tune.experiments.results import baseline_clips, clips_of, how_it_ended
from tune.report.extrapolation import LEAST_WER, final_wers
from tune.report.scales import Scale, scale_of
from tune.search.finalists import (
    Noise,
    Repeat,
    describe_mean,
    gain_interval,
    objective_interval,
    seed_noise,
    settings_difference,
)
from tune.search.records import Trial, trial_of
from tune.search.searcher import EarlierTrial, optuna_trial
from tune.util.console import short_source
from tune.util.errors import error_line

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.space.parameters import Parameter

Stage = Literal["finished", "failed", "running", "interrupted", "unfinished"]
"""`failed`: it ended without a result, or because trials failed.
`unfinished`: it has not ended, and nobody here can see whether a process still runs it."""
LEAST_TRIALS = 12
"""Comparable trials below which the importance of settings is not computed."""


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
        return describe_mean(self.seeds, self.interval)


@dataclasses.dataclass(kw_only=True)
class Analysis(Experiment):
    """A search, or a single training, with what follows from it; error rates in percent, times in seconds.

    Of files it reads the errors and texts of clips that were kept with a few checkpoints.
    """

    stage: Stage
    storage_option: str
    """What commands that name the experiment end with: where it is, nothing for the default."""
    audio: bool = True
    """Whether the page is to hold the sound of a few clips."""

    @property
    def trials(self) -> Sequence[Trial]:
        return self.state.records.all()

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end, with a result or without."""
        return self.stage in ("finished", "failed")

    @property
    def budget(self) -> int:
        """Samples seen by a trial that is not stopped; the longest one where `max_steps` is the budget."""
        return self.settings.rungs[-1]

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch; 0 where nothing is known of the data."""
        return self.state.data.epoch_samples or float(self.settings.data.clips.get("train", 0))

    @property
    def trial_base_value(self) -> float:
        """WER of the base model, in the window in which the trials were measured."""
        return objective_value(self.state.trial_base_rates)

    @property
    def model(self) -> str:
        """The base model as people know it: a folder by its name."""
        return short_source(self.settings.base.model)

    @property
    def data(self) -> str:
        return short_source(self.settings.base.data)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return self.space.parameters if self.space else {}

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        return {name: scale_of(name, parameter) for name, parameter in self.parameters.items()}

    @property
    def winning_trial(self) -> Trial | None:
        """The trial whose settings won: the finalists' verdict, else those of the run to export."""
        winner = self.state.winner
        return self.state.records.best() if winner is None else self.state.records[winner]

    @property
    def recipe(self) -> dict[str, Any]:
        """The usual settings of the model's size, moved into the space where they lay outside."""
        return {} if self.space is None else self.space.try_first[0]

    @functools.cached_property
    def recipe_trial(self) -> Trial | None:
        """The trial that had them, one of the first of every search; None before it began."""
        space, recipe = self.space, self.recipe
        points = ((trial, space.point_of(trial.config, self.shared)) for trial in self.trials if space)
        return next((trial for trial, point in points if point == recipe), None)

    @functools.cached_property
    def _points(self) -> dict[str, dict[str, Any]]:
        """By trial, the settings of those that tell something of them.

        Failed trials, and those that reached no rung, are left out: their settings may have nothing to do with it;
        so are those of an earlier space that lie outside.
        """
        assert self.space is not None  # a training has none, and nothing to compare
        points = {
            trial.trial_id: self.space.point_of(trial.config, self.shared)
            for trial in self.trials
            if trial.status == "diverged" or (trial.evaluations and trial.status != "failed")
        }
        return {name: point for name, point in points.items() if point is not None}

    @functools.cached_property
    def expected(self) -> dict[str, float]:
        """By trial, its WER at the full budget, extrapolated where it was stopped before."""
        return final_wers(
            [trial for trial in self.trials if trial.trial_id in self._points], self.state.budget_of
        )

    @functools.cached_property
    def importances(self) -> dict[str, float]:
        """The share, from 0 to 1, of the differences between trials that each setting explains, the largest first.

        Of the settings that all trials have; empty where too few trials tell. By Optuna's mean decrease impurity: in
        40 searches on made-up curves, whose truth is known, it named the most important setting in 39, and fANOVA in
        all at four times the time; PED-ANOVA in 18.
        """
        if len(self.expected) < LEAST_TRIALS or len(set(self.expected.values())) < 3:
            return {}
        import optuna
        from optuna.importance import MeanDecreaseImpurityImportanceEvaluator, get_param_importances

        assert self.space is not None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study()
        for name, wer in self.expected.items():
            one = EarlierTrial(self._points[name], [], math.log(max(wer, LEAST_WER)))
            study.add_trial(optuna_trial(one, self.space))
        evaluator = MeanDecreaseImpurityImportanceEvaluator(n_trees=64, seed=0)
        found = get_param_importances(study, evaluator=evaluator)
        return found if len(found) > 1 else {}

    @functools.cached_property
    def winner(self) -> Winner | None:
        """The settings to take away; None where nothing was measured."""
        verdict, runs = self.state.verdict, self.winning_runs
        unfinished = any(run.status != "completed" for run in runs)
        if verdict is not None:
            won = verdict.score
            return Winner(won.trial_id, won.mean, len(won.values), won.mean_interval, unfinished)
        if not runs or runs[0].best_value is None:
            return None
        clips = self.clips(runs)
        interval = objective_interval(clips, self.seeds) if clips else None
        return Winner(trial_of(runs[0].trial_id), runs[0].best_value, 1, interval, unfinished)

    def clips(self, runs: Sequence[Trial]) -> list[ClipErrors]:
        """The errors by clip of the runs' best checkpoints; none where those of any are gone, or cannot be read."""
        files = CheckpointFiles(self.folder)
        found = [clips for run in runs if (clips := clips_of(files, run.checkpoint)) is not None]
        return found if len(found) == len(runs) else []

    @functools.cached_property
    def seeds(self) -> Noise:
        """The noise between seeds: what the finalists show of it, else the usual one."""
        return seed_noise(self.state.verdict.scores if self.state.verdict else ())

    @property
    def pair_noise(self) -> float:
        """By how much two trainings with the same settings differ at most, in 95 of 100 pairs, in points."""
        return 1.96 * 2**0.5 * self.seeds[0]

    @property
    def winning_runs(self) -> list[Trial]:
        """The trainings that the winner's WER is the mean of."""
        if self.state.verdict is not None:
            return [self.state.repeats[run] for run in self.state.verdict.score.runs]
        best = self.state.best() or self.state.records.best()
        return [best] if best is not None else []

    @functools.cached_property
    def gain(self) -> tuple[float, float] | None:
        """95 % interval of the base model's WER minus the winner's.

        None where clips are not known, or the base model's are of another window than the winner's.
        """
        same = self.state.comparable_base == objective_value(self.state.base_rates)
        base, clips = baseline_clips(self.folder.path) if same else None, self.clips(self.winning_runs)
        return None if base is None or not clips else gain_interval(clips, base, self.seeds)

    @property
    def gain_text(self) -> str:
        """How much better than the base model the result is and how sure that is, for screen and page; empty where
        nothing was measured, or it is no better.
        """
        value, base = self.state.value, self.state.comparable_base
        if value is None or value >= base:
            return ""
        text = f"{base - value:.2f} points: {100 * (base - value) / base:.0f} % fewer errors"
        if self.gain is None:
            sure = base - value > self.pair_noise
            return (
                text
                if sure
                else f"{text}; within noise: two seeds can differ by {self.pair_noise:.1f} points"
            )
        low, high = self.gain
        if low > 0:
            return f"{text}, 95 % interval {low:.2f} to {high:.2f} points"
        return f"{text}; within noise: its 95 % interval, {low:.2f} to {high:.2f} points, includes zero"

    @functools.cached_property
    def search_text(self) -> str:
        """What of the gain is the search's own, for screen and page: a training with the usual settings has the rest.

        Empty without a gain, and without a verdict: the lowest WER of several trials is partly luck.
        """
        verdict, usual = self.state.verdict, self.recipe_trial
        if verdict is None or usual is None or not self.gain_text:
            return ""
        name = f"the usual settings (trial {usual.trial_id})"
        if verdict.winner == usual.trial_id:
            if verdict.passed_over is not None:
                return f"{name} won, because {verdict.passed_over} loses more on the guards"
            return f"{name} won; no other settings are shown to be better"
        repeats = [run for run in self.state.repeats_of(usual.trial_id) if run.status == "completed"]
        if not repeats and usual.status != "completed":
            return f"not known, because the training with {name} did not come to its end"
        own, winners = self._repeats(repeats or [usual]), self._repeats(self.winning_runs)
        base = objective_value(self.state.base_rates_for((repeats or [usual])[0]))
        where = ", measured like the trials" if self.state.baseline.trial_rates and not repeats else ""
        low, high = settings_difference(winners, own, self.seeds)
        # What another window, or fewer clips, make besides, the base model alone shows.
        apart = abs(objective_value(self.state.base_rates) - base)
        low, high = low - apart, high + apart
        mean = statistics.fmean(run.value for run in own)
        points = mean - statistics.fmean(run.value for run in winners)
        if points < 0:
            low, high = -high, -low
        trainings = "one training" if len(own) == 1 else f"{len(own)} trainings"
        interval = f"95 % interval {low:.2f} to {high:.2f} points"
        return (
            f"{abs(points):.2f} points {'less' if points < 0 else 'more'} than {trainings} with {name}, which "
            f"{'gained' if base >= mean else 'lost'} {abs(base - mean):.2f}{where}; "
            f"{interval if low > 0 else f'within noise: {interval}'}"
        )

    def _repeats(self, runs: Sequence[Trial]) -> list[Repeat]:
        files = CheckpointFiles(self.folder)
        return [
            Repeat(run.trial_id, run.best_value, run.seconds, clips_of(files, run.checkpoint))
            for run in runs
            if run.best_value is not None
        ]

    @property
    def who(self) -> str:
        """What to call the winner: before the end it is only the best so far."""
        return "winner" if self.has_ended else "best trial"

    @functools.cached_property
    def ranked(self) -> list[Trial]:
        """Trials that did not diverge, from the lowest `expected` WER on."""
        shown = [t for t in self.trials if t.trial_id in self.expected and t.status != "diverged"]
        return sorted(shown, key=lambda trial: self.expected[trial.trial_id])

    @property
    def all_diverged(self) -> list[Trial]:
        """Trials that diverged, where all did that came to an evaluation; empty where one did not."""
        judged = [trial for trial in self.trials if trial.evaluations or trial.status == "diverged"]
        return judged if all(trial.status == "diverged" for trial in judged) else []

    @property
    def all_diverged_words(self) -> str:
        """`All 3 trials diverged`: where a report begins to say so."""
        count = len(self.all_diverged)
        return f"All {count} trials diverged" if count > 1 else "The only trial that was measured diverged"


def short_error(error: str | None) -> str:
    """The line of an error that says what it was."""
    text = error_line(error).strip() if error else "no reason is known"
    return text if len(text) <= 200 else f"{text[:199]}…"


def analyse(
    folder: ExperimentFolder, storage_option: str = "", *, ended: bool = False, audio: bool = True
) -> Analysis:
    """Read what an experiment has left so far; its small files are on this machine.

    Args:
        ended: it is the calling process that ran it, and it runs no more.
        audio: as in `Analysis`.

    Raises:
        ExperimentError: one of its files is missing or cannot be read.
    """
    saved = Experiment.read(folder)
    if saved.state.prepared is None:
        raise no_log(folder)
    stage = _find_stage(saved, ended=ended)
    if stage not in ("running", "unfinished"):
        for run in saved.state.runs:
            _close(run, saved.state.last_event_time)
    return Analysis(folder=folder, state=saved.state, stage=stage, storage_option=storage_option, audio=audio)


def _find_stage(saved: Experiment, *, ended: bool) -> Stage:
    outcome = how_it_ended(saved.state)
    if outcome is not None:
        return outcome
    if ended:
        return "interrupted"
    running = None if saved.folder.remote else is_locked(saved.folder.path / LOCK_FILE)
    if running is None and saved.state.ended is None:
        return "unfinished"
    return "running" if running else "interrupted"


def _close(run: Trial, now: float) -> None:
    """Name the end of a run that nobody goes on with: what was decided of it, else that it was broken off."""
    if run.status == "running":
        run.pause(now)
        run.status = "interrupted" if run.outcome == "running" else run.outcome
