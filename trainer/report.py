"""All that training knows of who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """Receives what training measures.

    With a checkpoint folder it is an evaluation: `wer`, `cer`, `wer_orthographic`, `cer_orthographic` (percent),
    `eval_loss`, `samples_seen`, `step`, `epoch`, `finished` (1 at the end of the budget) and the last training
    figures. The folder is complete and sealed (see `checkpoints`) and may be copied or read before the call
    returns. With several workers each of them calls it with the same figures once all have written their part of
    the folder; what they wrote on other machines is there.

    Without a folder it is progress: `loss`, `learning_rate`, `grad_norm` and the position, from the first worker
    only; or, as the last one, `diverged` (1) and the position where the loss is no finite number any more.

    Returns:
        True where the training shall end here, on all workers; what the first worker's call returns counts.
    """

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None: ...


def ignore(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    """A `Report` that does nothing."""
