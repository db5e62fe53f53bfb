"""How much of a model is trained (`method`): which settings belong to which method.

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
