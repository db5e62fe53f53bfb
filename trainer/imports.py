"""The imports of a training, without what it never calls: a quarter of its process's start."""

from __future__ import annotations

import importlib
import sys

from trainer.deepspeed import only_where_imported


def import_trainer() -> None:
    """Import all that a training needs, as if SciPy and boto3 were not installed.

    transformers' losses for object detection import SciPy's optimisers, and accelerate asks boto3 for SageMaker
    (transformers 5.23, accelerate 1.15).
    """
    from transformers import utils

    is_available, hidden = utils.is_scipy_available, "boto3" not in sys.modules
    utils.is_scipy_available = lambda: False
    if hidden:
        sys.modules["boto3"] = None  # type: ignore[assignment]  # Python's sign for what cannot be imported
    try:
        for name in ("trainer.training.callbacks", "trainer.training.whisper_trainer"):
            importlib.import_module(name)
    finally:
        utils.is_scipy_available = is_available
        if hidden:
            del sys.modules["boto3"]
    only_where_imported()
