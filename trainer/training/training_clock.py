"""How fast a training trains: the wall time of its steps, and the samples trained in it."""

from __future__ import annotations

import time

import torch


class TrainingClock:
    """Runs while steps are taken, and stands still while the model is measured, saved and reported."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None
        self.seconds = 0.0
        """Wall time counted so far."""
        self.samples = 0
        """Samples trained in it, by all workers together."""

    @property
    def runs(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._since is not None

    def start(self, samples_seen: int) -> None:
        """Count from here on."""
        self._since = _now(), samples_seen

    def stop(self, samples_seen: int) -> None:
        """Count what came since the start, if there was one."""
        if self._since is not None:
            self.seconds += _now() - self._since[0]
            self.samples += samples_seen - self._since[1]
            self._since = None


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a GPU's steps are only queued
    return time.monotonic()
