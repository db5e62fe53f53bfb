"""Averages of models: a mean of weights is what comes out, and nothing of models of other shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from make_data import write_processor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.errors import ModelError
from trainer.model.averaging import load_mean


def saved(folder: Path, seed: int, **sizes: int) -> dict[str, torch.Tensor]:
    """The weights of a random model, which is written to the folder."""
    values = WhisperConfig.from_pretrained(write_processor(folder)).to_dict()
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(WhisperConfig.from_dict(values | sizes))
    model.save_pretrained(folder)
    return dict(model.state_dict())


def test_every_weight_is_the_mean_by_shares_and_tied_weights_stay_tied(tmp_path: Path) -> None:
    first, second = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    mean, _ = load_mean(TrainConfig(), [(str(tmp_path / "1"), 1.0), (str(tmp_path / "2"), 3.0)])
    for name, weight in mean.state_dict().items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.75 * second[name])
    assert mean.proj_out.weight is mean.get_decoder().embed_tokens.weight


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_model": 32}, r"is \(.*\) in one and \(.*\) in another"),
        ({"decoder_layers": 2}, "not all of them"),
    ],
)
def test_models_of_other_shapes_are_refused(tmp_path: Path, sizes: dict[str, int], told: str) -> None:
    saved(tmp_path / "1", 1)
    saved(tmp_path / "2", 2, **sizes)
    with pytest.raises(ModelError, match=told):
        load_mean(TrainConfig(), [(str(tmp_path / name), 1.0) for name in "12"])
