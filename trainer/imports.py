"""The imports of a training, without what it never calls: a quarter of its process's start."""

from __future__ import annotations

import importlib
import sys

from trainer.deepspeed import only_where_imported


def import_trainer() -> None:
    """Import all that a training needs, with SciPy and boto3 as if they were not installed, unless they are imported.

    transformers' losses for object detection import SciPy's optimisers, evaluate its statistics, and accelerate asks
    boto3 for SageMaker (transformers 5.23, evaluate 0.4, accelerate 1.15).
    """
    from transformers import utils

    hidden = [name for name in ("scipy", "boto3") if name not in sys.modules]
    is_available = utils.is_scipy_available
    if "scipy" in hidden:
        utils.is_scipy_available = lambda: False
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's sign for what cannot be imported
    try:
        for name in ("trainer.training.callbacks", "trainer.training.whisper_trainer"):
            importlib.import_module(name)
    finally:
        utils.is_scipy_available = is_available
        for name in hidden:
            del sys.modules[name]
    only_where_imported()
