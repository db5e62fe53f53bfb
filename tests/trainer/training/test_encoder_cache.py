"""A frozen encoder's outputs kept on disk: the same training, and the encoder runs once for each clip."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_inputs import encoder_inputs
from processes import run_workers
from safetensors.torch import load_file, save_file
from small_disks import mounted
from transformers import TrainerCallback

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, PreparedSplit, prepare
from trainer.model.pretrained import DEMO_MODEL
from trainer.train import _make_trainer, train
from trainer.training.batches import BatchPlan
from trainer.training.checkpoints import seal
from trainer.training.encoder_store import KEPT_DAYS, EncoderStore, remove_old


@pytest.fixture(scope="module")
def frozen(small_config: TrainConfig) -> TrainConfig:
    """Two epochs of 48 clips, 8 at a time, with an evaluation of 16 clips after each; every loss is reported."""
    return small_config.replace(
        freeze_encoder=True,
        max_steps=12,
        train_batch_size=8,
        evaluations=2,
        log_every_seconds=0.0,
        generation_max_length=12,
    )


@pytest.fixture
def data(frozen: TrainConfig, tmp_path: Path) -> PreparedData:
    """The clips with features in a folder of their own, where there are no stores yet."""
    found = prepare(frozen)
    return found.moved_to(Path(shutil.copytree(found.folder, tmp_path / "cache" / found.folder.name)))


def stores(data: PreparedData) -> set[str]:
    """Names of the stores beside the features."""
    return {path.name for path in (data.folder.parent / "encoded").glob("*")}


@dataclasses.dataclass
class Run:
    """What a training came to."""

    rows: list[dict[str, float]]
    weights: dict[str, torch.Tensor]
    encoded: int
    """Clips that the encoder worked on, in this process."""


def trained(config: TrainConfig, data: PreparedData, folder: Path, **kwargs: Any) -> Run:
    """Train, and look at what happened; the time it took is not the same twice."""
    rows: list[dict[str, float]] = []

    def report(row: Mapping[str, float], _: Path | None) -> None:
        rows.append({name: value for name, value in row.items() if name != "train_seconds"})

    with encoder_inputs() as seen:
        train(config, report, data=data, output_dir=folder, **kwargs)
    last = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return Run(rows, load_file(last / "model.safetensors"), sum(clips for clips, _, _ in seen))


def assert_same(run: Run, other: Run) -> None:
    """Every loss, gradient norm, WER and weight."""
    assert len(run.rows) == len(other.rows) > 1
    for row, expected in zip(run.rows, other.rows, strict=True):
        assert row == pytest.approx(expected, rel=1e-5)
    for name, value in run.weights.items():
        torch.testing.assert_close(value, other.weights[name], atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"precision": "bf16", "generation_num_beams": 2, "max_eval_clips": 4},
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 3, "train_batch_size": 3},
        {"dataloader_workers": 2, "full_window_evaluation": False, "label_smoothing": 0.1},
    ],
    ids=["plain", "bf16", "accumulation", "loaders"],
)
def test_the_training_is_the_same_and_the_encoder_runs_once_for_each_clip(
    frozen: TrainConfig, data: PreparedData, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = frozen.replace(group_by_length=False, **settings)
    clips = 48 + len(data.splits["validation"])
    plain = trained(config.replace(encoder_cache=False), data, tmp_path / "plain")
    assert not stores(data)
    first = trained(config, data, tmp_path / "first")
    assert_same(first, plain)
    again = trained(config, data, tmp_path / "again")
    assert_same(again, plain)
    assert (first.encoded, again.encoded) == (clips, 0)
    assert plain.encoded >= 2 * clips
    assert len(stores(data)) == 2


def test_a_clip_is_kept_for_each_window_that_it_is_heard_in(
    frozen: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    """Batches of like length have a window of their own each, so a clip has one or another."""
    config = frozen.replace(
        group_by_length=True, full_window_evaluation=False, train_batch_size=3, max_steps=48
    )
    plain = trained(config.replace(encoder_cache=False), data, tmp_path / "plain")
    first = trained(config, data, tmp_path / "first")
    assert_same(first, plain)
    again = trained(config, data, tmp_path / "again")
    assert_same(again, plain)
    assert 64 <= first.encoded < 0.7 * plain.encoded
    assert again.encoded == 0
    windows = {path.name for path in (data.folder.parent / "encoded").glob("*/*.frames")}
    assert len(windows) > 2


def first_gradient(config: TrainConfig, data: PreparedData, folder: Path) -> dict[str, torch.Tensor]:
    """The gradient of one step with 16 clips, whatever the number of passes."""
    plan = BatchPlan(
        n_clips=48,
        batch_size=config.train_batch_size,
        accumulation=config.gradient_accumulation_steps,
        points=(16,),
        seed=0,
    )
    trainer = _make_trainer(config, data, data.splits["validation"], plan, folder)
    kept: dict[str, torch.Tensor] = {}

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            named = kwargs["model"].named_parameters()
            kept.update((name, p.grad.clone()) for name, p in named if p.grad is not None)

    trainer.add_callback(Gradients())
    trainer.train()
    trainer.close_stores()
    return kept


@pytest.mark.parametrize("accumulation", [2, 16])  # with 16 half of the passes are empty
def test_the_gradient_is_the_same_with_accumulation_and_empty_passes(
    frozen: TrainConfig, data: PreparedData, tmp_path: Path, accumulation: int
) -> None:
    config = frozen.replace(max_grad_norm=0.0, audio_window=3, train_batch_size=16)
    expected = first_gradient(config.replace(encoder_cache=False), data, tmp_path)
    assert expected
    assert not [name for name in expected if ".encoder." in name]
    config = config.replace(
        train_batch_size=16 // min(accumulation, 8), gradient_accumulation_steps=accumulation
    )
    for _ in range(2):  # while the store is filled, and from what it has
        found = first_gradient(config, data, tmp_path)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-5, msg=name)
    assert len(stores(data)) == 2


@pytest.fixture
def one_step(frozen: TrainConfig) -> TrainConfig:
    return frozen.replace(max_steps=1, evaluations=1, max_eval_clips=2, group_by_length=False)


def changed_model(folder: Path, add: float = 0.0, **settings: Any) -> str:
    """The demo model with something added to an encoder's weight, or with other settings."""
    shutil.copytree(DEMO_MODEL, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.encoder.layer_norm.bias"][0] += add
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return str(folder)


def test_only_what_gives_the_same_numbers_shares_a_store(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    number = 0

    def encoded(**settings: Any) -> int:
        nonlocal number
        number += 1
        return trained(one_step.replace(**settings), data, tmp_path / f"run-{number}").encoded

    everything = 8 + 16
    assert encoded() == everything
    for shared in (
        {"model": changed_model(tmp_path / "copy")},
        {"learning_rate": 1e-4, "lowercase": True, "weight_decay": 0.1, "train_batch_size": 4},
    ):
        assert encoded(**shared) == 0, shared
    assert len(stores(data)) == 2
    assert encoded(audio_window=3) == 8  # evaluations have the whole window as before
    for other in (
        {"precision": "bf16"},
        {"model": changed_model(tmp_path / "weights", add=1e-3)},
        {"model": changed_model(tmp_path / "heads", encoder_attention_heads=2)},
    ):
        assert encoded(**other) == everything, other
    assert len(stores(data)) == 8
    others = data.moved_to(Path(shutil.copytree(data.folder, data.folder.with_name("other"))))
    assert trained(one_step, others, tmp_path / "other").encoded == everything


def test_clips_dropped_for_their_texts_do_not_shift_the_others(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    trained(one_step, data, tmp_path / "all")
    splits = {role: split.only(range(1, len(split))) for role, split in data.splits.items()}
    fewer = dataclasses.replace(data, splits=splits)
    plain = trained(one_step.replace(encoder_cache=False), fewer, tmp_path / "plain")
    assert_same(trained(one_step, fewer, tmp_path / "fewer"), plain)


def test_splits_with_the_same_texts_are_told_apart(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedSplit, "text", lambda self, i: "the same words")
    for number, first in enumerate((0, 8)):
        splits = {role: split.only(range(first, first + 8)) for role, split in data.splits.items()}
        alike = dataclasses.replace(data, splits=splits)
        plain = trained(one_step.replace(encoder_cache=False), alike, tmp_path / f"plain-{first}")
        assert_same(trained(one_step, alike, tmp_path / f"found-{first}"), plain)
        assert len(stores(data)) == 2 * (number + 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "full"},
        {"encoder_cache": False},
        {"spec_augment": True},
        {"dropout": 0.1},
        {"model": {"attention_dropout": 0.1}},
        {"model": {"activation_dropout": 0.1}},
        {"model": {"encoder_layerdrop": 0.1}},
    ],
    ids=lambda settings: "-".join(map(str, settings)),
)
def test_no_store_where_the_encoder_is_trained_or_random(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if isinstance(settings.get("model"), dict):
        settings = {"model": changed_model(tmp_path / "model", **settings["model"])}
    assert trained(one_step.replace(**settings), data, tmp_path / "run").encoded == 8 + 16
    assert not (data.folder.parent / "encoded").exists()


def test_weights_that_a_checkpoint_brings_have_a_store_of_their_own(
    frozen: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    config = frozen.replace(evaluations=3)
    trained(config, data, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.encoder.layer_norm.bias"] += 0.3
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    seal(checkpoint)
    before = stores(data)
    plain = trained(config.replace(encoder_cache=False), data, tmp_path / "plain", resume_from=checkpoint)
    found = trained(config, data, tmp_path / "found", resume_from=checkpoint)
    assert_same(found, plain)
    assert len(before) == 2 and len(stores(data)) == 4


def test_too_small_a_disk_goes_without(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    features = sum(path.stat().st_size for path in data.folder.iterdir())
    with mounted(folder, f"size={features + 3_000_000}"):
        found = data.moved_to(Path(shutil.copytree(data.folder, folder / data.folder.name)))
        assert trained(one_step, found, tmp_path / "run").encoded == 8 + 16
        assert not stores(found)
    assert "has too little room" in caplog.text
    assert "the training computes them each time" in caplog.text


def test_a_disk_that_fills_up_meanwhile(
    frozen: TrainConfig,
    data: PreparedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = frozen.replace(group_by_length=False)
    plain = trained(config.replace(encoder_cache=False), data, tmp_path / "plain")
    monkeypatch.setattr("trainer.training.encoder_cache.has_room", lambda folder, needed: True)
    folder = tmp_path / "disk"
    with mounted(folder, "size=5m"):
        found = data.moved_to(Path(shutil.copytree(data.folder, folder / data.folder.name)))
        run = trained(config, found, tmp_path / "run")
    assert_same(run, plain)
    assert 48 + 16 < run.encoded < plain.encoded  # some were kept
    assert "No space left on device; encoder outputs that are not there yet are not kept" in caplog.text


def test_a_place_that_cannot_be_written_goes_without(
    one_step: TrainConfig, data: PreparedData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data.folder.parent / "encoded").write_text("in the way")
    assert trained(one_step, data, tmp_path / "run").encoded == 8 + 16
    assert "File exists" in caplog.text
    assert "the training goes on without" in caplog.text


def test_processes_fill_a_store_at_once(frozen: TrainConfig, data: PreparedData, tmp_path: Path) -> None:
    """A training by itself and one of two workers, on the same clips at the same time."""
    config = frozen.replace(
        cache_dir=str(data.folder.parent), log_every_seconds=3600.0, group_by_length=False
    )
    plain = trained(config.replace(encoder_cache=False), data, tmp_path / "plain")
    configs = {"one": config, "two": config.replace(workers=2, train_batch_size=4)}
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(run_workers, "train", configs[name], tmp_path / name) for name in configs]:
            done.result()
    for name in configs:
        rows = json.loads((tmp_path / name / "rows-0.json").read_text())["rows"]
        assert len(rows) == len(plain.rows)
        for row, expected in zip(rows, plain.rows, strict=True):
            for value in {"loss", "grad_norm", "eval_loss", "wer", "cer"} & expected.keys():
                assert row[value] == pytest.approx(expected[value], rel=1e-4), (name, value)
    assert len(stores(data)) == 2
    then = trained(config, data, tmp_path / "then")
    assert then.encoded == 0
    assert_same(then, plain)


def test_a_store_that_is_old_is_removed_unless_it_is_used(tmp_path: Path) -> None:
    made = {
        name: EncoderStore(tmp_path / name, 2, 3, torch.float32) for name in ("old", "used", "new", "own")
    }
    for store in made.values():
        store.open()
        store.write([1], torch.ones(1, 4, 3))
        if store.folder.name != "used":
            store.close()
        if store.folder.name != "new":
            long_ago = time.time() - (KEPT_DAYS * 86400 + 60)
            os.utime(store.folder / "used", (long_ago, long_ago))
    remove_old(tmp_path, spare={"own"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "own", "used"]
    made["own"].open()
    made["own"].close()
    remove_old(tmp_path, spare=set())  # opening it has made it new
    assert made["own"].read([1], 8)[1] == []
    made["used"].close()
    remove_old(tmp_path, spare=set())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "own"]


def test_reading_tells_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EncoderStore(tmp_path / "store", 3, 2, torch.bfloat16)
    store.open()
    assert store.read([0, 2], 8)[1] == [0, 1]
    states = torch.randn(2, 4, 2).to(torch.bfloat16)
    store.write([2, 0], states)
    assert store.read([0, 1, 2], 6)[1] == [0, 1, 2]  # another window
    for reader in (
        store,
        pickle.loads(pickle.dumps(store)),
        EncoderStore(store.folder, 3, 2, torch.bfloat16),
    ):
        found, missing = reader.read([0, 1, 2], 8)
        assert missing == [1]
        assert torch.equal(found[[2, 0]], states)
    monkeypatch.setattr("trainer.training.encoder_store._mark_of_this_start", lambda: b"another!")
    after_a_crash = EncoderStore(store.folder, 3, 2, torch.bfloat16)
    assert after_a_crash.read([0, 1, 2], 8)[1] == [0, 1, 2]
    os.truncate(next(store.folder.glob("*.frames")), 4096 + 8)
    with pytest.raises(OSError, match=r"was cut short; remove it.*store"):
        store.read([2], 8)
    store.close()
