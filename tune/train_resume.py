"""`tune-whisper train --resume`: a plan and a state from what an interrupted training left."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import yaml

from trainer.config import TrainConfig
from tune.errors import ExperimentError
from tune.experiment_folder import EXPERIMENT_FILE
from tune.results import find_experiment
from tune.search_state import SearchState
from tune.train_plan import TrainPlan, TrainRequest, no_space, search_request
from tune.train_results import KIND
from tune.train_workers import TRIAL
from tune.trainable import restore_evaluation

if TYPE_CHECKING:
    from trainer.train import Evaluation


@dataclasses.dataclass(frozen=True)
class ResumedTraining:
    """What is known of a training that goes on."""

    plan: TrainPlan
    state: SearchState
    baseline: Evaluation
    n_train: int


def load_training(request: TrainRequest, name: str) -> ResumedTraining:
    """The training `name` of `request.storage`, to go on with the request's resources and MLflow store.

    Raises:
        ExperimentError: there is no such training, it has ended, or it runs now.
    """
    folder = find_experiment(name, request.storage)
    saved = yaml.safe_load((folder.path / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    if saved.get("kind") != KIND:
        raise ExperimentError(
            f"--resume {name}: is a search, not a training; tune-whisper --resume {name} goes on with it"
        )
    state = SearchState.load(folder.path)
    state.lock()
    record = state.records[TRIAL]
    if record.status not in ("running", "failed"):
        raise ExperimentError(
            f"--resume {name}: has {record.status}; tune-whisper train --from {name} trains anew with its settings"
        )
    if record.status == "failed":
        record.status, record.error = "running", None
        record.started, record.seconds = time.monotonic() - record.seconds, 0.0
    base = TrainConfig.from_dict(saved["train_config"])
    request = dataclasses.replace(
        request, tracking_uri=request.tracking_uri or saved.get("asked_tracking_uri")
    )
    plan = TrainPlan(
        request=search_request(request, name, base),
        name=name,
        experiment_folder=folder,
        space=no_space({}),
        base=base,
        trial_config=record.config,
        gpus_per_worker=request.gpus_per_worker,
        cpus_per_worker=request.cpus_per_worker,
    )
    return ResumedTraining(plan, state, restore_evaluation(saved["baseline"]), int(saved["clips"]["train"]))
