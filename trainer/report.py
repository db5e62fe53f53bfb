"""All that training knows of who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """Receives what training measures.

    With a checkpoint folder it is an evaluation: `wer`, `cer`, `wer_orthographic`, `cer_orthographic` (percent),
    `eval_loss`, `samples_seen`, `step`, `epoch`, `finished` (1 at the end of the budget) and the last training
    figures. The folder may be copied or read before the call returns. Without a folder it is progress: `loss`,
    `learning_rate`, `grad_norm` and the position.
    """

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None: ...


def ignore(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    """A `Report` that does nothing."""
