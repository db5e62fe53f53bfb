"""What a search or a single training was asked to be, on the command line or from Python; the log keeps it."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from trainer.errors import ConfigError
from tune.cluster.resources import ResourceRequest
from tune.search.budgets import Budgets
from tune.search.finalists import DEFAULT_COUNT, DEFAULT_REPEATS, LEAST_TRIALS
from tune.search.guards import Guard
from tune.util.errors import check_least

TRIAL = "001"
"""A training is the only trial of its experiment."""
Kind = Literal["search", "training"]


def resume_command(name: str, kind: Kind, option: str = "") -> str:
    """The command that goes on with an experiment; `option` is that of its storage."""
    word = "train" if kind == "training" else "search"
    return f"tune-whisper {word} --resume {shlex.quote(name)}{option}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options by their names on the command line, with their defaults, unchecked.

    A training is a search of one trial: nothing is searched, and its settings are those of the trial.
    """

    kind: Kind = "search"
    space: str = ""
    """A packaged name or a file; empty for a training."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`TrainConfig` fields; they go before the space file's fixed values."""
    trials: int = 8
    finalists: int | None = None
    """Best trials that are trained again with other seeds; None is the default for the number of trials."""
    repeats: int = DEFAULT_REPEATS
    """Seeds of each finalist."""
    seed: int = 0
    budgets: Budgets = dataclasses.field(default_factory=Budgets)
    """What ends the search before all its trials."""
    guard: list[Guard] = dataclasses.field(default_factory=list)
    """Data that is not trained on, on which what a search exports may not lose much."""
    warm_start: list[str] = dataclasses.field(default_factory=list)
    """Finished experiments of the same storage to learn from."""
    keep_checkpoints: str = "best"
    """Whose weights stay when the search has ended: `best` or `all`."""
    gpus_per_trial: float | None = None
    """Of all workers of a trial together; None is one for each worker where there are any."""
    cpus_per_trial: float | None = None
    max_concurrent: int | None = None
    workers_per_trial: int = 1
    max_failures: int = 2
    """Times that a training is tried again, from its last checkpoint."""
    save_every: float | None = None
    """Minutes after which a training that has not saved saves where it is; None: at evaluations only."""
    track: list[str] = dataclasses.field(default_factory=lambda: ["mlflow"])
    """Where results are shown, beside the Optuna study of a search."""
    tracking_uri: str | None = None
    """The MLflow store; None is a database in the experiment's folder."""
    notify: str | None = None
    """Where news is posted. As the address is a secret, no log has it, and `--resume` needs it again."""

    def changed(self, given: Mapping[str, Any]) -> SearchOptions:
        """The same with what is given: fields by their names, in `budgets` a mapping of its fields.

        GPUs and CPUs can be given of each worker, too.
        """
        fields = dict(given)
        fields["budgets"] = dataclasses.replace(self.budgets, **fields.get("budgets", {}))
        workers = fields.get("workers_per_trial", self.workers_per_trial)
        for kind in ("gpus", "cpus"):
            if (each := fields.pop(f"{kind}_per_worker", None)) is not None:
                fields[f"{kind}_per_trial"] = each * workers
        return dataclasses.replace(self, **fields)

    @property
    def n_finalists(self) -> int:
        if self.finalists is None:
            return DEFAULT_COUNT if self.trials >= LEAST_TRIALS else 0
        return self.finalists

    @property
    def averages(self) -> bool:
        return self.n_finalists > 0 and self.repeats > 1

    @property
    def measured_after(self) -> int:
        """How many models are measured at most once all repeats have ended, each guard counted by itself."""
        on_each_guard = 1 + max(self.n_finalists, DEFAULT_COUNT) + self.averages  # the base model among them
        return self.averages + len(self.guard) * on_each_guard

    @property
    def resources(self) -> ResourceRequest:
        return ResourceRequest(
            gpus=self.gpus_per_trial,
            cpus=self.cpus_per_trial,
            workers=self.workers_per_trial,
            trials=self.trials,
            max_concurrent=self.max_concurrent,
            per_worker=self.kind == "training",
        )

    def check(self, *, resumed: bool = False) -> None:
        """Check the numbers.

        Args:
            resumed: whether it goes on with an experiment, whose number of workers is settled.

        Raises:
            ConfigError: one of them is out of range.
        """
        check_least(self, trials=1, workers_per_trial=1, max_failures=0, max_concurrent=1, finalists=0)
        self.resources.check(resumed=resumed)
        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats}: must be at least 1; --finalists 0 repeats nothing")
        budgets = self.budgets
        numbers = {"--gpu-hours": budgets.gpu_hours, "--plateau": budgets.plateau_trials}
        numbers |= {"--target-wer": budgets.target_wer}
        for option, number in {**numbers, "--save-every": self.save_every}.items():
            if number is not None and not (0 < number < math.inf):
                raise ConfigError(f"{option} {number:g}: must be above 0")
        if self.notify is not None and not self.notify.startswith(("https://", "http://")):
            raise ConfigError("--notify: must be an address that begins with https:// or http://")
        if not 0 <= budgets.plateau_points < 100:
            raise ConfigError(f"--plateau-points {budgets.plateau_points:g}: must be from 0 to below 100")
