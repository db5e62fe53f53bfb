"""Averages of models in Ray's worker processes: written as a checkpoint, and measured as a training measures."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.report import Kept
from tune.workers.inputs import TrialInputs

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.data.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.experiments.checkpoint_files import CheckpointFiles


@dataclasses.dataclass(frozen=True)
class Measured:
    """What an average came to."""

    rates: dict[str, float]
    """Of `Evaluation`, in percent."""
    keep: Kept
    """What is on the storage: its weights, or only what compares clips."""
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""


def measure_average(
    inputs: TrialInputs, files: CheckpointFiles, checkpoints: Sequence[str], name: str, most_wer: float
) -> Measured:
    """Average checkpoints, measure that on the validation split, and keep it.

    Args:
        inputs: settings and data of the first of them.
        files: the experiment's checkpoints.
        checkpoints: to average, with equal shares; paths within the experiment.
        name: of the average's own checkpoint, which is complete or absent.
        most_wer: in percent; of an average with a higher WER no weights are kept.

    Raises:
        ModelError: they cannot be averaged.
        DivergedError: the average's loss is no finite number.
        DiskFullError: there is no room for it.
    """
    from trainer.training.checkpoints import write_errors

    config, data = inputs.open()
    place = files.place(name)
    shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
    _write_mean(config, files, [(path, 1.0) for path in checkpoints], place)
    try:
        found = _evaluate(config, place, data)
        keep: Kept = "weights" if found.wer <= most_wer else "errors"
        if keep == "errors":
            shutil.rmtree(place)
        assert found.utterances is not None
        write_errors(place, config, found.utterances)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    files.complete(place, name, files.upload(place, name))
    return Measured(found.rates(), keep, found.sources)


def measure_point(
    inputs: TrialInputs, files: CheckpointFiles, checkpoint: str, point: float
) -> dict[str, float]:
    """Rates on the validation split, in percent, of a point between the base model (0) and a run (1).

    Args:
        inputs: settings and data of the run.
        files: the experiment's checkpoints.
        checkpoint: of the run; a path within the experiment.
        point: above 0 and below 1.

    Raises:
        UserError: as `measure_average`.
    """
    config, data = inputs.open()
    with _point(config, files, checkpoint, point) as model:
        return _evaluate(config, model, data).rates()


def measure_guard(inputs: TrialInputs, files: CheckpointFiles, checkpoint: str, point: float) -> Evaluation:
    """Rates on the data of `inputs`, which nothing was trained on, as the model will be used; without transcripts.

    Args:
        inputs: settings of the run, and the data.
        files: the experiment's checkpoints.
        checkpoint: of the run; a path within the experiment.
        point: the run's share in its mean with the base model, above 0 and up to 1.

    Raises:
        UserError: as `measure_average`.
    """
    from trainer.train import evaluate

    config, data = inputs.open()
    with _point(config, files, checkpoint, point) as model:
        found = evaluate(config.replace(model=str(model)), data=data)
    return dataclasses.replace(found, predictions=[])


@contextlib.contextmanager
def _point(config: TrainConfig, files: CheckpointFiles, checkpoint: str, point: float) -> Iterator[Path]:
    """A run (1), or a point between the base model (0) and it, as a model folder."""
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        place, parts = Path(scratch) / "model", [(None, 1.0 - point), (checkpoint, point)]
        _write_mean(config, files, [part for part in parts if part[1]], place)
        yield place


def _evaluate(config: TrainConfig, model: Path, data: PreparedData) -> Evaluation:
    from trainer.train import evaluate

    return evaluate(config.replace(model=str(model)), data=data, as_in_training=True)


def _write_mean(
    config: TrainConfig, files: CheckpointFiles, parts: Sequence[tuple[str | None, float]], place: Path
) -> None:
    """The mean of checkpoints by their shares, as a model folder; None is the base model."""
    from trainer.files import has_room
    from trainer.model.adapters import with_base
    from trainer.model.averaging import load_mean
    from trainer.training.checkpoints import checkpoint_bytes, disk_full, told_when_full

    def folders() -> Iterator[tuple[str, float]]:
        for checkpoint, share in parts:
            if checkpoint is None:
                yield config.model, share
                continue
            with files.fetched(checkpoint) as fetched, with_base(fetched, config.model) as folder:
                yield str(folder), share

    mean, processor = load_mean(config, folders())
    needed = checkpoint_bytes(config, mean, "weights")
    if not has_room(place, needed):
        raise disk_full(place, needed)
    with told_when_full(place, needed):
        mean.save_pretrained(str(place))
        processor.save_pretrained(place)
