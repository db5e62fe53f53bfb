"""The usual peak learning rates: by the model's size, and by how well it knows the data already."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from trainer.config import TrainConfig
from trainer.model.pretrained import load_model_config

_BY_WIDTH = {128: 5e-5, 384: 3.75e-5, 512: 2.5e-5, 768: 1.25e-5, 1024: 6.25e-6, 1280: 4.375e-6}
"""By the model's width: its pre-training rate / 40 (whisper-large-v2: its own, 5e-6). The narrowest is the embedded
demo's."""
_FEW_DECODER_LAYERS = 4
_TURBO = 5e-5
"""Of large-v3-turbo, whose decoder has 4 of 32 layers: with `STEPS` 2e-5 to 2e-4. Published trainings had 6.25e-6 to
1e-4 (`published.csv`)."""
_LORA_FACTOR = 20
"""LoRA's: ten times those of all weights and more (https://thinkingmachines.ai/blog/lora). A tenth to ten times that of
the widest is what others search for large-v3, 1e-5 to 1e-3."""
STEPS: tuple[tuple[float, float], ...] = ((40.0, 0.4), (80.0, 2.0), (math.inf, 4.0))
"""Below which WER of the base model, in percent, the rate of its size is taken how many times: a model that knows
the language forgets at rates at which another one learns it. By whisper-base (`benchmarks/search.md`, `real.py`):
German (22.6 %) is best at 2.5e-6 to 1e-5, over a bad telephone line (67 %) 5e-5 is no worse, Cherokee (110 %) is best
at 5e-5 and 1e-4."""


def default_learning_rate(config: TrainConfig, base_wer: float | None = None) -> float:
    """The usual peak learning rate of the model and method, with linear decay.

    Args:
        config: the model and how it is trained.
        base_wer: of the base model on the validation split, in percent; None where it is not known. The error of
            a translation is no share of words and changes nothing.
    """
    lora = config.method == "lora"
    model = load_model_config(config.model)
    width = min(_BY_WIDTH, key=lambda known: abs(known - model.d_model))
    rate = _BY_WIDTH[width]
    if config.model_source == "openai/whisper-large-v2":
        rate = 5e-6
    elif width == max(_BY_WIDTH) and model.decoder_layers <= _FEW_DECODER_LAYERS:
        rate = _TURBO
    # What the steps are for was measured with all weights alone.
    factor = 1.0
    if lora:
        factor = _LORA_FACTOR
    elif base_wer is not None and config.task == "transcribe":
        factor = next((factor for below, factor in STEPS if base_wer < below), STEPS[-1][1])
    return float(f"{factor * rate:.6g}")


def published_rates(config: TrainConfig) -> list[float]:
    """The learning rates of published trainings of this size by this method, rising (`published.csv`)."""
    model = load_model_config(config.model)
    turbo = model.d_model == max(_BY_WIDTH) and model.decoder_layers <= _FEW_DECODER_LAYERS
    wanted = (str(model.d_model), turbo, config.method)
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        return sorted(
            float(row["learning_rate"])
            for row in csv.DictReader(file)
            if (row["width"], row["model"].endswith("turbo"), row["method"]) == wanted
        )


def learning_rates(config: TrainConfig) -> list[float]:
    """The default learning rates for base models with a low, a middle and a high WER; one where they are the same."""
    every = [default_learning_rate(config, min(below, 1e6) - 1e-6) for below, _ in STEPS]
    return list(dict.fromkeys(every))
