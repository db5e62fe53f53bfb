"""What is kept of an evaluation."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from training import train

from trainer.config import TrainConfig
from trainer.errors import DiskFullError
from trainer.manifest import seal
from trainer.training import saving
from trainer.training.report import Decision, Kept, Order


class KeptFolders:
    """Keeps checkpoints in a folder as it is asked to."""

    def __init__(self, folder: Path, *keeps: Kept | None) -> None:
        """`keeps` are those of the evaluations in turn; without them all of each is kept."""
        self.folder, self.keeps = folder, keeps
        self.rows: list[Mapping[str, float]] = []
        self.saved: dict[int, Path] = {}
        self.orders: list[Order | None] = []
        """After each step in turn."""

    def order(self) -> Order | None:
        return self.orders.pop(0) if self.orders else None

    def decide(self, metrics: Mapping[str, float]) -> Decision:
        self.rows.append(dict(metrics))
        keep = self.keeps[len(self.rows) - 1] if self.keeps else "all"
        last = len(self.rows) == len(self.keeps) if self.keeps else bool(metrics["finished"])
        return Decision(goes_on=not last, keep=keep)

    def begin(self, samples_seen: int, step: int) -> Path:
        return self.folder / f"writing-{step}"

    def hand_over(self, folder: Path) -> Mapping[str, Mapping[str, int]]:
        return {}

    def complete(self, folder: Path, taken: Any, metrics: Mapping[str, float], keep: Kept) -> bool | None:
        seal(folder)
        self.saved[int(metrics["step"])] = folder.rename(self.folder / f"step-{metrics['step']:.0f}")
        return None


@pytest.fixture
def config(small_config: TrainConfig) -> TrainConfig:
    """8 steps, evaluations after 2, 4, 6 and 8."""
    return small_config.replace(
        max_train_clips=32, max_eval_clips=2, epochs=2.0, train_batch_size=4, gradient_accumulation_steps=2
    ).replace(dropout=0.2, evaluations=4, generation_max_length=8)


def test_only_what_is_asked_for_is_kept(config: TrainConfig, tmp_path: Path) -> None:
    kept = KeptFolders(tmp_path, "all", None, "errors", "weights")
    result = train(config.replace(evaluations=5, epochs=2.5), store=kept)
    assert (result.steps, len(kept.rows)) == (8, 4), "a decision ends the training"
    assert sorted(kept.saved) == [2, 6, 8]
    names = {step: {path.name for path in folder.iterdir()} for step, folder in kept.saved.items()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names[2]
    assert names[6] == {"manifest.json", "train_config.json", "utterances.json"}
    assert {"model.safetensors", "config.json", "tokenizer.json", "utterances.json"} <= names[8]
    assert not {"optimizer.pt", "scheduler.pt", "rng_state.pth"} & names[8]


def test_a_checkpoint_between_evaluations_is_one_to_go_on_from(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(epochs=1.0, evaluations=1, log_every_seconds=0.0)
    stores = [KeptFolders(tmp_path / name) for name in ("unbroken", "ended", "resumed")]
    for kept in stores:
        kept.folder.mkdir()
    unbroken, ended, resumed = stores
    train(config, store=unbroken)
    ended.orders = ["save", "end"]
    assert train(config, store=ended).steps == 2
    assert sorted(ended.saved) == [1, 2] and not ended.rows
    train(config, store=resumed, resume_from=ended.saved[1])
    assert sorted(resumed.saved) == sorted(unbroken.saved) == [4]
    files = [kept.saved[4] / "model.safetensors" for kept in (unbroken, resumed)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_save_that_fails_ends_the_training_and_leaves_nothing(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: KeptFolders, folder: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KeptFolders, "complete", full)
    kept = KeptFolders(tmp_path)
    with pytest.raises(DiskFullError, match="the disk is full"):
        train(config, store=kept)
    assert len(kept.rows) < 3, "it did not train to its end"
    assert not list(tmp_path.glob("writing-*"))


def test_what_a_killed_process_left_of_a_save_takes_no_room_from_the_next(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "has_room", lambda folder, needed: not folder.exists())
    kept = KeptFolders(tmp_path, "weights")
    kept.begin(8, 2).mkdir()
    (kept.begin(8, 2) / "half").write_text("x")
    train(config, store=kept)
    assert not (kept.saved[2] / "half").exists()
