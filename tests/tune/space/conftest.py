"""Space files as tests write and load them."""

from pathlib import Path
from typing import Any

import pytest
from plans import Load

from tune.space.space import SearchSpace, load_space


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes a space file, always `s.yaml`, and loads it."""

    def write_and_load(text: str, overrides: dict[str, Any] | None = None) -> SearchSpace:
        path = tmp_path / "s.yaml"
        path.write_text(text, encoding="utf-8")
        return load_space(str(path), overrides)

    return write_and_load
