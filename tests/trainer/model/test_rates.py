"""The usual learning rate: by size, method, and how well the untouched model does on the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from trainer.config import TrainConfig
from trainer.model.rates import STEPS, default_learning_rate, learning_rates


def model(folder: Path, width: int, layers: int, decoder_layers: int | None = None) -> TrainConfig:
    transformers.WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=decoder_layers or layers
    ).save_pretrained(folder)
    return TrainConfig(model=str(folder))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((384, 4), 3.75e-5),
        ((768, 12), 1.25e-5),
        ((1280, 32), 4.375e-6),
        ((1280, 32, 4), 5e-5),  # large-v3-turbo
    ],
)
def test_by_size(tmp_path: Path, size: tuple[int, ...], expected: float) -> None:
    assert default_learning_rate(model(tmp_path, *size)) == expected


def test_a_model_that_knows_less_takes_more(tmp_path: Path) -> None:
    config = model(tmp_path, 512, 6)
    rates = [default_learning_rate(config, wer) for wer in (22.6, 60.0, 327.0)]
    assert rates == [pytest.approx(2.5e-5 * factor) for _, factor in STEPS]
    assert rates == sorted(set(rates))
    lora = config.replace(method="lora")
    assert default_learning_rate(lora, 22.6) == default_learning_rate(lora, 327.0) == 5e-4
    assert learning_rates(config) == rates
    # The error of a translation is no share of words.
    assert learning_rates(config.replace(task="translate")) == [2.5e-5]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_demo_has_the_rate_that_was_measured_on_its_data(method: str) -> None:
    config = TrainConfig().replace(method=method)
    assert default_learning_rate(config, 68.5) == default_learning_rate(config)
