"""Trainings and evaluations whose data is prepared on the way."""

from typing import Any

import trainer.train
from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.train import Evaluation, TrainResult
from trainer.training.report import Report, ignore


def train(
    config: TrainConfig, report: Report = ignore, *, data: PreparedData | None = None, **kinds: Any
) -> TrainResult:
    """As `trainer.train.train`, by default at a rate from which the demo's model learns in a few steps."""
    config = config.replace(learning_rate=config.learning_rate or (5e-3 if config.method == "lora" else 1e-3))
    return trainer.train.train(config, data or prepare(config, waveforms=config.augments), report, **kinds)


def evaluate(
    config: TrainConfig, split: str = "validation", *, data: PreparedData | None = None, **kinds: Any
) -> Evaluation:
    """As `trainer.train.evaluate`."""
    return trainer.train.evaluate(config, data or prepare(config), split, **kinds)
