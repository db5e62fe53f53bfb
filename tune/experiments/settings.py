"""`experiment.yaml`: everything that was resolved before the first trial, written once; what happens is in the log."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any, Literal

import yaml

from trainer.config import TrainConfig
from tune.cluster.resources import TrialResources
from tune.experiments.folder import EXPERIMENT_FILE, ExperimentFolder
from tune.experiments.mlflow_store import DATABASE, default_tracking_uri, sqlite_path
from tune.util.errors import ExperimentError
from tune.util.plain import restored
from tune.util.redact import without_password

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML has it: ten times as fast."""
_UNKNOWN_RESOURCES = TrialResources(gpus=0.0, cpus=1.0, concurrent=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """The file's content; its keys are the names of the fields."""

    experiment: str = ""
    """Its name when it was made."""
    created: str = ""
    """ISO 8601, after the base model was measured."""
    kind: Literal["search", "training"] = "search"
    run_again: str = ""
    """A command line that does the same under another name."""
    seed: int = 0
    space: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What is searched, its bounds as numbers; empty of a training."""
    trials_full_window: bool = True
    """Whether trials are measured as the model will be used, or with the window that they train with."""
    warm_start: str | None = None
    track: tuple[str, ...] = ("mlflow",)
    tracking_uri: str = ""
    """The MLflow store, without a password."""
    asked_tracking_uri: str | None = None
    train_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `TrainConfig` that all trials share."""
    budget_samples: int = 0
    """Samples seen by the longest trial."""
    rungs: tuple[int, ...] = ()
    """Samples seen at which trials are measured; the last one is the full budget."""
    resources: TrialResources = _UNKNOWN_RESOURCES
    clips: dict[str, int] = dataclasses.field(default_factory=dict)
    """Clips of each split."""
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Clips that were left out, by reason."""
    notes: tuple[str, ...] = ()
    """What the user should know of the data."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def base(self) -> TrainConfig:
        """What all trials share, as it was where the experiment began; ConfigError where a later version wrote it."""
        return TrainConfig.from_dict(self.train_config)

    def write(self, folder: Path) -> None:
        """Write `experiment.yaml`; OSError where that cannot be done."""
        text = yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)
        (folder / EXPERIMENT_FILE).write_text(text, encoding="utf-8")


def read_settings(folder: ExperimentFolder) -> ExperimentSettings:
    """`experiment.yaml` of an experiment whose small files are on this machine.

    Raises:
        ExperimentError: it cannot be read, or is not the file of an experiment.
    """
    content, path = folder.read(EXPERIMENT_FILE), folder.path / EXPERIMENT_FILE
    if content is None:
        raise ExperimentError(f"{path}: cannot be read: No such file or directory")
    try:
        found = yaml.load(content, _LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)  # the first line tells but what was about to be done
        reason = f"line {mark.line + 1}: {getattr(error, 'problem', None)}" if mark else error
        raise ExperimentError(f"{path}: cannot be read: {str(reason).splitlines()[0]}") from error
    if not isinstance(found, dict) or not isinstance(found.get("train_config"), dict):
        raise ExperimentError(f"{path}: is not the file of an experiment, it has no train_config")
    try:
        settings: ExperimentSettings = restored(ExperimentSettings, found)
    except (AttributeError, TypeError) as error:
        raise ExperimentError(f"{path}: is not the file of an experiment: {error}") from error
    return settings


def read_tracking_uri(folder: ExperimentFolder) -> str:
    """The MLflow store of an experiment; the file in the folder, if the folder was moved.

    Raises:
        ExperimentError: `experiment.yaml` cannot be read or names no store, or the store's file is gone.
    """
    uri = read_settings(folder).tracking_uri
    if not uri:
        raise ExperimentError(f"{folder.path / EXPERIMENT_FILE}: has no tracking_uri")
    database = sqlite_path(uri)
    if database is None:
        known = os.environ.get("MLFLOW_TRACKING_URI", "")
        return known if without_password(known) == uri else uri  # the file keeps no password
    if database.exists():
        return uri
    if not (folder.path / DATABASE).exists():
        raise ExperimentError(f"experiment {folder.name!r}: its MLflow store {database} is gone")
    return default_tracking_uri(folder.path)
