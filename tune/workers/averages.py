"""The mean of the winner's repeats: made, measured and kept in a worker process of Ray's."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.config import TrainConfig
from trainer.files import has_room
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.workers.inputs import TrialInputs


@dataclasses.dataclass(frozen=True)
class Measured:
    rates: dict[str, float]
    """Of `Evaluation`, in percent."""
    kept: bool
    """Whether its weights are on the storage."""
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""


def measure_mean(
    inputs: TrialInputs, files: CheckpointFiles, checkpoints: Sequence[str], name: str, most: float
) -> Measured:
    """Average checkpoints of the experiment with equal shares, measure that on the validation split, and keep it, by a
    name, where its objective is no higher than `most`, in percent.

    Raises:
        UserError: they cannot be averaged, their mean diverges, or there is no room for it.
    """
    from trainer.scoring.objectives import objective_value
    from trainer.train import evaluate
    from trainer.training.checkpoints import write_errors

    config, data = inputs.open()
    target = files.place(name)
    shutil.rmtree(target, ignore_errors=True)  # of a process that was killed
    _write_mean(config, files, checkpoints, target)
    try:
        result = evaluate(config.replace(model=str(target)), data, as_in_training=True)
        kept = objective_value(result.rates) <= most
        if kept:
            assert result.utterances is not None
            write_errors(target, config, result.utterances)
            files.complete(target, name, files.upload(target, name))
        else:
            shutil.rmtree(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Measured(result.rates, kept, result.sources)


def _write_mean(
    config: TrainConfig, files: CheckpointFiles, checkpoints: Sequence[str], target: Path
) -> None:
    """The mean of checkpoints, of adapters that of the whole models that they make, as a model folder."""
    from trainer.model.adapters import with_base
    from trainer.model.averaging import load_mean
    from trainer.training.checkpoints import checkpoint_bytes, disk_full, full_disk_errors

    def folders() -> Iterator[tuple[str, float]]:
        for checkpoint in checkpoints:
            with files.fetched(checkpoint) as fetched, with_base(fetched, config.model) as folder:
                yield str(folder), 1.0

    mean, processor = load_mean(config, folders())
    needed = checkpoint_bytes(config, mean, "weights")
    if not has_room(target, needed):
        raise disk_full(target, needed)
    with full_disk_errors(target, needed):
        mean.save_pretrained(str(target))
        processor.save_pretrained(target)
