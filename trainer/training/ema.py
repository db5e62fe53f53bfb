"""An exponential moving average of the weights, measured and kept in place of the last ones (`ema_decay`).

After optimiser step n, counted from 1, the average becomes d a + (1 - d) w with d = min(decay, (1 + n) / (10 + n)). So
the first ones, near the base model, are forgotten in short trainings too: the warm-up of the decay is that of
`num_updates` in TensorFlow's `tf.train.ExponentialMovingAverage`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.training.checkpoints import EMA_FILE


class WeightAverage:
    """The average of a model's trained weights, in float32 and on their device.

    All processes that train together have the same weights after each step, and so the same average.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """It begins as the weights are now; `model` must be on its device, with what is trained marked so."""
        self._decay = decay
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._averages = {name: _float_copy(weight) for name, weight in self._weights.items()}

    def update(self, step: int) -> None:
        """Take in the weights after so many optimiser steps of the training."""
        blend: Any = get_ema_multi_avg_fn(  # type: ignore[no-untyped-call]
            min(self._decay, (1 + step) / (10 + step))
        )
        weights = [weight.detach().float() for weight in self._weights.values()]
        blend(list(self._averages.values()), weights, None)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model has the averages, in its own precision; the tensors stay where they are.

        The weights are copied meanwhile, to where the gradients were, which are gone between two steps.
        """
        kept = {name: weight.detach().clone() for name, weight in self._weights.items()}
        try:
            self._set(self._averages)
            yield
        finally:
            self._set(kept)

    def missing(self, engine: bool) -> Mapping[str, torch.Tensor]:
        """What a checkpoint lacks whose model has the averages: the weights themselves.

        DeepSpeed's engine keeps these (`engine`), but would round the averages: there it is they.
        """
        return self._averages if engine else {name: weight.detach() for name, weight in self._weights.items()}

    def restore(self, folder: Path, engine: bool) -> None:
        """Go on from a checkpoint whose model, or with an engine whose weights, the model has been given."""
        kept = load_file(folder / EMA_FILE)
        if not engine:
            self._averages = {name: _float_copy(weight) for name, weight in self._weights.items()}
            self._set(kept)
            return
        for name, average in self._averages.items():
            average.copy_(kept[name])

    def _set(self, values: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(values[name])


def write_missing(tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write what `WeightAverage.missing` gave, or copies of it."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / EMA_FILE)


def _float_copy(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().to(torch.float32, copy=True)


class AveragingCallback(TrainerCallback):
    """Makes a trainer's average when its training begins, and updates it after each optimiser step."""

    def __init__(self, trainer: Any) -> None:
        """`trainer` is a `SavingTrainer`."""
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The model is on its device now; of a training that goes on the average has been read before."""
        self._trainer.begin_average()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before what is due after the step."""
        self._trainer.average.update(state.global_step)
