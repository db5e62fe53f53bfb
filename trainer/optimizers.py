"""Which settings belong to which method and optimiser; what an optimiser needs installed, and keeps of each weight.

Nothing heavy is imported here: settings are checked before anything starts.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

ADAM_SETTINGS = ("adam_beta1", "adam_beta2", "adam_epsilon")
"""Settings that only `WITH_ADAM` take."""
WITH_ADAM = ("adamw", "adamw_8bit")
LORA_SETTINGS = ("lora_rank", "lora_alpha", "lora_scaling", "lora_dropout", "lora_targets")
WITH_METHOD = {**dict.fromkeys(LORA_SETTINGS, ("lora",)), "freeze_encoder_layers": ("full", "lora")}
"""Settings that do nothing but with these methods."""
_BLOCK = 256
"""Values of a moment that bitsandbytes scales together; each block has a float32 of its own."""
_LEAST_8BIT = 4096
"""Weights with fewer values keep float32 moments, as embeddings do."""


def notes_on_methods(
    given: Mapping[str, Any], usual: Mapping[str, Any], methods: Collection[str]
) -> list[str]:
    idle = [
        name
        for name, able in WITH_METHOD.items()
        if given[name] != usual[name] and not set(able) & set(methods)
    ]
    does = "do nothing" if len(idle) > 1 else "does nothing"
    return [f"note: {', '.join(idle)} {does} with method: {' or '.join(methods)}"] if idle else []


def extra_of(optimizer: str) -> str | None:
    """Our extra (`tune-whisper[8bit]`) that brings what the optimiser needs; None where it needs nothing else."""
    return "8bit" if optimizer == "adamw_8bit" else None


def check_installed(optimizer: str) -> None:
    """Raise `ConfigError` where the optimiser's package is not installed."""
    if (extra := extra_of(optimizer)) and importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"optimizer={optimizer!r}: bitsandbytes is not installed; pip install 'tune-whisper[{extra}]', or take "
            "adamw or adafactor"
        )


def optimizer_bytes(optimizer: str, model: nn.Module) -> int:
    """What an optimiser keeps of all weights of `model` that are trained. Shapes are enough: it may be on `meta`.

    AdamW keeps two float32 moments; its 8-bit form (arXiv:2110.02861) the same in a byte each, with a scale for each
    block; Adafactor (arXiv:1804.04235), here without a first moment, means of the squared gradient over rows and
    columns, of vectors all of them.
    """
    from torch import nn

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    total = 0
    for weight in model.parameters():
        shape, count = weight.shape, math.prod(weight.shape)
        if not weight.requires_grad:
            continue
        if optimizer == "adafactor":
            total += 4 * (count // shape[-1] + count // shape[-2] if len(shape) > 1 else count)
        elif optimizer == "adamw_8bit" and count >= _LEAST_8BIT and id(weight) not in embeddings:
            total += 2 * (count + 4 * math.ceil(count / _BLOCK))
        else:
            total += 8 * count
    return total
