"""What is known about an experiment, whether it has ended, still runs or was broken off."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal

from tune.experiments.folder import RESULTS_FILE
from tune.experiments.saved import saved_space
from tune.report.scales import Scale, scale_of
from tune.search.finalists import choose_finalists
from tune.search.records import Records, TrialRecord, trial_of

if TYPE_CHECKING:
    from tune.experiments.events import HeldOutMeasured
    from tune.experiments.folder import ExperimentFolder
    from tune.search.finalists import Verdict
    from tune.space.space import Parameter, SearchSpace

ExperimentState = Literal["finished", "failed", "running", "interrupted", "unfinished"]
"""`failed`: it ended without a result, or because trials failed.
`unfinished`: it has not ended, and nobody here can see whether a process still runs it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A search, or a single training; error rates in percent, times in seconds."""

    name: str
    folder: ExperimentFolder
    settings: dict[str, Any]
    """`experiment.yaml`."""
    trials: list[TrialRecord]
    repeats: list[TrialRecord]
    """Finalists trained again with other seeds."""
    state: ExperimentState
    heard: float | None
    """When something of it was last written down, in seconds since the epoch."""
    seconds: float
    """Wall time over all its sessions."""
    end: str | None
    """What ended it before all its trials."""
    verdict: Verdict | None
    """Which finalist won."""
    dropped: list[dict[str, str]]
    """Clips that could not be used: split, name, reason, detail."""
    storage_option: str
    """What commands that name the experiment end with: where it is, nothing for the default."""
    held_out: HeldOutMeasured | None = None
    """The model to be exported on the test split, where it was measured."""
    has_log: bool = True
    """Whether this version can go on with it; an earlier one kept no log."""

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end, with a result or without."""
        return self.state in ("finished", "failed")

    @property
    def is_training(self) -> bool:
        """Whether it is a single training of `tune-whisper train`."""
        return self.settings.get("kind") == "training"

    @property
    def asked_trials(self) -> int:
        """How many trials there were to be."""
        return int(self.settings["trials"])

    @property
    def rungs(self) -> list[int]:
        """Samples seen at which trials were measured; the last one is the full budget."""
        return [int(rung) for rung in self.settings["rungs"]]

    @property
    def early_clips(self) -> int:
        """Validation clips measured before half of the budget; 0 is all."""
        return int(self.settings["train_config"].get("early_eval_clips") or 0)

    @property
    def budget(self) -> int:
        """Samples seen by a trial that is not stopped; the longest one where `max_steps` is the budget."""
        return self.rungs[-1]

    def budget_of(self, trial: TrialRecord) -> int:
        """Samples of a trial's own full budget."""
        steps = self.settings["train_config"].get("max_steps")
        return int(steps) * trial.effective_batch if steps and trial.effective_batch else self.budget

    @property
    def baseline(self) -> float:
        """WER of the untouched base model."""
        return float(self.settings["baseline"]["wer"])

    @property
    def model(self) -> str:
        """The base model as people know it: a folder by its name."""
        return short_source(str(self.settings["train_config"]["model"]))

    @functools.cached_property
    def space(self) -> SearchSpace | None:
        """What was searched, its bounds as numbers; None for a training."""
        return None if self.is_training else saved_space(self.settings["space"], self.folder.path)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The searched settings."""
        return self.space.parameters if self.space else {}

    @functools.cached_property
    def scales(self) -> dict[str, Scale]:
        """The searched settings as axes."""
        return {name: scale_of(name, parameter) for name, parameter in self.parameters.items()}

    @functools.cached_property
    def records(self) -> Records:
        """The trials as the search itself keeps them."""
        found = Records()
        for trial in self.trials:
            found.add(trial)
        return found

    @property
    def best_trial(self) -> TrialRecord | None:
        """The trial with the lowest WER at any of its evaluations."""
        return self.records.best()

    @property
    def winner(self) -> TrialRecord | None:
        """The trial whose settings won: the finalists' verdict, else the lowest WER."""
        return self.records[self.verdict.winner] if self.verdict else self.best_trial

    @functools.cached_property
    def recipe(self) -> dict[str, Any]:
        """The usual settings of the model's size, moved into the space where they lay outside."""
        if self.space is None:
            return {}
        # Where the learning rate is searched, the settings that all trials share hold the model's default.
        default = float(self.settings["train_config"]["learning_rate"])
        return dataclasses.replace(self.space, try_first=[]).with_recipe(default).try_first[0]

    @property
    def recipe_trial(self) -> TrialRecord | None:
        """The trial that had them, one of the first of every search; None before it began."""
        return next((trial for trial in self.trials if trial.config == self.recipe), None)

    @property
    def has_results(self) -> bool:
        """Whether a session of it has come to its end, so that export and `train --from` find what they need."""
        return (self.folder.path / RESULTS_FILE).is_file() or self.best_trial is not None

    @property
    def finalists(self) -> list[str]:
        """Trials that were trained again, or are now."""
        count = int(self.settings.get("finalists") or 0)
        if not self.repeats:
            return []
        named = list(dict.fromkeys(trial_of(run.trial_id) for run in self.repeats))
        order = [trial.trial_id for trial in choose_finalists(self.records, count)]
        return sorted(named, key=lambda name: order.index(name) if name in order else len(order))


def short_source(source: str) -> str:
    """A model or data set as people know it: a folder or file by its name, all else as it is."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith("/") else source
