"""What a training knows of who watches it, and of who keeps its checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

Kept = Literal["all", "weights", "errors"]
"""What is saved of an evaluation: all that going on needs; the model; or only settings and errors by clip."""
Order = Literal["save", "end"]
"""What a training can be asked to do between two evaluations: save where it is and go on, or save and end."""
FIGURES = ("loss", "learning_rate", "grad_norm")
"""What a training reports between two evaluations, beside its position."""


class Report(Protocol):
    """Receives what training measures.

    With a checkpoint folder it is an evaluation: those of `objectives.RATES` that are known (percent), `eval_loss`,
    `samples_seen`, `step`, `epoch`, `finished` (1 at the end of the budget), the last `FIGURES`,
    `train_seconds` and `train_samples`. Before the end the model is the mean of the weights so far (see
    `weight_average`), in the folder as well. The folder is complete and sealed (see `checkpoints`) and may be copied or
    read before the call returns. With several workers the first one calls it, once all have written their part.

    `train_samples` / `train_seconds` is the speed of the training alone, in samples a second: the wall time of the
    steps that this process has taken, and the samples that all workers trained in it. Both begin after the process'
    first step, which warms up, and so anew where a training is resumed, and are 0 until there is a second one;
    evaluations, checkpoints and what is done in this call are not counted. The first worker's count.

    Without a folder it is progress: `FIGURES` and the position, from the first worker only; or, as the last one,
    `diverged` (1) and the position where the loss is no finite number any more.
    """

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None: ...


def ignore(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    """A `Report` that does nothing."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What follows an evaluation."""

    goes_on: bool
    keep: Kept | None
    """What is saved of it; None for nothing."""


class CheckpointStore(Protocol):
    """Decides on evaluations, and knows where checkpoints go. Each process of a training has one."""

    def order(self) -> Order | None:
        """What the training is asked to do now, each order once.

        Called in the first process alone, after steps; it does not wait.
        """

    def decide(self, metrics: Mapping[str, float]) -> Decision:
        """What follows an evaluation, whose figures are those of a `Report`; called in the first process alone."""

    def begin(self, samples_seen: int, step: int) -> Path:
        """The folder, the same for all processes of a node, into which this one writes its part of a checkpoint."""

    def hand_over(self, folder: Path) -> Mapping[str, Mapping[str, int]]:
        """Take what a node wrote, in one process of it, where that stays out of the folder's final place.

        Returns:
            what the manifest shall say of each file that was taken.
        """

    def complete(
        self, folder: Path, taken: Mapping[str, Mapping[str, int]], metrics: Mapping[str, float], keep: Kept
    ) -> None:
        """Seal a checkpoint, in the first process, once all have handed over.

        Args:
            folder: what this node wrote.
            taken: what all nodes handed over.
            metrics: of the evaluation; of what was saved between two the position alone.
            keep: what of it the folder holds.
        """
