"""Checkpoints that are written while the training goes on, and what is kept of an evaluation."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainer.config import TrainConfig
from trainer.errors import DiskFullError
from trainer.report import Decision, Kept, ignore
from trainer.train import train
from trainer.training import saving
from trainer.training.checkpoints import problem_of, seal
from trainer.training.saving import ReportingKeeper, SavingTrainer


class Keeper:
    """Keeps checkpoints in a folder, in the background, as it is told."""

    in_background = True

    def __init__(self, folder: Path, *keeps: Kept | None) -> None:
        """`keeps` are those of the evaluations in turn; without them all of each is kept."""
        self.folder, self.keeps = folder, keeps
        self.rows: list[Mapping[str, float]] = []
        self.saved: dict[int, Path] = {}
        self.threads: list[str] = []

    def decide(self, metrics: Mapping[str, float]) -> Decision:
        self.rows.append(dict(metrics))
        keep = self.keeps[len(self.rows) - 1] if self.keeps else "all"
        last = len(self.rows) == len(self.keeps) if self.keeps else bool(metrics["finished"])
        return Decision(goes_on=not last, keep=keep)

    def begin(self, samples_seen: int, step: int) -> Path:
        return self.folder / f"writing-{step}"

    def hand_over(self, folder: Path) -> Mapping[str, Mapping[str, int]]:
        return {}

    def complete(
        self, folder: Path, taken: Any, metrics: Mapping[str, float], keep: Kept, pause: float
    ) -> bool | None:
        self.threads.append(threading.current_thread().name)
        seal(folder)
        self.saved[int(metrics["step"])] = folder.rename(self.folder / f"step-{metrics['step']:.0f}")
        return None


@pytest.fixture
def config(small_config: TrainConfig) -> TrainConfig:
    """8 steps, evaluations after 2, 4, 6 and 8."""
    return small_config.replace(
        max_train_clips=32, max_eval_clips=2, epochs=2.0, train_batch_size=4, gradient_accumulation_steps=2
    ).replace(dropout=0.2, evaluations=4, generation_max_length=8)


def assert_same(one: Path, other: Path) -> None:
    """The same weights, moments and states, and the same files that tell of the model."""
    weights, expected = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        assert torch.equal(value, expected[name]), name
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        found, wanted = (torch.load(path / name, weights_only=False) for path in (one, other))
        assert str(found) == str(wanted), name
    # What the stock trainer alone writes and nothing reads; what tells sizes and times.
    passing = {"training_args.bin", "manifest.json", "trainer_state.json"}
    names = {path.name for path in other.iterdir()} - passing
    assert {path.name for path in one.iterdir()} - passing == names
    for name in names:
        if name.endswith(".json"):
            assert (one / name).read_text() == (other / name).read_text(), name


def test_what_is_written_meanwhile_is_what_is_written_at_once(config: TrainConfig, tmp_path: Path) -> None:
    at_once = train(config, output_dir=tmp_path / "at-once")
    keeper = Keeper(tmp_path)
    train(config, keeper=keeper)
    assert keeper.threads == ["checkpoint-saver"] * 3 + ["MainThread"], (
        "the last one has nothing to hide behind"
    )
    assert at_once.checkpoint is not None
    for step, folder in keeper.saved.items():
        assert problem_of(folder) is None
        assert_same(folder, at_once.checkpoint.parent / f"checkpoint-{step}")


def test_the_training_goes_on_meanwhile_and_the_next_save_waits(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, seen = SavingTrainer.writer_of_copies, []

    def slow(self: SavingTrainer, folder: Path, keep: Kept) -> Callable[[], None]:
        write = writer(self, folder, keep)

        def later() -> None:
            first = self.state.global_step
            deadline = time.monotonic() + 60
            while self.state.global_step == first and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append((first, self.state.global_step))
            write()

        return later

    monkeypatch.setattr(SavingTrainer, "writer_of_copies", slow)
    keeper = Keeper(tmp_path)
    train(config, keeper=keeper)
    assert [first for first, _ in seen] == [2, 4, 6]
    assert all(first < now <= first + 2 for first, now in seen), seen
    assert sorted(keeper.saved) == [2, 4, 6, 8]
    resumed = Keeper(tmp_path / "again")
    resumed.folder.mkdir()
    train(config, keeper=resumed, resume_from=keeper.saved[4])
    assert_same(resumed.saved[6], keeper.saved[6])


def test_only_what_is_asked_for_is_kept(config: TrainConfig, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, "all", None, "errors", "weights")
    result = train(config.replace(evaluations=5, epochs=2.5), keeper=keeper)
    assert (result.steps, len(keeper.rows)) == (8, 4), "a decision ends the training"
    assert sorted(keeper.saved) == [2, 6, 8]
    names = {step: {path.name for path in folder.iterdir()} for step, folder in keeper.saved.items()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names[2]
    assert names[6] == {"manifest.json", "train_config.json", "utterances.json"}
    assert {"model.safetensors", "config.json", "tokenizer.json", "utterances.json"} <= names[8]
    assert not {"optimizer.pt", "scheduler.pt", "rng_state.pth"} & names[8]


def test_without_memory_for_a_copy_it_is_written_at_once(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "free_memory", lambda: 100 * 2**20)
    keeper = Keeper(tmp_path)
    train(config, keeper=keeper)
    assert set(keeper.threads) == {"MainThread"}


def test_a_save_that_fails_ends_the_training_and_leaves_nothing(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Keeper, folder: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Keeper, "complete", full)
    keeper = Keeper(tmp_path)
    with pytest.raises(DiskFullError, match="the disk is full"):
        train(config, keeper=keeper)
    assert len(keeper.rows) < 3, "it did not train to its end"
    assert not list(tmp_path.glob("writing-*"))


def test_what_a_killed_process_left_of_a_save_takes_no_room_from_the_next(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "has_room", lambda folder, needed: not folder.exists())
    keeper = Keeper(tmp_path, "weights")
    keeper.begin(8, 2).mkdir()
    (keeper.begin(8, 2) / "half").write_text("x")
    train(config, keeper=keeper)
    assert not (keeper.saved[2] / "half").exists()


@pytest.mark.parametrize("keep", [True, False])
def test_what_other_nodes_wrote_for_a_report_is_known_or_gone_there(keep: bool, tmp_path: Path) -> None:
    """`complete` is called in the first process alone."""
    other = ReportingKeeper(ignore, tmp_path, keep=keep)
    folders = []
    for step in (2, 4):
        folders.append(other.begin(8 * step, step))
        folders[-1].mkdir()
        other.hand_over(folders[-1])
    assert [folder.exists() for folder in folders] == [keep, True]
    assert other.checkpoints == (dict(zip((2, 4), folders, strict=True)) if keep else {})


def test_an_error_of_the_training_is_told_and_the_last_save_completed(
    config: TrainConfig, tmp_path: Path
) -> None:
    class Breaking(Keeper):
        def decide(self, metrics: Mapping[str, float]) -> Decision:
            if len(self.rows) == 1:
                raise RuntimeError("the driver is gone")
            return super().decide(metrics)

    keeper = Breaking(tmp_path)
    with pytest.raises(RuntimeError, match="the driver is gone"):
        train(config, keeper=keeper)
    assert problem_of(keeper.saved[2]) is None
