"""Averages of models of the same shape: model soups, and points between two models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.errors import ModelError
from trainer.model.processor import Processor, load_processor
from trainer.model.whisper import load_model

if TYPE_CHECKING:
    import torch
    from transformers import WhisperForConditionalGeneration


def load_mean(
    config: TrainConfig, models: Iterable[tuple[str, float]]
) -> tuple[WhisperForConditionalGeneration, Processor]:
    """The weighted mean of models that are loaded one at a time, with the processor of the first one.

    With equal shares it is a uniform soup (Wortsman et al. 2022, arXiv:2203.05482; of fine-tuned Whispers:
    arXiv:2505.20477), with a base model and one tuned from it a point between them (WiSE-FT, Wortsman et al. 2022,
    arXiv:2109.01903). It decodes as the last one: of a base model and one tuned from it that is the latter, which may
    write more signs.

    Args:
        config: with which they were tuned: `model` is replaced by each of them.
        models: hub ids or folders, at least one, each with its share, a positive number; a folder is read before the
            next one is asked for. Two models are in memory at a time, and the sum.

    Raises:
        ModelError: one of them cannot be loaded, they have not the same weights, or some weight is no finite number.
    """
    import torch

    mean = processor = generation = None
    sums: dict[str, torch.Tensor] = {}
    total = 0.0
    with torch.no_grad():
        for name, share in models:
            own = config.replace(model=name)
            processor = processor or load_processor(own)
            model = load_model(own, processor)
            generation = model.generation_config
            weights = dict(model.named_parameters())  # tied ones once
            _check(weights, sums or weights)
            if mean is None:
                mean, sums = model, {key: weight.detach() * share for key, weight in weights.items()}
            else:
                for key, weight in weights.items():
                    sums[key].add_(weight.detach(), alpha=share)
            total += share
        assert mean is not None and processor is not None
        for key, weight in mean.named_parameters():
            weight.copy_(sums.pop(key) / total)
    mean.generation_config = generation
    return mean, processor


def _check(weights: Mapping[str, torch.Tensor], first: Mapping[str, torch.Tensor]) -> None:
    if weights.keys() != first.keys():
        name = min(weights.keys() ^ first.keys())
        raise ModelError(f"models of different shapes cannot be averaged: not all of them have {name}")
    for name, weight in weights.items():
        if weight.shape != first[name].shape:
            raise ModelError(
                f"models of different shapes cannot be averaged: {name} is {tuple(first[name].shape)} in one "
                f"and {tuple(weight.shape)} in another"
            )
        if not bool(weight.isfinite().all()):
            raise ModelError(f"a model cannot be averaged: {name} has values that are not finite")
