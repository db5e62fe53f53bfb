"""`tune-whisper train --resume`: a plan and a state from what an interrupted training left."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tune.errors import ExperimentError
from tune.experiments.log import EVENTS_FILE
from tune.experiments.opened import OpenExperiment
from tune.experiments.saved import SavedExperiment, find_experiment, old_form_error, read_settings
from tune.experiments.training_plan import TrainPlan, TrainRequest, check_gpus, no_space, search_request
from tune.train_results import KIND
from tune.workers.ray_train import TRIAL


@dataclasses.dataclass(frozen=True)
class ResumedTraining:
    """What is known of a training that goes on."""

    plan: TrainPlan
    experiment: OpenExperiment
    points: tuple[int, ...]
    """Samples seen at which it is evaluated."""


def load_training(request: TrainRequest, name: str) -> ResumedTraining:
    """The training `name` of `request.storage`, to go on with the request's resources and MLflow store.

    Raises:
        ExperimentError: there is no such training, it has ended, or it runs now.
    """
    folder = find_experiment(name, request.storage)
    settings = read_settings(folder.path)
    if settings.get("kind") != KIND:
        raise ExperimentError(
            f"--resume {name}: is a search, not a training; tune-whisper --resume {name} goes on with it"
        )
    if not (folder.path / EVENTS_FILE).is_file():
        raise old_form_error(folder, f"--resume {name}", "go on with it")
    experiment = OpenExperiment(folder, take_over=request.take_over)
    try:
        return _load(request, name, SavedExperiment(folder, settings, experiment.log.state), experiment)
    except BaseException:
        experiment.close()
        raise


def _load(
    request: TrainRequest, name: str, saved: SavedExperiment, experiment: OpenExperiment
) -> ResumedTraining:
    if TRIAL not in saved.state.records or saved.state.baseline is None:
        raise ExperimentError(
            f"--resume {name}: its training never began; remove {saved.folder.address} and start it anew"
        )
    record = saved.state.records[TRIAL]
    if record.outcome not in ("running", "failed"):
        raise ExperimentError(
            f"--resume {name}: has {record.outcome}; tune-whisper train --from {name} trains anew with its settings"
        )
    base = saved.base
    check_gpus(request, base.workers)
    if not Path(base.cache_dir).is_dir():  # it ran elsewhere
        base = base.replace(cache_dir=str(request.storage.feature_cache))
    request = dataclasses.replace(
        request,
        tracking_uri=request.tracking_uri or saved.settings.get("asked_tracking_uri"),
        track=tuple(saved.settings["track"]),
    )
    plan = TrainPlan(
        request=search_request(request, name, base),
        name=name,
        experiment_folder=saved.folder,
        space=no_space({}),
        base=base,
        trial_config=record.config,
        gpus_per_worker=request.gpus_per_worker,
        cpus_per_worker=request.cpus_per_worker,
    )
    return ResumedTraining(plan, experiment, saved.rungs)
