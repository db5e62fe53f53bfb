"""JSON objects of model folders; and, from the training, files that are whole at any time, and their locks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.files import is_locked, take_lock, try_lock, write_whole
from tune.util.errors import ModelError, first_line

__all__ = ["is_locked", "read_object", "take_lock", "try_lock", "write_whole"]


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model's folder; empty where there is no such file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return content
