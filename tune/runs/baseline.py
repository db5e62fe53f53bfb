"""The base model's error rates, with which an experiment begins, and the test split, with which it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tune.errors import UserError, first_line
from tune.object_store import StorageError
from tune.share import start_share
from tune.workers.trainable import evaluate_shared, keep_rates, local_folders, recall_rates

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiments.opened import OpenExperiment
    from tune.runs.search import Session
    from tune.search.records import TrialRecord


def measure_baseline(base: TrainConfig, session: Session) -> Evaluation:
    """The base model untouched, on the validation split, as measured before or now.

    Raises:
        UserError: the model cannot be used.
    """
    found, known = _measure_base(base, session, "validation")
    how = " (measured before)" if known else ""
    session.say(
        f"baseline: {base.model} untouched has WER {found.wer:.2f} %, CER {found.cer:.2f} % "
        f"on {found.clips} validation clips{how}"
    )
    return found


def measure_held_out(
    session: Session, experiment: OpenExperiment, base: TrainConfig, run: TrialRecord
) -> tuple[Evaluation, Evaluation] | None:
    """A run's best checkpoint, and the base model, on the test split; None where the weights cannot be had.

    Args:
        session: the cluster and the data.
        experiment: has the checkpoint.
        base: all settings that the run had.
        run: the training.
    """
    import ray

    folder = experiment.folder
    try:
        with folder.checkpoint(f"/{run.checkpoint}") as checkpoint:
            config = base.replace(model=str(checkpoint))
            found = _measure(config, session, "test", start_share(local_folders(config, session.data)))
        return found, _measure_base(session.plan.base, session, "test")[0]
    except (UserError, StorageError, ray.exceptions.RayError) as error:
        session.say(f"warning: the best run is not measured on the test split: {first_line(error)}")
        return None


def _measure_base(base: TrainConfig, session: Session, split: str) -> tuple[Evaluation, bool]:
    """The base model on a split, and whether it was measured before."""
    device = "gpu" if session.resources.gpus else "cpu"
    known = recall_rates(base, session.data, device, split) if base.reuse_baseline else None
    if known is not None:
        return known, True
    found = _measure(base, session, split, session.share)
    if base.reuse_baseline:
        try:
            keep_rates(base, session.data, device, split, found)
        except OSError as error:
            session.say(f"note: the next search measures the base model again: {error}")
    return found, False


def _measure(config: TrainConfig, session: Session, split: str, share: Any) -> Evaluation:
    """In a process with what one worker of a trial has."""
    import ray

    cpus = session.resources.cpus_per_worker
    remote = ray.remote(num_cpus=cpus, num_gpus=session.resources.gpus_per_worker)(evaluate_shared)
    what = f"the base model {config.model}" if split == "validation" else "the test split"
    with session.console.status(f"measuring {what} ..."):
        try:
            found: Evaluation = ray.get(remote.remote(config, session.data, share, cpus, split))
        except ray.exceptions.RayTaskError as error:
            # A user's mistake that only shows in the worker (weights that do not load) is still told in one line.
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
    return found
