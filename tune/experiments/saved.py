"""A saved experiment: its folder, what was resolved before its first trial, and what its log folds to."""

from __future__ import annotations

import dataclasses
import difflib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from trainer.config import TrainConfig
from tune.experiments.folder import EXPERIMENT_FILE
from tune.experiments.log import EVENTS_FILE, read_log
from tune.experiments.object_stores.segments import download
from tune.experiments.old_form import STATE_FILE, read_old_state
from tune.experiments.results import results_of
from tune.search.records import TrialRecord
from tune.space.space import load_space
from tune.util.errors import ExperimentError, SpaceError

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.state import SearchState
    from tune.experiments.storage import Storage
    from tune.space.space import SearchSpace

_NEEDED = ("train_config",)


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
    """Read an experiment whose small files are on this machine, also while it runs, and one of an earlier version.

    Raises:
        ExperimentError: nothing of it was measured yet, or a file of it is damaged.
    """
    settings, log = read_settings(folder.path), folder.path / EVENTS_FILE
    state = read_log(log) if log.is_file() else read_old_state(folder.path, settings)
    return SavedExperiment(folder, settings, state)


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
        if folder.store is not None:
            download(folder.store, folder.name, folder.path / EVENTS_FILE)
        return folder
    if not names:
        what = "no experiment" if name is None else f"no experiment {name!r}"
        raise ExperimentError(
            f"{what} in {storage.text}, nor any other; --storage names the place that holds them"
        )
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4) or names[-3:]
    raise ExperimentError(f"no experiment {name!r} in {storage.text}; there is {', '.join(near)}")


Find: TypeAlias = "Callable[[str, Storage], ExperimentFolder]"
"""Finds an experiment as `find_experiment` does, or in its end where a killed process had left only that."""


def load_results(folder: ExperimentFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """`experiment.yaml` with what the log adds to it, and the results as they stand now.

    Raises:
        ExperimentError: nothing of it was measured yet, or a file of it is damaged.
    """
    saved = load_saved(folder)
    return full_settings(saved), results_of(folder, saved.state)


def best_run(results: Mapping[str, Any], experiment: str) -> dict[str, Any]:
    """What the results say of the run that is exported.

    Raises:
        ExperimentError: no trial was evaluated, or the weights of the best one are gone.
    """
    best: dict[str, Any] | None = results["best"]
    if best is not None and best["checkpoint"]:
        return best
    if all(trial["best_wer"] is None for trial in results["trials"]):
        raise ExperimentError(
            f"experiment {experiment!r}: no trial reached an evaluation, so there is no model yet"
        )
    raise ExperimentError(f"experiment {experiment!r}: the weights of its best trial are gone")


def full_settings(saved: SavedExperiment) -> dict[str, Any]:
    """`experiment.yaml` with what the latest session was asked for and what the base model came to."""
    asked = saved.state.session
    found = {**saved.settings, "baseline": saved.baseline}
    if asked is not None:
        names = ("trials", "finalists", "repeats", "budgets", "keep_checkpoints", "asked_resources")
        found |= {name: getattr(asked, name) for name in names}
    return found


def old_form_error(folder: ExperimentFolder, option: str, what: str) -> ExperimentError:
    """What is told where an experiment of an earlier version cannot be used."""
    if not (folder.path / STATE_FILE).is_file():
        return ExperimentError(
            f"{option}: its search never began a trial; remove {folder.address} and start it anew"
        )
    try:
        version = read_settings(folder.path).get("versions", {}).get("tune-whisper", "0.1.0")
    except ExperimentError:
        version = "0.1.0"
    return ExperimentError(
        f"{option}: was made by tune-whisper {version}, which kept no {EVENTS_FILE}; {what} with that version "
        f"(pip install tune-whisper=={version}). All else works with this one"
    )


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
