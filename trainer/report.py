"""All that training knows of who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Report(Protocol):
    """Receives what training measures.

    With a checkpoint folder it is an evaluation: `wer`, `cer`, `wer_orthographic`, `cer_orthographic` (percent),
    `eval_loss`, `samples_seen`, `step`, `epoch`, `finished` (1 at the end of the budget), the last training figures,
    `train_seconds` and `train_samples`. The folder is complete and sealed (see `checkpoints`) and may be copied or
    read before the call returns. With several workers each of them calls it with the same figures (`train_seconds`
    but nearly) once all have written their part of the folder; what they wrote on other machines is there.

    `train_samples` / `train_seconds` is the speed of the training alone, in samples a second: the wall time of the
    steps that this process has taken, and the samples that all workers trained in it. Both begin after the process'
    first step, which warms up, and so anew where a training is resumed, and are 0 until there is a second one;
    evaluations, checkpoints and what is done in this call are not counted. The first worker's count.

    Without a folder it is progress: `loss`, `learning_rate`, `grad_norm` and the position, from the first worker
    only; or, as the last one, `diverged` (1) and the position where the loss is no finite number any more.

    Returns:
        True where the training shall end here, on all workers; what the first worker's call returns counts.
    """

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None: ...


def ignore(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    """A `Report` that does nothing."""
