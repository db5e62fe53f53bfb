"""Averaged weights: what is measured and kept; the training itself, and going on with it, are as without them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import run_workers
from safetensors.torch import load_file
from torch import nn

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.deepspeed import PACKAGED
from trainer.errors import CheckpointError, ConfigError
from trainer.model.adapters import ADAPTER_WEIGHTS
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from trainer.report import Decision
from trainer.train import evaluate, train
from trainer.training.checkpoints import EMA_FILE, estimated_checkpoint_bytes, is_only_for_resume
from trainer.training.ema import WeightAverage
from trainer.training.saving import ReportingKeeper

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over more threads differ in their last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(small_config: TrainConfig) -> TrainConfig:
    """8 optimiser steps with random numbers; evaluations after 2, 4, 6 and 8."""
    return small_config.replace(
        max_train_clips=32,
        max_eval_clips=8,
        epochs=2.0,
        train_batch_size=8,
        dropout=0.1,
        ema_decay=0.5,
        log_every_seconds=0.0,
    )


def run(config: TrainConfig, folder: Path, **kwargs: Any) -> list[dict[str, Any]]:
    """All that a training reports; its checkpoints stay in `folder`."""
    rows: list[dict[str, Any]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        told = {
            name: value for name, value in metrics.items() if name not in ("train_seconds", "train_samples")
        }
        rows.append({**told, "evaluation": checkpoint_dir is not None})

    train(config, report, output_dir=folder, **kwargs)
    return rows


def assert_same(one: Path, other: Path, names: tuple[str, ...] = (WEIGHTS, EMA_FILE)) -> None:
    for name in names:
        found, expected = load_file(one / name), load_file(other / name)
        assert found.keys() == expected.keys()
        assert [key for key, value in found.items() if not torch.equal(value, expected[key])] == []


def decay_at(step: int, decay: float) -> float:
    return min(decay, (1 + step) / (10 + step))


@given(
    decay=st.floats(0.01, 0.9999),
    values=st.lists(st.floats(-100, 100), min_size=1, max_size=60),
    start=st.floats(-100, 100),
)
def test_it_is_the_weighted_mean_of_all_steps(decay: float, values: list[float], start: float) -> None:
    """With the weight of each step in closed form: what it adds, times what all later steps leave of it."""
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    with torch.no_grad():
        model.weight.fill_(start)
        model.bias.fill_(7.0)
    average = WeightAverage(model, decay)
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            model.weight.fill_(value)
            model.bias.fill_(value)
        average.update(step)
    decays = [decay_at(step, decay) for step in range(1, len(values) + 1)]
    expected = start * math.prod(decays) + sum(
        value * (1 - decays[place]) * math.prod(decays[place + 1 :]) for place, value in enumerate(values)
    )
    with average.in_place():
        assert model.weight.tolist()[0] == pytest.approx([expected] * 2, rel=1e-4, abs=1e-3)
        assert model.bias.item() == pytest.approx(values[-1]), "what is not trained is not averaged"
    assert model.weight.tolist()[0] == [torch.tensor(values[-1]).item()] * 2


def test_a_model_in_half_precision_has_a_float32_average() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = WeightAverage(model, 0.999)
    for step in range(1000, 1010):  # each adds a thousandth of 1 / 128, which bfloat16 would round away
        with torch.no_grad():
            model.weight.fill_(1.0 + 1 / 128)
        average.update(step)
    (found,) = average.missing(engine=True).values()
    assert found.dtype == torch.float32
    left = math.prod(decay_at(step, 0.999) for step in range(1000, 1010))
    assert found.item() == pytest.approx(1 + (1 - left) / 128, abs=1e-6)
    with average.in_place():
        assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == 1.0 + 1 / 128


def test_checkpoints_hold_the_average_of_the_steps(config: TrainConfig, tmp_path: Path) -> None:
    run(config.replace(evaluate_at=tuple(range(8, 65, 8))), tmp_path)
    model = load_model(config, load_processor(config))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    averages = {name: model.get_parameter(name).detach().double() for name in trained}
    for step in range(1, 9):
        folder = tmp_path / f"checkpoint-{step}"
        raw, kept = load_file(folder / EMA_FILE), load_file(folder / WEIGHTS)
        assert raw.keys() == trained
        share = decay_at(step, 0.5)
        for name, average in averages.items():
            averages[name] = share * average + (1 - share) * raw[name].double()
            torch.testing.assert_close(kept[name].double(), averages[name], atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_what_is_measured_is_what_is_kept(config: TrainConfig, tmp_path: Path, method: str) -> None:
    config = config.replace(method=method)
    rows = [row for row in run(config, tmp_path) if row["evaluation"]]
    data = prepare(config)
    for row in rows[-2:]:
        found = evaluate(config.replace(model=str(tmp_path / f"checkpoint-{row['step']:.0f}")), data=data)
        assert (found.wer, found.cer) == (row["wer"], row["cer"])
        assert found.loss == pytest.approx(row["eval_loss"], rel=1e-6)


def test_neither_averages_nor_evaluations_change_the_training(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "many")
    run(config.replace(evaluations=1), tmp_path / "one")
    assert_same(tmp_path / "many" / "checkpoint-8", tmp_path / "one" / "checkpoint-8")
    run(config.replace(ema_decay=0.0), tmp_path / "without")
    plain = load_file(tmp_path / "without" / "checkpoint-8" / WEIGHTS)
    raw = load_file(tmp_path / "many" / "checkpoint-8" / EMA_FILE)
    assert [name for name, value in raw.items() if not torch.equal(value, plain[name])] == []
    assert not (tmp_path / "without" / "checkpoint-8" / EMA_FILE).exists()


@pytest.mark.parametrize("method", ["full", "decoder", "lora"])
def test_it_goes_on_exactly(config: TrainConfig, tmp_path: Path, method: str) -> None:
    config = config.replace(method=method, optimizer="adamw" if method == "full" else "adafactor")
    names = (ADAPTER_WEIGHTS if method == "lora" else WEIGHTS, EMA_FILE)
    whole = run(config, tmp_path / "whole")
    again = run(config, tmp_path / "again", resume_from=tmp_path / "whole" / "checkpoint-4")
    assert again == [row for row in whole if row["step"] > 4]
    for name in ("checkpoint-6", "checkpoint-8"):
        assert_same(tmp_path / "again" / name, tmp_path / "whole" / name, names)
    folder = tmp_path / "whole" / "checkpoint-8"
    averaged = set(load_file(folder / EMA_FILE))
    assert any(name.startswith("model.encoder.") for name in averaged) == (method != "decoder")
    assert all("lora" in name for name in averaged) == (method == "lora"), "only what is trained"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size <= estimated_checkpoint_bytes(config) <= size + 17e6


class Background(ReportingKeeper):
    """Saves in a thread, and of the last evaluation the weights alone."""

    in_background = True

    def decide(self, metrics: Mapping[str, float]) -> Decision:
        last = bool(metrics["finished"])
        return Decision(goes_on=not last, keep="weights" if last else "all")


def test_in_a_thread_and_weights_alone(config: TrainConfig, tmp_path: Path) -> None:
    run(config, tmp_path / "at-once")
    train(config, keeper=Background(lambda *_: None, tmp_path / "thread", keep=True))
    for step in (2, 4, 6):
        assert_same(tmp_path / "thread" / f"checkpoint-{step}", tmp_path / "at-once" / f"checkpoint-{step}")
    last = tmp_path / "thread" / "checkpoint-8"
    assert_same(last, tmp_path / "at-once" / "checkpoint-8", (WEIGHTS,))
    assert not (last / EMA_FILE).exists()
    assert is_only_for_resume(EMA_FILE)
    with pytest.raises(CheckpointError, match="kept for export only"):
        train(config, resume_from=last)
    (middle := tmp_path / "thread" / "checkpoint-4").is_dir()
    with pytest.raises(CheckpointError, match="its training was one with ema_decay; no training can go on"):
        train(config.replace(ema_decay=None), resume_from=middle)
    run(config.replace(ema_decay=None, max_steps=1, epochs=None), tmp_path / "without")
    with pytest.raises(CheckpointError, match="its training was one without ema_decay"):
        train(config, resume_from=tmp_path / "without" / "checkpoint-1")


def evaluations(folder: Path) -> list[dict[str, Any]]:
    rows = json.loads((folder / "rows-0.json").read_text())["rows"]
    return [row for row in rows if row["evaluation"]]


@pytest.mark.parametrize(
    "deepspeed", [None, pytest.param(PACKAGED[0], marks=pytest.mark.slow)], ids=["plain", "zero-2"]
)
def test_two_workers(config: TrainConfig, tmp_path: Path, deepspeed: str | None) -> None:
    """They agree with one, and go on from a checkpoint."""
    one = config.replace(dropout=0.0, max_grad_norm=0.5, log_every_seconds=3600.0)
    two = one.replace(workers=2, train_batch_size=4, deepspeed=deepspeed)
    run_workers("train", one, tmp_path / "one")
    run_workers("train", two, tmp_path / "two")
    rows, expected = evaluations(tmp_path / "two"), evaluations(tmp_path / "one")
    assert len(rows) == len(expected) == 4
    for row, other in zip(rows, expected, strict=True):
        assert row["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-3)
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)
    exact = evaluate(one.replace(model=rows[-1]["checkpoint"]), data=prepare(one))
    assert exact.wer == rows[-1]["wer"]
    assert exact.loss == pytest.approx(rows[-1]["eval_loss"], rel=1e-5)
    again = tmp_path / "again"
    again.mkdir()
    (again / "resume.json").write_text(json.dumps(rows[1]["checkpoint"]))
    run_workers("train", two, again)
    assert [row["step"] for row in evaluations(again)] == [6, 8]
    for row, other in zip(evaluations(again), rows[2:], strict=True):
        assert row["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_zero_3_is_refused() -> None:
    TrainConfig(ema_decay=0.0, deepspeed=PACKAGED[1])
    TrainConfig(ema_decay=0.99, deepspeed=PACKAGED[0])
    with pytest.raises(
        ConfigError, match=r"^ema_decay=0.99: ZeRO 3 .*take deepspeed=ds_config.json.*leave .* out$"
    ):
        TrainConfig(ema_decay=0.99, deepspeed=PACKAGED[1])
