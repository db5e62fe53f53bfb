"""A saved experiment: its folder, what was resolved before its first trial, and what its log folds to."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainer.config import TrainConfig
from tune.errors import ExperimentError, SpaceError
from tune.experiment_folder import EXPERIMENT_FILE
from tune.experiments.log import EVENTS_FILE, read_log
from tune.search.records import TrialRecord
from tune.search_space import load_space

if TYPE_CHECKING:
    from tune.experiment_folder import ExperimentFolder
    from tune.experiments.state import SearchState
    from tune.search_space import SearchSpace

_NEEDED = ("space", "train_config", "rungs", "resources", "clips")


@dataclasses.dataclass(frozen=True)
class SavedExperiment:
    """A search, or a single training, as it stands on disk."""

    folder: ExperimentFolder
    settings: dict[str, Any]
    """`experiment.yaml`: everything that was resolved, once, before the first trial."""
    state: SearchState
    """What its log folds to."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.folder.name

    @property
    def is_training(self) -> bool:
        """Whether it is a single training of `tune-whisper train`."""
        return self.settings.get("kind") == "training"

    @property
    def base(self) -> TrainConfig:
        """The settings that all trials share."""
        return TrainConfig.from_dict(self.settings["train_config"])

    @property
    def rungs(self) -> tuple[int, ...]:
        """Samples seen at which trials are measured; the last one is the full budget."""
        return tuple(int(rung) for rung in self.settings["rungs"])

    @property
    def baseline(self) -> dict[str, float]:
        """Rates of the untouched base model; empty before it was measured."""
        return dict(self.state.baseline.rates) if self.state.baseline else {}

    @property
    def space(self) -> SearchSpace | None:
        """What is searched, its bounds as numbers; None for a training."""
        return None if self.is_training else saved_space(self.settings["space"], self.folder.path)

    def config(self, run: TrialRecord) -> TrainConfig:
        """All settings of a run."""
        return self.base.replace(**run.config)


def load_saved(folder: ExperimentFolder) -> SavedExperiment:
    """Read an experiment whose small files are on this machine, also while it runs.

    Raises:
        ExperimentError: a file of it is missing or damaged.
    """
    return SavedExperiment(folder, read_settings(folder.path), read_log(folder.path / EVENTS_FILE))


def read_settings(folder: Path) -> dict[str, Any]:
    """`experiment.yaml`.

    Raises:
        ExperimentError: it cannot be read, or is not the file of an experiment.
    """
    path = folder / EXPERIMENT_FILE
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExperimentError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    missing = [key for key in _NEEDED if not isinstance(settings, dict) or key not in settings]
    if missing:
        raise ExperimentError(f"{path}: is not the file of an experiment, it has no {', '.join(missing)}")
    return dict(settings)


def saved_space(saved: Mapping[str, Any], folder: Path) -> SearchSpace:
    """The space as it was resolved, under the name and text of the user's own file.

    Raises:
        ExperimentError: it cannot be used.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "space.yaml"
        path.write_text(yaml.safe_dump(dict(saved), sort_keys=False, allow_unicode=True), encoding="utf-8")
        try:
            space = load_space(str(path))
        except SpaceError as error:
            reason = str(error).splitlines()[0].removeprefix(f"{path}:").partition(": ")[2]
            raise ExperimentError(
                f"{folder / EXPERIMENT_FILE}: its space cannot be used: {reason}"
            ) from error
    own = folder / "space.yaml"
    if not own.is_file():
        return space
    return dataclasses.replace(space, path=own, source_text=own.read_text(encoding="utf-8"))
