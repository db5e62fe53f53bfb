"""Optimisers: each trains and goes on as if unbroken, what it keeps of each weight; the schedules' rates."""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from training import train
from transformers.optimization import Adafactor

from trainer.config import TrainConfig
from trainer.optimizers import optimizer_bytes

EIGHT_BIT = pytest.param(
    "adamw_8bit",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes, an extra"
    ),
)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def config(small_config: TrainConfig) -> TrainConfig:
    """8 optimiser steps."""
    return small_config.replace(
        max_train_clips=32, max_eval_clips=1, epochs=2.0, train_batch_size=8, log_every_seconds=0.0
    )


def rows_of(config: TrainConfig, **kwargs: Any) -> list[dict[str, float]]:
    """What is reported between evaluations: every optimiser step."""
    rows: list[dict[str, float]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is None:
            rows.append(dict(metrics))

    train(config, report, **kwargs)
    return rows


@pytest.mark.parametrize("optimizer", ["adafactor", EIGHT_BIT])
def test_it_trains_and_goes_on_exactly(config: TrainConfig, tmp_path: Path, optimizer: str) -> None:
    config = config.replace(optimizer=optimizer, dropout=0.1, weight_decay=0.01, evaluations=2)
    whole = rows_of(config, output_dir=tmp_path / "whole")
    losses = [row["loss"] for row in whole]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    again = rows_of(config, output_dir=tmp_path / "again", resume_from=tmp_path / "whole" / "checkpoint-4")
    assert again == whole[4:]
    found, expected = (
        load_file(tmp_path / name / "checkpoint-8" / "model.safetensors") for name in ("again", "whole")
    )
    for name, weights in expected.items():
        assert torch.equal(found[name], weights), name


WSD = "warmup_stable_decay"


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        (
            {"scheduler_type": WSD, "decay_ratio": 0.5, "warmup_ratio": 0.25, "evaluate_at": (1, 3, 6)},
            [0, 1 / 2, 1, 1, *(1 - math.sqrt(step / 4) for step in range(4))],
        ),
        (
            {"scheduler_type": WSD, "decay_ratio": 1.0, "warmup_steps": 6},
            [*(step / 6 for step in range(7)), 1 - math.sqrt(1 / 2)],
        ),
        ({"scheduler_type": "constant", "warmup_ratio": 0.5}, [0, 1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 1]),
        (
            {"scheduler_type": "constant_with_warmup", "warmup_ratio": 0.5, "warmup_steps": 2},
            [0, 1 / 2, 1, 1, 1, 1, 1, 1],
        ),
        ({"scheduler_type": "constant_with_warmup", "warmup_ratio": 0.0}, [1] * 8),
        ({"warmup_ratio": 0.25, "evaluate_at": (2, 5)}, [0, 1 / 2, *(step / 6 for step in range(6, 0, -1))]),
    ],
    ids=["wsd", "the decay takes what the warmup leaves", "constant", "steps", "none", "linear"],
)
def test_schedules_have_their_rates(
    config: TrainConfig, settings: dict[str, Any], factors: list[float]
) -> None:
    """They have their end at the full budget, whatever is evaluated on the way."""
    quick = {"epochs": None, "max_steps": 8, "train_batch_size": 1, "evaluations": 1, "learning_rate": 1e-3}
    config = config.replace(**quick | settings)
    assert [row["learning_rate"] for row in rows_of(config)] == pytest.approx(
        [1e-3 * each for each in factors]
    )


def kept(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of tensors in an optimiser's state, its counts left out."""
    values = [value for state in optimizer.state.values() for name, value in state.items()]
    tensors = {value.data_ptr(): value for value in values if isinstance(value, torch.Tensor)}
    return sum(value.nbytes for value in tensors.values() if value.ndim)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "adamw_8bit"])
def test_what_an_optimizer_keeps_is_known(name: str) -> None:
    model = nn.Sequential(nn.Embedding(70, 96), nn.Linear(96, 64), nn.Conv1d(3, 5, 7), nn.LayerNorm(300))
    model[3].bias.requires_grad_(False)
    makers: dict[str, Any] = {
        "adamw": torch.optim.AdamW,
        "adafactor": lambda weights: Adafactor(weights, lr=1e-3, scale_parameter=False, relative_step=False),
    }
    if name == "adamw_8bit":
        bitsandbytes = pytest.importorskip("bitsandbytes")
        bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()
        makers[name] = lambda weights: bitsandbytes.optim.AdamW(weights, optim_bits=8)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = makers[name](weights)
    if name == "adamw_8bit":
        manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
        manager.register_module_override(model[0], "weight", {"optim_bits": 32})
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    maps = 2 * 4 * 256 if name == "adamw_8bit" else 0  # of bitsandbytes, shared by all weights
    assert kept(optimizer) == optimizer_bytes(name, model) + maps
