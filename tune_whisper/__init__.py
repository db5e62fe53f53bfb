"""tune-whisper from Python: `search`, `train`, `load_experiment`, `evaluate`, `transcribe`; what they return and raise.

    from tune_whisper import search

    found = search("lr_batch", trials=8, model="small", data="recordings.csv", language="be")
    print(found.wer, found.best.config)
    found.export("my-model")

Options are those of the commands, by the same names, checked in the same way; what a command prints as an error is
raised, with keywords in place of flags. Nothing heavy is imported until something runs.
"""

from trainer.config import TrainConfig
from trainer.errors import ConfigError, DataError, ModelError, UserError
from tune.search.records import Trial
from tune.util.errors import ExperimentError, ResourceError, SpaceError, TrackingError
from tune_whisper.experiment import Experiment, load_experiment
from tune_whisper.models import Evaluation, evaluate, transcribe
from tune_whisper.running import search, train

__all__ = [
    "ConfigError",
    "DataError",
    "Evaluation",
    "Experiment",
    "ExperimentError",
    "ModelError",
    "ResourceError",
    "SpaceError",
    "TrackingError",
    "TrainConfig",
    "Trial",
    "UserError",
    "evaluate",
    "load_experiment",
    "search",
    "train",
    "transcribe",
]
