"""Nothing is lost unseen: sealed checkpoints, and what is wrong with broken ones."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from training import train

from trainer.config import TrainConfig
from trainer.conversion.hugging_face import write_model
from trainer.errors import CheckpointError
from trainer.manifest import problem_of, seal
from trainer.training.checkpoints import check_resumable, is_only_for_resume


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
    assert folder is not None
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
    assert all(map(is_only_for_resume, engine))
    assert not any(map(is_only_for_resume, ("model-00001-of-00002.safetensors", "utterances.json")))


def test_errors_of_each_clip_are_those_of_the_wer(trained: tuple[Path, dict[str, float]]) -> None:
    folder, row = trained
    found = json.loads((folder / "utterances.json").read_text())
    assert found.pop("worst_of") == 1
    assert [len(texts) for texts in found.pop("texts")] == [3] * 6
    assert {len(found["word_errors"]), len(found["words"])} == {6}
    assert all(type(count) is int for counts in found.values() for count in counts)
    assert 100 * sum(found["word_errors"]) / sum(found["words"]) == row["wer"]
