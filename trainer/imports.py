"""The imports of a training, without what it never calls: a quarter of its process's start."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from trainer.deepspeed import only_where_imported


@contextlib.contextmanager
def hidden(*names: str) -> Iterator[frozenset[str]]:
    """Those of the modules that are not imported yet are, within the block, as if they were not installed."""
    found = frozenset(name for name in names if name not in sys.modules)
    for name in found:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's sign for what cannot be imported
    try:
        yield found
    finally:
        for name in found:
            del sys.modules[name]


def import_trainer() -> None:
    """Import all that a training needs, with SciPy, boto3 and PEFT as if they were not installed, unless they are
    imported.

    transformers' losses for object detection import SciPy's optimisers, evaluate its statistics, and accelerate asks
    boto3 for SageMaker; transformers' trainer imports PEFT, whose adapters are ours to save and load, only to ask
    whether a model is one of its wrappers (transformers 5.23, evaluate 0.4, accelerate 1.15).
    """
    from transformers import utils

    asked = {"scipy": "is_scipy_available", "peft": "is_peft_available"}
    kept = {name: getattr(utils, name) for name in asked.values()}
    with hidden("boto3", *asked) as found:
        for package, name in asked.items():
            if package in found:
                setattr(utils, name, lambda: False)
        try:
            for module in ("trainer.training.callbacks", "trainer.training.whisper_trainer"):
                importlib.import_module(module)
        finally:
            for name, known in kept.items():
                setattr(utils, name, known)
    only_where_imported()
