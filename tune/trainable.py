"""What modules that are not in their rooms yet use of `trainer`, imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.checkpoints import CONFIG_FILE, UTTERANCES_FILE
from trainer.config import TrainConfig
from tune.experiments.plan import usual_learning_rate as check_model

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation

__all__ = [
    "CONFIG_FILE",
    "UTTERANCES_FILE",
    "check_model",
    "evaluate_model",
    "export_model",
    "find_model",
    "prepare_data",
]


def prepare_data(config: TrainConfig, on_progress: Callable[[int, int], None] | None = None) -> PreparedData:
    """Find or compute the features of `config.data`; raises `DataError` or `ModelError`."""
    from trainer.prepared import prepare

    return prepare(config, on_progress)


def find_model(config: TrainConfig) -> Path:
    """The folder that has the model's settings, fetched from the hub where it is not here; raises `ModelError`."""
    from trainer.hub_models import fetch_model
    from trainer.pretrained import model_path

    path = model_path(config)
    return Path(path) if Path(path).is_dir() else Path(fetch_model(path, weights=False))


def evaluate_model(
    config: TrainConfig, split: str, cpus: float, *, data: PreparedData | None = None
) -> Evaluation:
    """Error rates of `config.model` as it is on a split, with `cpus` threads."""
    import torch

    from trainer.train import evaluate

    torch.set_num_threads(max(1, int(cpus)))
    return evaluate(config, split, data=data)


def export_model(config: TrainConfig, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint as a plain Hugging Face folder; raises `ModelError`."""
    from trainer.export import write_model

    write_model(config, checkpoint, output)
