"""What tests of space files have in common."""

from __future__ import annotations

from collections.abc import Callable

from tune.space.space import SearchSpace

LR = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
Load = Callable[..., SearchSpace]
