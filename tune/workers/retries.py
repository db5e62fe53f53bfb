"""What a trial does by itself when a training does not fit in memory, or a checkpoint is not whole."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import ray.exceptions

from trainer.config import TrainConfig
from trainer.errors import CheckpointError, UserError
from trainer.memory import halve_micro_batch, is_out_of_memory
from tune.cluster.progress_channel import Driver

MICRO_BATCH = "micro_batch"
ACCUMULATION = "accumulation"
BROKEN_CHECKPOINT = "broken_checkpoint"
"""Keys of what a trial tells of it; of a broken checkpoint, how many are left before it."""
_Result = TypeVar("_Result")


def train_persistently(
    work: Callable[[TrainConfig, str, str | None], _Result], config: TrainConfig, driver: Driver
) -> _Result:
    """Train; with half the micro-batch and twice the accumulation where memory runs out, again and again.

    The effective batch, and with it what the trial is, stays. A checkpoint that is not whole is left aside for
    the one before it, and in the end for the start. `work` takes settings, the folder of its checkpoints, and one to
    go on from.
    """
    skipped = 0
    while True:
        start = driver.start()
        choice = [*start.checkpoints, None]
        try:
            return work(config, start.folder, choice[min(skipped, len(choice) - 1)])
        except (RuntimeError, UserError, ray.exceptions.RayError) as error:
            # PyTorch's of memory, ours of a checkpoint, and Ray's that pass on either from another process.
            if _is_broken(error) and skipped < len(choice) - 1:
                skipped += 1
                driver.progress({BROKEN_CHECKPOINT: float(len(choice) - 1 - skipped)})
                continue
            reduced = halve_micro_batch(config) if is_out_of_memory(error) else None
            if reduced is None:
                raise
            problem = "".join(traceback.format_exception_only(error)).strip()
        # Outside of the block: the error holds the frames, and they the tensors.
        print(f"{problem}\nit goes on with micro-batch {reduced.train_batch_size}", flush=True)
        config, skipped = reduced, 0
        driver.progress(
            {
                MICRO_BATCH: float(config.train_batch_size),
                ACCUMULATION: float(config.gradient_accumulation_steps),
            }
        )


def _is_broken(error: BaseException) -> bool:
    """Whether a checkpoint was not whole, here or in a worker whose error Ray passes on."""
    return isinstance(error, CheckpointError) or isinstance(getattr(error, "cause", None), CheckpointError)
