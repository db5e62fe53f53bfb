"""How fast a training runs on this machine and what it takes of the card's memory, from a few real steps.

The steps are those of `train` itself: forward pass, backward pass, optimiser. Their clips are the ones with the
longest texts, so that no step of the training will take more.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trainer.config import TrainConfig
from trainer.errors import DivergedError
from trainer.memory import is_out_of_memory
from trainer.scoring.batch_size import CPU_CLIPS
from trainer.train import train
from trainer.training.window import FRAMES_PER_SECOND, window_frames

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedData, PreparedSplit

_WARM_UP_STEPS = 3
"""Not timed: libraries choose their kernels, the model is compiled where it is to be, memory is taken."""
_MOST_STEPS = 20_000
_HARMLESS_RATE = 1e-12
"""Learning rate of a training whose weights are thrown away: it costs the same, and the loss stays a number."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one size of the micro-batch came to."""

    micro_batch: int
    """Clips in a forward pass."""
    samples_per_second: float | None
    """Clips trained on in a second; None where memory ran out."""
    peak_bytes: int | None = None
    """Most memory of the card that the process held, with what CUDA itself takes; None without CUDA."""
    total_bytes: int | None = None
    """The card's memory."""

    @property
    def fits(self) -> bool:
        """Whether there was enough memory."""
        return self.samples_per_second is not None


def probe_step(
    config: TrainConfig,
    data: PreparedData,
    *,
    micro_batches: Sequence[int],
    seconds: float,
    evaluated: bool = True,
    ready: Callable[[], bool] = lambda: True,
) -> list[Measured]:
    """Train with the largest of these micro-batches that fits in memory, for a short time.

    Args:
        config: the settings; batch size, accumulation and budget are not used.
        data: prepared data.
        micro_batches: sizes to try, the largest first; the first that fits ends it.
        seconds: of training that are timed.
        evaluated: whether the memory of an evaluation counts too: one batch of it follows the first step, and a
            checkpoint that is thrown away.
        ready: called when the training runs and its clock is about to start; waits until it may. False: it is not
            measured after all.

    Returns:
        What was tried, in falling order of size; all but the last did not fit. The last is missing where `ready`
        said so.

    Raises:
        UserError: the model or the disk cannot be used, or the model's loss is no finite number.
    """
    found: list[Measured] = []
    for size in sorted(set(micro_batches), reverse=True):
        _forget(config)
        clock = _Clock(seconds, ready)
        try:
            _train(config, data, size, clock, evaluated)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            found.append(Measured(size, None, *_memory()))
            continue
        if clock.rate is not None:
            found.append(Measured(size, clock.rate, *_memory()))
        break
    return found


class _Clock:
    """Times a training by what it reports, and ends it."""

    def __init__(self, seconds: float, ready: Callable[[], bool]) -> None:
        self._seconds, self._ready = seconds, ready
        self._steps = 0
        self._started: tuple[float, float] | None = None
        self.rate: float | None = None
        """Samples in a second, once they are measured."""

    def watch(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        """The training's report: once after each step, and once more after the evaluation.

        Raises:
            _EndError: the time is over, or nothing is to be measured.
        """
        if checkpoint_dir is not None:
            return
        if "diverged" in metrics:
            raise DivergedError("its loss is no finite number; take another model, or precision=fp32")
        self._steps += 1
        now, seen = time.monotonic(), metrics["samples_seen"]
        if self._started is not None:
            if now - self._started[0] >= self._seconds:
                self.rate = (seen - self._started[1]) / (now - self._started[0])
                raise _EndError
        elif self._steps > _WARM_UP_STEPS:
            if not self._ready():
                raise _EndError
            self._started = time.monotonic(), seen


class _EndError(Exception):
    """Ends a training of which only a few steps were wanted."""


def _train(config: TrainConfig, data: PreparedData, size: int, clock: _Clock, evaluated: bool) -> None:
    """The training itself, on so many clips in each step, until the clock ends it."""
    longest = _window(config, data) / FRAMES_PER_SECOND
    # With `auto` evaluations take more only where what trainings need leaves room.
    evaluated_clips = config.eval_batch_size or CPU_CLIPS
    splits = {
        # Of a stream no clips are at hand; those of the validation split are like its own.
        "train": _longest_texts(data.splits.get("train", data.splits["validation"]), size),
        "validation": _longest_texts(data.splits["validation"], evaluated_clips),
    }
    config = config.replace(
        streaming=False,
        max_samples=None,
        max_hours=None,
        eval_batch_size=evaluated_clips,
        train_batch_size=size,
        gradient_accumulation_steps=1,
        micro_batch=None,
        epochs=None,
        max_steps=_MOST_STEPS,
        evaluations=1,
        evaluate_at=(size,) if evaluated else None,
        learning_rate=_HARMLESS_RATE,
        log_every_seconds=0.0,
        # That of the whole data, of which these are only a few clips.
        audio_window=min(30.0, max(1.0, longest)),
    )
    try:
        train(config, clock.watch, data=dataclasses.replace(data, splits=splits, stream=None))
    except _EndError:
        pass
    except DivergedError as error:
        raise DivergedError(f"model={config.model!r}: {error}") from error


def _window(config: TrainConfig, data: PreparedData) -> int:
    """Feature frames of the longest window of a training on all of the data."""
    full = 30 * FRAMES_PER_SECOND
    if not config.augments:
        return window_frames(config, data, full)
    from trainer.training.augmented import augmented_frames

    return augmented_frames(config, data, full)


def _longest_texts(split: PreparedSplit, count: int) -> PreparedSplit:
    """So many clips, those with the longest texts; again from the longest one where there are fewer."""
    clips = sorted(range(len(split)), key=split.n_tokens, reverse=True)
    return split.only(list(itertools.islice(itertools.cycle(clips), count)))


def _forget(config: TrainConfig) -> None:
    """Give back what a training before left, and what is known of its memory."""
    gc.collect()
    if config.torch_compile:
        # Else a second size would be compiled for any size, which is slower than what a trial of that size has.
        torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory() -> tuple[int | None, int | None]:
    """Bytes of the card that this process held at most, and those that it has; None each without CUDA.

    What the card has in use beyond PyTorch's share is the CUDA context, where nobody else computes on it.
    """
    if not torch.cuda.is_available():
        return None, None
    free, total = torch.cuda.mem_get_info()
    context = max(0, total - free - torch.cuda.memory_reserved())
    return torch.cuda.max_memory_reserved() + context, total
