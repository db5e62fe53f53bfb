"""What numbers a setting may be: the range of each, and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Least and greatest value, both allowed; `None` is open.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "weight": (0, 1000),
    "freeze_encoder_layers": (0, None),
    "lora_rank": (1, 1024),
    "lora_dropout": (0, 0.9),
    "dropout": (0, 0.9),
    "mask_time_prob": (0, 1),
    "mask_feature_prob": (0, 1),
    "mask_time_length": (1, 64),
    "mask_feature_length": (1, 64),
    "augment": (0, 1),
    "augment_strength": (0, 3),
    "augment_speed": (0, 1),
    "augment_reverb": (0, 1),
    "augment_noise": (0, 1),
    "augment_snr": (-10, 35),
    "augment_telephone": (0, 1),
    "timestamp_share": (0, 1),
    "audio_channel": (1, None),
    "pack_seconds": (0, 30),
    "validation_share": (0.001, 0.9),
    "max_train_clips": (1, None),
    "max_eval_clips": (1, None),
    "max_dropped_share": (0, 1),
    "data_seed": (0, 2**32 - 1),
    "warmup_ratio": (0, 1),
    "warmup_steps": (0, None),
    "adam_beta1": (0, 0.99999),
    "adam_beta2": (0, 0.99999),
    "decay_ratio": (0, 1),
    "weight_decay": (0, None),
    "label_smoothing": (0, 0.9),
    "max_grad_norm": (0, None),
    "audio_window": (1, 30),
    "train_batch_size": (1, None),
    "gradient_accumulation_steps": (1, None),
    "micro_batch": (1, None),
    "max_steps": (1, None),
    "max_samples": (1, None),
    "shuffle_buffer": (1, 1_000_000),
    "evaluations": (1, None),
    "seed": (0, 2**32 - 1),
    "dataloader_workers": (0, None),
    "workers": (1, None),
    "eval_batch_size": (1, None),
    "generation_max_length": (2, None),
    "generation_num_beams": (1, None),
    "log_every_seconds": (0, None),
}
#: Fields of which `null` can be written as `auto`.
AUTOMATIC = ("audio_window", "pack_seconds", "max_eval_clips", "eval_batch_size")
#: Fields that must be above 0.
POSITIVE = {"learning_rate", "epochs", "max_hours", "adam_epsilon", "lora_alpha"}


def convert(kind: type, value: Any) -> Any:
    """`value` as `kind`, or None where it is something else. A bool is never a number."""
    if kind is bool and isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    if kind in (bool, str):
        return value if isinstance(value, kind) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        return None
    return int(number) if kind is int else number


def in_bounds(name: str, value: Any) -> bool:
    """Whether a number lies in the range of the field `name`."""
    if name in POSITIVE:
        return bool(value > 0)
    low, high = BOUNDS.get(name, (None, None))
    return (low is None or value >= low) and (high is None or value <= high)


WEIGHT_OF = "weight."
"""Begins the name under which the weight of one source is searched: `weight.fleurs`."""


def read_weight(value: Any) -> float | None:
    """How often a source's clips come in an epoch; None where it is no such number."""
    weight: float | None = convert(float, value)
    return weight if weight is not None and in_bounds("weight", weight) else None


def read_weights(text: str | None) -> dict[str, float] | None:
    """Weights by source of a text such as `fleurs=0.5,own=2`; None where it is written otherwise."""
    weights: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = (word.strip() for word in part.partition("="))
        weight = read_weight(value)
        if not name or name in weights or weight is None:
            return None
        weights[name] = weight
    return weights


def with_weights(before: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which weights of single sources (`weight.fleurs`) are put into `source_weights`, as it was before."""
    rest = {key: value for key, value in changes.items() if not key.startswith(WEIGHT_OF)}
    single = {key.removeprefix(WEIGHT_OF): changes[key] for key in changes if key not in rest}
    if not single:
        return rest
    weights = {**(read_weights(rest.get("source_weights", before)) or {}), **single}
    text = ",".join(f"{name}={weight}" for name, weight in sorted(weights.items()))
    return {**rest, "source_weights": text}
