"""Nothing is lost unseen: sealed checkpoints, what is wrong with broken ones, and disks that are full."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_disks import mounted
from training import train

from trainer.config import TrainConfig
from trainer.conversion.hugging_face import write_model
from trainer.data.prepared import prepare
from trainer.errors import CheckpointError, DiskFullError
from trainer.manifest import problem_of, seal
from trainer.train import evaluate
from trainer.training import saving
from trainer.training.checkpoints import (
    check_resumable,
    estimated_checkpoint_bytes,
    full_disk_errors,
    is_only_for_resume,
)
from trainer.training.report import Decision, Kept, Order
from trainer.training.whisper_trainer import WhisperTrainer


@pytest.fixture(scope="module")
def short(small_config: TrainConfig) -> TrainConfig:
    return small_config.replace(
        max_train_clips=16, max_eval_clips=6, train_batch_size=4, max_steps=2, evaluations=1
    )


@pytest.fixture(scope="module")
def trained(short: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A checkpoint, and what was reported with it; it was whole by then."""
    rows: list[dict[str, float]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is not None:
            assert problem_of(checkpoint_dir) is None
            check_resumable(checkpoint_dir)
            rows.append(dict(metrics))

    folder = train(short, report, output_dir=tmp_path_factory.mktemp("trained")).checkpoint
    return folder, rows[-1]


@pytest.fixture
def checkpoint(trained: tuple[Path, dict[str, float]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "checkpoint"))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)
        file.seek(at)
        file.write(bytes([old[0] ^ 1]))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda c: os.truncate(c / "optimizer.pt", 10), r"optimizer.pt has 10 of [\d,]+ bytes"),
    "gone": (lambda c: (c / "config.json").unlink(), "config.json is missing"),
    "flipped": (lambda c: flip(c / "model.safetensors", 2_000_000), "model.safetensors is damaged"),
    "unsealed": (lambda c: (c / "manifest.json").unlink(), "manifest.json is missing"),
    "no manifest": (lambda c: (c / "manifest.json").write_text('{"files": []}'), "manifest.json is damaged"),
    "nothing": (shutil.rmtree, "the folder is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_in_one_line(checkpoint: Path, short: TrainConfig, damage: str) -> None:
    do, expected = DAMAGES[damage]
    do(checkpoint)
    with pytest.raises(
        CheckpointError, match=f"checkpoint {checkpoint}: {expected}[^\n]*; training cannot go on"
    ):
        train(short, resume_from=checkpoint)


def test_large_files_are_checked_at_both_ends(tmp_path: Path) -> None:
    large = tmp_path / "model.safetensors"
    with large.open("wb") as file:
        file.truncate(65 * 2**20)
    seal(tmp_path)
    assert problem_of(tmp_path) is None
    for at in (5, 65 * 2**20 - 5):
        flip(large, at)
        assert "checksum" in (problem_of(tmp_path) or "")
        flip(large, at)
    assert problem_of(tmp_path) is None


def test_all_is_on_the_disk_before_the_manifest_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses its power would else come back with a whole manifest of files that are not whole.

    Some stores cannot flush a folder.
    """
    (tmp_path / "global_step4" / "deep").mkdir(parents=True)
    names = ["model.safetensors", "global_step4/optim_states.pt", "global_step4/deep/part", "empty"]
    for name in names:
        (tmp_path / name).write_bytes(b"" if name == "empty" else b"content")
    flushed: list[tuple[str, bool]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((path.relative_to(tmp_path).as_posix(), (tmp_path / "manifest.json").exists()))
        if path.is_dir():
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    seal(tmp_path)
    before = [name for name, named in flushed if not named]
    assert {*before} == {*names, "global_step4", "global_step4/deep", ".", ".manifest.json.partial"}
    assert [name for name, named in flushed if named] == ["."]
    assert problem_of(tmp_path) is None


def test_export_needs_no_file_that_only_resuming_does(checkpoint: Path, short: TrainConfig) -> None:
    (checkpoint / "evaluations.json").write_text("[]")
    assert problem_of(checkpoint) is None  # files that came later do not count
    files = [path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()]
    dropped = {name for name in files if is_only_for_resume(name)}
    assert dropped == {
        *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"),
    }
    for name in dropped:
        (checkpoint / name).unlink()
    assert problem_of(checkpoint) is not None
    seal(checkpoint)
    assert problem_of(checkpoint) is None
    with pytest.raises(CheckpointError, match="export only"):
        train(short, resume_from=checkpoint)
    write_model(short, checkpoint, checkpoint / "exported")
    assert (checkpoint / "exported" / "model.safetensors").is_file()


def test_what_only_resuming_needs_of_deepspeeds_files() -> None:
    engine = ("global_step12/mp_rank_00_model_states.pt", "latest", "zero_to_fp32.py", "rng_state_3.pth")
    assert all(map(is_only_for_resume, (*engine, "weight_average.safetensors")))
    assert not any(map(is_only_for_resume, ("model-00001-of-00002.safetensors", "utterances.json")))


def test_errors_of_each_clip_are_those_of_the_wer(trained: tuple[Path, dict[str, float]]) -> None:
    folder, row = trained
    found = json.loads((folder / "utterances.json").read_text())
    assert found.pop("worst_of") == 1
    assert [len(texts) for texts in found.pop("texts")] == [3] * 6
    assert {len(found["word_errors"]), len(found["words"])} == {6}
    assert all(type(count) is int for counts in found.values() for count in counts)
    assert 100 * sum(found["word_errors"]) / sum(found["words"]) == row["wer"]


STEP, EVALUATION, SAVE, REPORT, BEFORE = 2.0, 100.0, 1e3, 1e4, 1e5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """It only goes on where something is done that takes long."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("trainer.training.callbacks.time", SimpleNamespace(monotonic=lambda: clock.now))

    def slow_down(name: str, seconds: float) -> None:
        work = getattr(WhisperTrainer, name)

        def slower(*args: Any, **kwargs: Any) -> Any:
            clock.now += seconds
            return work(*args, **kwargs)

        monkeypatch.setattr(WhisperTrainer, name, slower)

    seconds = {"training_step": STEP, "evaluate": EVALUATION, "_save_checkpoint": SAVE}
    for name, each in {**seconds, "get_train_dataloader": BEFORE}.items():
        slow_down(name, each)
    return clock


def test_only_training_after_the_first_step_is_counted(
    small_config: TrainConfig, tmp_path: Path, clock: SimpleNamespace
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

    def complete(self, folder: Path, taken: Any, metrics: Mapping[str, float], keep: Kept) -> None:
        seal(folder)
        self.saved[int(metrics["step"])] = folder.rename(self.folder / f"step-{metrics['step']:.0f}")


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
    assert not {"optimizer.pt", "scheduler.pt", "rng_state.pth", "weight_average.safetensors"} & names[8]


def test_a_checkpoint_between_evaluations_is_one_to_go_on_from(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(epochs=1.0, evaluations=2, log_every_seconds=0.0)
    stores = [KeptFolders(tmp_path / name) for name in ("unbroken", "ended", "resumed")]
    for kept in stores:
        kept.folder.mkdir()
    unbroken, ended, resumed = stores
    train(config, store=unbroken)
    ended.orders = ["save", "end"]
    assert train(config, store=ended).steps == 3
    assert sorted(ended.saved) == [1, 2, 3] and len(ended.rows) == 1
    train(config, store=resumed, resume_from=ended.saved[1])
    assert sorted(resumed.saved) == sorted(unbroken.saved) == [2, 4]
    for step in (2, 4):
        files = [kept.saved[step] / "model.safetensors" for kept in (unbroken, resumed)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert resumed.rows[-1]["wer"] == unbroken.rows[-1]["wer"]


def test_the_mean_of_the_weights_is_measured_until_the_last_step(config: TrainConfig, tmp_path: Path) -> None:
    """A step counts in proportion to its number."""
    kept = KeptFolders(tmp_path)
    train(config.replace(epochs=1.0, evaluations=4), store=kept)
    models, lasts = (
        [load_file(folder / name) for folder in kept.saved.values() if (folder / name).is_file()]
        for name in ("model.safetensors", "weight_average.safetensors")
    )
    assert (len(models), len(lasts)) == (4, 3)
    for step in (1, 2, 3):
        for name in lasts[step - 1]:
            mean = sum(number * lasts[number - 1][name] for number in range(1, step + 1))
            assert torch.allclose(models[step - 1][name], mean / sum(range(step + 1)), atol=1e-6), (
                step,
                name,
            )
    apart = [name for name in lasts[2] if not torch.equal(lasts[2][name], models[2][name])]
    assert len(apart) > len(lasts[2]) / 2
    for row, folder in zip(kept.rows, kept.saved.values(), strict=True):
        measured = evaluate(config.replace(model=str(folder)), data=prepare(config), as_in_training=True)
        assert measured.rates["loss"] == pytest.approx(row["eval_loss"], rel=1e-6)


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
    sizes = {}
    for optimizer in ("adamw", "adafactor"):
        config = one_step.replace(optimizer=optimizer, max_steps=2, evaluations=2)
        train(config, output_dir=tmp_path / optimizer)
        folder = tmp_path / optimizer / "checkpoint-1"  # the last one has no mean of the weights
        sizes[optimizer] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert 0 <= estimated_checkpoint_bytes(config) - sizes[optimizer] <= 17e6
    assert sizes["adafactor"] < sizes["adamw"] * 0.6
    frozen = one_step.replace(method="decoder")
    assert estimated_checkpoint_bytes(frozen) < estimated_checkpoint_bytes(one_step)
    large = {"d_model": 1280, "vocab_size": 51866, "num_mel_bins": 128}
    for side in ("encoder", "decoder"):
        large |= {f"{side}_layers": 32, f"{side}_attention_heads": 20, f"{side}_ffn_dim": 5120}
    transformers.WhisperConfig(**large).save_pretrained(tmp_path)
    config = TrainConfig(model=str(tmp_path))
    assert estimated_checkpoint_bytes(config) == pytest.approx(16 * 1_543_490_560, rel=0.01)
    sharded = config.replace(deepspeed="ds_config.json")
    assert estimated_checkpoint_bytes(sharded) == pytest.approx(24 * 1_543_490_560, rel=0.01)
