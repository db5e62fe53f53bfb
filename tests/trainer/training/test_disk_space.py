"""Disks that are full, before a checkpoint is saved and in the middle of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from small_disks import mounted
from training import train

from trainer.config import TrainConfig
from trainer.errors import DiskFullError
from trainer.training.checkpoints import estimated_checkpoint_bytes, full_disk_errors


@pytest.fixture(scope="module")
def one_step(small_config: TrainConfig) -> TrainConfig:
    return small_config.replace(
        max_train_clips=16, max_eval_clips=2, train_batch_size=4, max_steps=1, evaluations=1
    )


@pytest.mark.parametrize(
    ("disk", "told"),
    [
        ("size=8m", r"0\.01 GB free, a checkpoint takes 0\.03 GB; make room"),  # before the save
        ("size=64m,nr_inodes=8", "the disk is full"),  # in the middle of it, behind the weights
    ],
)
def test_a_disk_that_is_full(one_step: TrainConfig, tmp_path: Path, disk: str, told: str) -> None:
    with mounted(tmp_path / "disk", disk) as folder:
        with pytest.raises(DiskFullError, match=f"{folder}.*{told}"):
            train(one_step, output_dir=folder)
        assert list(folder.iterdir()) == []


def write_tokenizer(tensor: Any, path: Path) -> None:
    """Its error has no class of its own."""
    words = {str(number): number for number in range(300_000)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0")).save(str(path))


WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "torch": torch.save,
    "safetensors": lambda tensor, path: save_file({"weights": tensor}, path),
    "tokenizers": write_tokenizer,
    "bytes": lambda tensor, path: path.write_bytes(tensor.numpy().tobytes()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_that_meets_a_full_disk(tmp_path: Path, writer: str) -> None:
    with mounted(tmp_path / "disk", "size=4m") as folder:
        target = folder / "checkpoint"
        target.mkdir()
        with pytest.raises(DiskFullError, match=r"takes 0\.02 GB"), full_disk_errors(target, 20_000_000):
            WRITERS[writer](torch.zeros(5_000_000), target / "weights")
        assert not target.exists()


def test_the_estimate_holds(one_step: TrainConfig, tmp_path: Path) -> None:
    folder = train(one_step, output_dir=tmp_path / "run").checkpoint
    real = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert real <= estimated_checkpoint_bytes(one_step) <= real + 17e6
    saving = one_step.replace(optimizer="adafactor", max_steps=1)
    small = train(saving, output_dir=tmp_path / "adafactor").checkpoint
    size = sum(path.stat().st_size for path in small.rglob("*") if path.is_file())
    assert size <= estimated_checkpoint_bytes(saving) <= size + 17e6
    assert size < real / 2
    frozen = one_step.replace(method="decoder")
    assert estimated_checkpoint_bytes(frozen) < estimated_checkpoint_bytes(one_step)
    large = {"d_model": 1280, "vocab_size": 51866, "num_mel_bins": 128}
    for side in ("encoder", "decoder"):
        large |= {f"{side}_layers": 32, f"{side}_attention_heads": 20, f"{side}_ffn_dim": 5120}
    transformers.WhisperConfig(**large).save_pretrained(tmp_path)
    config = TrainConfig(model=str(tmp_path))
    assert estimated_checkpoint_bytes(config) == pytest.approx(12 * 1_543_490_560, rel=0.01)
    sharded = config.replace(deepspeed="ds_config.json")
    assert estimated_checkpoint_bytes(sharded) == pytest.approx(20 * 1_543_490_560, rel=0.01)
