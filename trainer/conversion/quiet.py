"""Keeping libraries from telling the user what only their own developers can mend."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def quiet_libraries() -> None:
    """No bars of a second's length for every loading, and no warning that there is no GPU."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed, where it is installed, warns of it


@contextlib.contextmanager
def only_errors() -> Iterator[None]:
    """Without transformers' warnings of arguments that its `generate` for Whisper passes to itself (5.23)."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
