"""Whisper's parts with tensors only in their signatures, as an ONNX graph has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration


class Encoder(torch.nn.Module):
    """Features (B, mels, frames) to hidden states (B, positions, width)."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        """The hidden states of the last layer."""
        hidden: torch.Tensor = self.encoder(input_features).last_hidden_state
        return hidden


class Decoder(torch.nn.Module):
    """The first step: the whole prefix, and keys and values for all steps after it."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Logits (B, T, vocabulary); then for each layer keys and values of the tokens and of the hidden states."""
        cache = _empty_cache()
        logits = _decode(self.model, input_ids, encoder_hidden_states, cache)
        kept = []
        for own, cross in zip(
            cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True
        ):
            kept += [own.keys, own.values, cross.keys, cross.values]
        return logits, *kept


class DecoderWithPast(torch.nn.Module):
    """Every later step: one token, with what the steps before it kept."""

    def __init__(self, model: WhisperForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Logits (B, 1, vocabulary); then for each layer keys and values of the tokens.

        Args:
            input_ids: (B, 1).
            past: four tensors for each layer, as `Decoder` gives them.
        """
        cache = _empty_cache()
        for layer in range(len(past) // 4):
            own_keys, own_values, cross_keys, cross_values = past[4 * layer : 4 * layer + 4]
            cache.self_attention_cache.update(own_keys, own_values, layer)
            cache.cross_attention_cache.update(cross_keys, cross_values, layer)
            cache.is_updated[layer] = True
        # Only asked for its shape: keys and values of the encoder's output are in the cache.
        size, _, positions, _ = past[2].shape
        nothing = past[2].new_zeros(size, positions, self.model.config.d_model)
        logits = _decode(self.model, input_ids, nothing, cache)
        kept = []
        for own in cache.self_attention_cache.layers:
            kept += [own.keys, own.values]
        return logits, *kept


def _empty_cache() -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(DynamicCache(), DynamicCache())


def _decode(
    model: WhisperForConditionalGeneration, tokens: torch.Tensor, hidden: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Logits of a step, whose keys and values are added to the cache."""
    output = model.model.decoder(
        input_ids=tokens, encoder_hidden_states=hidden, past_key_values=cache, use_cache=True
    )
    logits: torch.Tensor = model.proj_out(output.last_hidden_state)
    return logits
