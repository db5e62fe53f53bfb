"""The base model's error rates, with which an experiment begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tune.display import say
from tune.errors import UserError
from tune.trainable import evaluate_shared, keep_rates, recall_rates

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiment import Session


def measure_baseline(base: TrainConfig, session: Session) -> Evaluation:
    """The base model untouched, on the validation split, as measured before or now.

    Raises:
        UserError: the model cannot be used.
    """
    device = "gpu" if session.resources.gpus else "cpu"
    known = recall_rates(base, session.data, device) if base.reuse_baseline else None
    found = known or _measure(base, session)
    how = " (measured before)" if known else ""
    say(
        session.console,
        f"baseline: {base.model} untouched has WER {found.wer:.2f} %, CER {found.cer:.2f} % "
        f"on {found.clips} validation clips{how}",
    )
    if known is None and base.reuse_baseline:
        try:
            keep_rates(base, session.data, device, found)
        except OSError as error:
            say(session.console, f"note: the next search measures the base model again: {error}")
    return found


def _measure(base: TrainConfig, session: Session) -> Evaluation:
    """In a process with what one worker of a trial has."""
    import ray

    cpus = session.resources.cpus_per_worker
    remote = ray.remote(num_cpus=cpus, num_gpus=session.resources.gpus_per_worker)(evaluate_shared)
    with session.console.status(f"measuring the base model {base.model} ..."):
        try:
            found: Evaluation = ray.get(remote.remote(base, session.data, session.share, cpus))
        except ray.exceptions.RayTaskError as error:
            # A user's mistake that only shows in the worker (weights that do not load) is still told in one line.
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
    return found
