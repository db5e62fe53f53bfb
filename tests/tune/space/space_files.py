"""Space files as tests write and load them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tune.space.space import SearchSpace, load_space

LR = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"

Load = Callable[..., SearchSpace]


def space_loader(folder: Path) -> Load:
    """What writes a space file, always `s.yaml`, and loads it."""

    def write_and_load(text: str, overrides: dict[str, Any] | None = None) -> SearchSpace:
        path = folder / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return load_space(str(path), overrides)

    return write_and_load
