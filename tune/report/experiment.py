"""What is known about an experiment, whether it has ended, still runs or was broken off."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from trainer.files import is_locked
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.objectives import objective_value
from tune.experiments.experiment import LOCK_FILE, no_log
from tune.experiments.experiment import Experiment as SavedExperiment
from tune.experiments.results import baseline_clips, how_it_ended
from tune.report.scales import Scale, scale_of
from tune.search.finalists import Verdict
from tune.search.records import TrialRecord
from tune.util.console import short_source

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.space.parameters import Parameter

Stage = Literal["finished", "failed", "running", "interrupted", "unfinished"]
"""`failed`: it ended without a result, or because trials failed.
`unfinished`: it has not ended, and nobody here can see whether a process still runs it."""


@dataclasses.dataclass(kw_only=True)
class Experiment(SavedExperiment):
    """A search, or a single training; error rates in percent, times in seconds."""

    stage: Stage
    storage_option: str
    """What commands that name the experiment end with: where it is, nothing for the default."""

    @property
    def trials(self) -> list[TrialRecord]:
        """All of them, in their order."""
        return list(self.state.records.all())

    @property
    def repeats(self) -> list[TrialRecord]:
        """Finalists trained again with other seeds."""
        return list(self.state.repeats.all())

    @property
    def averages(self) -> list[TrialRecord]:
        """Means of the weights of repeats."""
        return list(self.state.averages.all())

    @functools.cached_property
    def verdict(self) -> Verdict | None:
        """Which finalist won."""
        return self.state.verdict

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end, with a result or without."""
        return self.stage in ("finished", "failed")

    @property
    def train_config(self) -> dict[str, Any]:
        """The settings that all trials share, also where another version wrote some that this one does not know."""
        return self.settings.train_config

    @property
    def budget(self) -> int:
        """Samples seen by a trial that is not stopped; the longest one where `max_steps` is the budget."""
        return self.settings.rungs[-1]

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch; 0 where nothing is known of the data."""
        return self.state.data.epoch_samples or float(self.settings.data.clips.get("train", 0))

    def budget_of(self, trial: TrialRecord) -> int:
        """Samples of a trial's own full budget."""
        steps = self.train_config.get("max_steps")
        return int(steps) * trial.effective_batch if steps and trial.effective_batch else self.budget

    @property
    def base_value(self) -> float:
        """WER of the untouched base model, in the window in which the winner was measured."""
        return self.state.comparable_base

    @property
    def trial_base_value(self) -> float:
        """The same in the window in which the trials were."""
        return objective_value(self.state.trial_base_rates)

    @property
    def baseline_clips(self) -> ClipErrors | None:
        """Its errors by clip; None where they are not known, or are of another window than the winner's."""
        if self.base_value != objective_value(self.state.base_rates):
            return None
        return baseline_clips(self.folder.path)

    @property
    def model(self) -> str:
        """The base model as people know it: a folder by its name."""
        return short_source(str(self.train_config["model"]))

    @property
    def data(self) -> str:
        """The data as people know it."""
        return short_source(str(self.train_config["data"]))

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The searched settings."""
        return self.space.parameters if self.space else {}

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """The searched settings as axes."""
        return {name: scale_of(name, parameter) for name, parameter in self.parameters.items()}

    @property
    def best_trial(self) -> TrialRecord | None:
        """The trial with the lowest WER at any of its evaluations."""
        return self.state.records.best()

    @property
    def winner(self) -> TrialRecord | None:
        """The trial whose settings won: the finalists' verdict, else the lowest WER."""
        chosen = self.verdict or self.state.guards_judged
        return self.state.records[str(self.state.winner)] if chosen else self.best_trial

    @property
    def recipe(self) -> dict[str, Any]:
        """The usual settings of the model's size, moved into the space where they lay outside."""
        if self.space is None:
            return {}
        # Those of each method are the last points to try first.
        points, method = self.space.try_first, self.space.methods[0]
        return next(point for point in reversed(points) if point.get("method", method) == method)

    @property
    def recipe_trial(self) -> TrialRecord | None:
        """The trial that had them, one of the first of every search; None before it began."""
        return next((trial for trial in self.trials if trial.config == self.recipe), None)

    def runs(self, names: Sequence[str]) -> list[TrialRecord]:
        """The repeats of these names."""
        return [run for run in self.repeats if run.trial_id in names]


def last_line(error: str | None) -> str:
    """The line of an error that says what it was."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    text = lines[-1] if lines else "no reason was told"
    return text if len(text) <= 200 else f"{text[:199]}…"


def load_experiment(folder: ExperimentFolder, storage_option: str = "", *, ended: bool = False) -> Experiment:
    """Read what an experiment has left so far; its small files are on this machine.

    Args:
        folder: of the experiment.
        storage_option: see `Experiment`.
        ended: it is the calling process that ran it, and it runs no more.

    Raises:
        ExperimentError: one of its files is missing or cannot be read.
    """
    saved = SavedExperiment.read(folder)
    if saved.state.prepared is None:
        raise no_log(folder)
    stage = _find_stage(saved, ended=ended)
    if stage not in ("running", "unfinished"):
        for run in saved.state.runs:
            _close(run)
    return Experiment(folder=folder, state=saved.state, stage=stage, storage_option=storage_option)


def _find_stage(saved: SavedExperiment, *, ended: bool) -> Stage:
    outcome = how_it_ended(saved.state)
    if outcome is not None:
        return outcome
    if ended:
        return "interrupted"
    running = None if saved.folder.remote else is_locked(saved.folder.path / LOCK_FILE)
    if running is None and saved.state.ended is None:
        return "unfinished"
    return "running" if running else "interrupted"


def _close(run: TrialRecord) -> None:
    """Name the end of a run that nobody goes on with: what was decided of it, else that it was broken off."""
    if run.status == "running":
        run.pause(time.time())
        run.status = "interrupted" if run.outcome == "running" else run.outcome
