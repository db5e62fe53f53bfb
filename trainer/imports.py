"""The imports of a training, without what it never calls: a quarter of its process's start."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from unittest import mock

from trainer.deepspeed import only_where_imported

UNUSED = ("scipy", "boto3")
"""transformers' losses for object detection import SciPy's optimisers, and accelerate asks boto3 for SageMaker, both
wherever they are installed (transformers 5.23, accelerate 1.15)."""


def import_trainer() -> None:
    """Import all that a training needs."""
    with _without_unused():
        for name in ("trainer.training.callbacks", "trainer.training.whisper_trainer"):
            importlib.import_module(name)
        only_where_imported()


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """What is imported meanwhile takes these packages as not installed, but for those that are imported already."""
    from transformers import utils

    hidden = [name for name in UNUSED if name not in sys.modules]
    with contextlib.ExitStack() as stack:
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]  # Python's sign for what cannot be imported
            stack.callback(sys.modules.pop, name)
        if "scipy" in hidden:
            stack.enter_context(mock.patch.object(utils, "is_scipy_available", lambda: False))
        yield
