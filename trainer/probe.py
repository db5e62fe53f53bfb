"""How fast a training runs on this machine, from a few real steps.

The steps are those of `train` itself: forward pass, backward pass, optimiser. Their clips are the ones with the
longest texts, so that no step of the training will take more.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.errors import DivergedError
from trainer.memory import is_out_of_memory
from trainer.train import train
from trainer.training.window import FRAMES_PER_SECOND, window_frames

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedData

_WARM_UP_STEPS = 3
"""Not timed: libraries choose their kernels, the model is compiled where it is to be, memory is taken."""
_MOST_STEPS = 20_000
_HARMLESS_RATE = 1e-12
"""Learning rate of a training whose weights are thrown away: it costs the same, and the loss stays a number."""


def probe_step(config: TrainConfig, data: PreparedData, *, seconds: float) -> float | None:
    """Train for a short time; clips trained on in a second, None where memory ran out.

    Raises:
        UserError: the model or the disk cannot be used, or the model's loss is no finite number.
    """
    # Of a stream no clips are at hand; those of the validation split are like its own.
    split = data.splits.get("train", data.splits["validation"])
    longest = sorted(range(len(split)), key=split.n_tokens, reverse=True)
    clips = split.only(list(itertools.islice(itertools.cycle(longest), config.train_batch_size)))
    config = config.replace(
        streaming=False,
        max_samples=None,
        max_hours=None,
        gradient_accumulation_steps=1,
        epochs=None,
        max_steps=_MOST_STEPS,
        evaluations=2,  # so that the weights are averaged
        evaluate_at=None,
        learning_rate=_HARMLESS_RATE,
        scheduler_type="constant",  # a polynomial one ends above that
        log_every_seconds=0.0,
        # That of the whole data, of which these are only a few clips.
        audio_window=min(30.0, max(1.0, _window(config, data) / FRAMES_PER_SECOND)),
    )
    steps: list[tuple[float, float]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if "diverged" in metrics:
            raise DivergedError(
                f"model={config.model!r}: its loss is not a finite number; take another model, or precision=fp32"
            )
        steps.append((time.monotonic(), metrics["samples_seen"]))
        timed = steps[_WARM_UP_STEPS:]
        if len(timed) > 1 and timed[-1][0] - timed[0][0] >= seconds:
            raise _EndError

    try:
        few = dataclasses.replace(data, splits={**data.splits, "train": clips}, stream=None)
        train(config, few, report)
    except _EndError:
        (began, first), (ended, last) = steps[_WARM_UP_STEPS], steps[-1]
        return (last - first) / (ended - began)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return None


class _EndError(Exception):
    """Ends a training of which only a few steps were wanted."""


def _window(config: TrainConfig, data: PreparedData) -> int:
    """Feature frames of the longest window of a training on all of the data."""
    full = 30 * FRAMES_PER_SECOND
    window = window_frames(config, data, full)
    if not config.augments or data.stream is not None:
        return window
    from trainer.training.augmented import augmented_frames

    return augmented_frames(config, data.splits["train"], window, full)
