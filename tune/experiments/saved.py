"""A saved experiment: its folder, what was resolved before its first trial, and what its log folds to."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from trainer.config import TrainConfig
from trainer.data.kept_splits import SPLITS_FILE
from trainer.model.adapters import with_base
from tune.experiments.folder import EVENTS_FILE, EXPERIMENT_FILE
from tune.experiments.log import fold
from tune.experiments.settings import ExperimentSettings, read_settings
from tune.search.records import TrialRecord
from tune.space.space import parse_space
from tune.util.errors import ExperimentError, SpaceError

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.state import SearchState
    from tune.experiments.storage import Storage
    from tune.space.space import SearchSpace

Find: TypeAlias = "Callable[[str, Storage], ExperimentFolder]"
"""Finds an experiment as `find_experiment` does, or in its end where a killed process had left only that."""


@dataclasses.dataclass(frozen=True)
class SavedExperiment:
    """A search, or a single training, as it stands on disk."""

    folder: ExperimentFolder
    settings: ExperimentSettings
    """What was resolved, once, before the first trial."""
    state: SearchState
    """What its log folds to."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.folder.name

    @property
    def is_training(self) -> bool:
        """Whether it is a single training of `tune-whisper train`."""
        return self.settings.kind == "training"

    @property
    def base(self) -> TrainConfig:
        """The settings that all trials share, with its splits and a feature cache that is here: it may have begun
        elsewhere.
        """
        base, splits = self.settings.base, self.folder.path / SPLITS_FILE
        if splits.is_file():  # not before the data was read
            # What is trained on is train there, whatever it was made of.
            base = base.replace(splits=str(splits), train_on="train")
        return (
            base if Path(base.cache_dir).is_dir() else base.replace(cache_dir=str(self.folder.feature_cache))
        )

    @functools.cached_property
    def space(self) -> SearchSpace | None:
        """What is searched, its bounds as numbers; None for a training."""
        return None if self.is_training else _load_space(self.settings.space, self.folder.path)

    def config(self, run: TrialRecord) -> TrainConfig:
        """All settings of a run, with a feature cache that is here."""
        return self.base.replace(**run.config)

    @property
    def best(self) -> TrialRecord:
        """The run that is exported.

        Raises:
            ExperimentError: no trial was evaluated, or the weights of the best one are gone.
        """
        best = self.state.best()
        if best is not None:
            return best
        if self.state.records.best() is None:
            raise ExperimentError(
                f"experiment {self.name!r}: no trial reached an evaluation, so there is no model yet"
            )
        raise ExperimentError(f"experiment {self.name!r}: the weights of its best trial are gone")

    @contextlib.contextmanager
    def checkpoint(self, run: TrialRecord) -> Iterator[Path]:
        """The best checkpoint of a run that has weights, as a local folder; see `ExperimentFolder.checkpoint`.

        Adapters in it name the experiment's own base model.
        """
        with (
            self.folder.checkpoint(str(run.checkpoint)) as folder,
            with_base(folder, self.base.model) as found,
        ):
            yield found


def load_saved(folder: ExperimentFolder) -> SavedExperiment:
    """Read an experiment whose small files can be read, also while it runs.

    Raises:
        ExperimentError: its search has not begun, or a file of it is damaged.
    """
    settings, log = read_settings(folder), folder.read(EVENTS_FILE)
    if log is None:
        raise no_log(folder)
    return SavedExperiment(folder, settings, fold(log, folder.path / EVENTS_FILE))


def no_log(folder: ExperimentFolder) -> ExperimentError:
    """What is told of an experiment whose search has not begun."""
    return ExperimentError(
        f"experiment {folder.name!r}: has no {EVENTS_FILE}: its search never began a trial; wait until it does, or "
        f"remove {folder.address} and start it anew"
    )


def find_experiment(name: str | None, storage: Storage) -> ExperimentFolder:
    """An experiment, or the newest one; its small files are brought here from an object store.

    Raises:
        ExperimentError: there is none; the nearest names are given.
        StorageError: the object store cannot be read.
    """
    names = storage.names()
    chosen = names[-1] if name is None and names else name
    if chosen is not None and chosen in names:
        folder = storage.experiment(chosen)
        folder.download()
        return folder
    if not names:
        what = "no experiment" if name is None else f"no experiment {name!r}"
        raise ExperimentError(
            f"{what} in {storage.text}, nor any other; --storage names the place that holds them"
        )
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4) or names[-3:]
    raise ExperimentError(f"no experiment {name!r} in {storage.text}; there is {', '.join(near)}")


def _load_space(saved: Mapping[str, Any], folder: Path) -> SearchSpace:
    """The space as it was resolved, under the name and text of the user's own file.

    Raises:
        ExperimentError: it cannot be used.
    """
    own = folder / "space.yaml"
    try:
        space = parse_space(yaml.safe_dump(dict(saved), sort_keys=False, allow_unicode=True), own)
    except SpaceError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{own}:").partition(": ")[2]
        raise ExperimentError(f"{folder / EXPERIMENT_FILE}: its space cannot be used: {reason}") from error
    return dataclasses.replace(space, source_text=own.read_text(encoding="utf-8")) if own.is_file() else space
