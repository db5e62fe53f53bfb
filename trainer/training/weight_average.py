"""The mean of the weights so far, which is what evaluations before the end of a training measure.

While the learning rate is high the last weights are noisy, and their error rate says little of what the training comes
to once the rate has fallen; that of their mean says more from a third of the steps on (`benchmarks/search.md`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerState

from trainer.training.checkpoints import AVERAGE_FILE


class WeightAverage(TrainerCallback):
    """Polynomial-decay averaging (arXiv:1212.1824) of what is trained: a step counts in proportion to its number."""

    def __init__(self, model: torch.nn.Module, until: int, *, by_engine: bool) -> None:
        """Begin without a mean.

        Args:
            model: on its device.
            until: step of the last evaluation before the end. After it there is no mean, and nothing is kept for it.
            by_engine: DeepSpeed's own part of a checkpoint has the weights that a training goes on from.
        """
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._until, self._by_engine = until, by_engine
        self._means: dict[str, torch.Tensor] = {}
        """In float32: in 16 bit the small shares of late steps would be lost."""

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step > self._until:
            self._means = {}
            return
        self._means = self._means or self._copies()
        for name, weight in self._weights.items():
            self._means[name].lerp_(weight.detach().float(), 2 / (state.global_step + 1))

    @contextlib.contextmanager
    def in_model(self) -> Iterator[None]:
        """Within the block the model has the mean, where there is one."""
        last = self._copies() if self._means else {}
        self._put(self._means)
        try:
            yield
        finally:
            self._put(last)

    def save(self, folder: Path) -> None:
        """Write what going on needs beside a model that is the mean: the last weights, or with an engine the mean."""
        if self._means:
            save_file(self._means if self._by_engine else self._copies(), folder / AVERAGE_FILE)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, once its model, or with an engine its last weights, are loaded."""
        if not (folder / AVERAGE_FILE).is_file():
            return
        kept = load_file(folder / AVERAGE_FILE)
        if self._by_engine:
            self._means = {name: kept[name].to(last.device) for name, last in self._weights.items()}
        else:
            self._means = self._copies()
            self._put(kept)

    def _copies(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach().float().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        # In place: DDP, fused optimisers and engines know the weights by their addresses.
        for name, value in values.items():
            self._weights[name].copy_(value)
