"""Where a trial's checkpoints go: once, straight to the experiment's storage; the driver learns of complete ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trainer.training.report import Decision, Kept, Order
from tune.cluster.progress_channel import Driver
from tune.experiments.checkpoint_files import CheckpointFiles


class TrialCheckpointStore:
    """Keeps what the driver asks for of each evaluation of a trial, and tells it of checkpoints that are complete.

    In a folder a checkpoint is written beside its final path and then renamed. To an object store go its files, and
    last the manifest. What a killed process leaves of one has no name that the log knows.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        driver: Driver,
        folder: str,
        decide: Callable[[Mapping[str, float]], Decision],
    ) -> None:
        self._files, self._driver, self._folder = files, driver, folder  # of the trial, within the experiment
        self.decide = decide
        self._name = ""

    def order(self) -> Order | None:
        return self._driver.order()

    def begin(self, samples_seen: int, step: int) -> Path:
        """Beside its place, or in a private folder for what goes to an object store."""
        self._name = self._files.name(self._folder, samples_seen)
        return self._files.place(self._name)

    def hand_over(self, folder: Path) -> Mapping[str, Mapping[str, int]]:
        """Upload what is not in a folder that all see."""
        return self._files.upload(folder, self._name)

    def complete(
        self,
        folder: Path,
        taken: Mapping[str, Mapping[str, int]],
        metrics: Mapping[str, float],
        keep: Kept,
    ) -> None:
        self._files.complete(folder, self._name, taken)
        self._driver.saved(self._name, int(metrics["samples_seen"]), float(metrics["epoch"]), keep)
