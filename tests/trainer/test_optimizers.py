"""Optimisers: what they keep of each weight, and that a missing package is told."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor

from trainer.errors import ConfigError
from trainer.optimizers import check_installed, extra_of, optimizer_bytes


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


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("adamw", "adafactor"):
        check_installed(name)
        assert extra_of(name) is None
    with pytest.raises(ConfigError) as error:
        check_installed("adamw_8bit")
    (line,) = str(error.value).splitlines()
    assert line.startswith(
        "optimizer='adamw_8bit': bitsandbytes is not installed; pip install 'tune-whisper[8bit]'"
    )
    assert extra_of("adamw_8bit") == "8bit"
