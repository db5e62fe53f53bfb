"""Names of files, inputs and outputs in Optimum's layout of ONNX speech models."""

from __future__ import annotations

ENCODER = "encoder_model.onnx"
DECODER = "decoder_model.onnx"
DECODER_WITH_PAST = "decoder_with_past_model.onnx"


def presents(layers: int, *, of_encoder: bool = True) -> list[str]:
    """Outputs with keys and values of every decoder layer, those of the encoder's output only where they are made."""
    sides = ("decoder", "encoder") if of_encoder else ("decoder",)
    return [
        f"present.{layer}.{side}.{what}"
        for layer in range(layers)
        for side in sides
        for what in ("key", "value")
    ]


def pasts(layers: int) -> list[str]:
    """Inputs with keys and values of every decoder layer."""
    return [name.replace("present.", "past_key_values.", 1) for name in presents(layers)]
