"""What is saved of an experiment, as every command that goes on from one reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from made_experiments import change_settings, made_trial, write_experiment
from plans import training_plan

from tune.experiments.experiment import Experiment
from tune.experiments.storage import Storage
from tune.runs.resume import resume


def resumed_search(storage: Storage) -> str:
    resumed = resume("made", storage, {"trials": 3})
    resumed.experiment.close()
    return resumed.plan.base.cache_dir


def training_from(storage: Storage) -> str:
    return training_plan("--storage", storage.text, "--from", "made").base.cache_dir


def move(folder: Path) -> None:
    """Leave an experiment as on a machine where it did not begin: the folder of the features is not there."""
    settings = Experiment.read(Storage.parse(folder.parent).experiment(folder.name)).settings
    change_settings(folder, train_config={**settings.train_config, "cache_dir": "/elsewhere/cache"})


@pytest.mark.parametrize("command", [resumed_search, training_from])
def test_on_another_machine_features_go_where_they_can(
    command: Callable[[Storage], str], tmp_path: Path
) -> None:
    trials = [made_trial(1, [50.0, 30.0, 12.0]), made_trial(2, [55.0])]
    move(write_experiment(tmp_path, trials, asked=3, state="interrupted").path)
    storage = Storage.parse(tmp_path)
    assert command(storage) == str(storage.feature_cache)
