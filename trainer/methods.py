"""How much of a model is trained (`method`): which settings belong to which method, and what does not go together.

Nothing heavy is imported here: settings are checked before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

LORA_SETTINGS = ("lora_rank", "lora_alpha", "lora_scaling", "lora_dropout", "lora_targets")
WITH_METHOD = {
    **dict.fromkeys(LORA_SETTINGS, ("lora",)),
    "freeze_encoder_layers": ("full", "lora"),
}
"""Settings that do nothing but with these methods."""


def method_of(method: str, freeze_encoder: bool) -> str:
    """The method that is meant, where the older name says it."""
    return "decoder" if freeze_encoder else method


def method_problems(method: str, freeze_encoder: bool) -> list[str]:
    """What of these settings does not go together, in a line each."""
    if freeze_encoder and method == "lora":
        return [
            "freeze_encoder=True: is read as method: decoder, and method is lora; remove it "
            "(freeze_encoder_layers keeps adapters out of the encoder)"
        ]
    return []


def notes_on_methods(
    given: Mapping[str, Any], usual: Mapping[str, Any], methods: Collection[str]
) -> list[str]:
    """Which settings do nothing.

    Args:
        given: all settings that are fixed.
        usual: what they are where nobody sets them.
        methods: that trainings may have.
    """
    idle = [
        name
        for name, able in WITH_METHOD.items()
        if given[name] != usual[name] and not set(able) & set(methods)
    ]
    does = "do nothing" if len(idle) > 1 else "does nothing"
    return [f"note: {', '.join(idle)} {does} with method: {' or '.join(methods)}"] if idle else []
