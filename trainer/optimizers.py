"""The optimisers that can be chosen: what each needs installed, which settings it takes, what it keeps of each weight.

Nothing heavy is imported here: settings are checked before anything starts.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

ADAM_SETTINGS = ("adam_beta1", "adam_beta2", "adam_epsilon")
"""Settings that only `WITH_ADAM` take."""
WITH_ADAM = ("adamw", "adamw_8bit")
_PACKAGES = {"adamw_8bit": ("bitsandbytes", "8bit")}
"""What must be installed beside our own requirements, and our extra that brings it."""
_BLOCK = 256
"""Values of a moment that bitsandbytes scales together; each block has a float32 of its own."""
_LEAST_8BIT = 4096
"""Weights with fewer values keep float32 moments, as embeddings do."""


def extra_of(optimizer: str) -> str | None:
    """Our extra (`tune-whisper[8bit]`) that brings what the optimiser needs; None where it needs nothing else."""
    return _PACKAGES[optimizer][1] if optimizer in _PACKAGES else None


def check_installed(optimizer: str) -> None:
    """Raise `ConfigError` where the optimiser's package is not installed."""
    if optimizer not in _PACKAGES:
        return
    package, extra = _PACKAGES[optimizer]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"optimizer={optimizer!r}: {package} is not installed; pip install 'tune-whisper[{extra}]', or take "
            "adamw or adafactor"
        )


def state_bytes(optimizer: str, shape: Sequence[int], *, embedding: bool = False) -> int:
    """What an optimiser keeps of one weight of this shape.

    AdamW keeps two float32 moments; its 8-bit form (arXiv:2110.02861) the same in a byte each, with a scale for each
    block; Adafactor (arXiv:1804.04235), here without a first moment, means of the squared gradient over rows and
    columns, of vectors all of them.
    """
    count = math.prod(shape)
    if optimizer == "adafactor":
        return 4 * (count // shape[-1] + count // shape[-2] if len(shape) > 1 else count)
    if optimizer == "adamw_8bit" and count >= _LEAST_8BIT and not embedding:
        return 2 * (count + 4 * math.ceil(count / _BLOCK))
    return 8 * count


def optimizer_bytes(optimizer: str, model: nn.Module) -> int:
    """What an optimiser keeps of all weights of `model` that are trained. Shapes are enough: it may be on `meta`."""
    from torch import nn

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return sum(
        state_bytes(optimizer, weight.shape, embedding=id(weight) in embeddings)
        for weight in model.parameters()
        if weight.requires_grad
    )
