"""`train_seconds` and `train_samples` of an evaluation: what training alone takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training import train

from trainer.config import TrainConfig
from trainer.training.whisper_trainer import WhisperTrainer

STEP, EVALUATION, SAVE, REPORT, BEFORE = 2.0, 100.0, 1e3, 1e4, 1e5


class Clock:
    """A clock that only goes on where something is done that takes long."""

    def __init__(self) -> None:
        self.now = 0.0

    def slow(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slower(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return work(*args, **kwargs)

        return slower


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("trainer.training.callbacks.time", SimpleNamespace(monotonic=lambda: clock.now))
    for name, seconds in {
        "training_step": STEP,
        "evaluate": EVALUATION,
        "_save_checkpoint": SAVE,
        "get_train_dataloader": BEFORE,
    }.items():
        monkeypatch.setattr(WhisperTrainer, name, clock.slow(getattr(WhisperTrainer, name), seconds))
    return clock


def test_only_training_after_the_first_step_is_counted(
    small_config: TrainConfig, tmp_path: Path, clock: Clock
) -> None:
    config = small_config.replace(
        max_steps=4, train_batch_size=4, evaluations=2, max_eval_clips=1, log_every_seconds=0.0
    )
    found: list[tuple[float, float, float]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is None:
            assert "train_seconds" not in metrics
            return
        clock.now += REPORT
        found.append((metrics["step"], metrics["train_seconds"], metrics["train_samples"]))
        if metrics["step"] == 2:
            shutil.copytree(checkpoint_dir, tmp_path / "kept", dirs_exist_ok=True)

    train(config, report)
    assert found == [(2, STEP, 4), (4, 3 * STEP, 12)]
    found.clear()
    train(config, report, resume_from=tmp_path / "kept")
    assert found == [(4, STEP, 4)]
