"""Greedy decoding of Whisper for evaluations: the tokens of transformers' `generate`, in less time.

`generate` spends much of a short transcript's time around the model: it grows its cache by concatenation, builds a mask
and checks its settings at every token, and goes on with the whole batch until the last clip has ended. Here the caches
are laid out once, and clips that have ended leave the batch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperForConditionalGeneration

_PLAIN: dict[str, tuple[Any, ...]] = {
    "num_beams": (1, None),
    "do_sample": (False, None),
    "repetition_penalty": (1.0, None),
    "encoder_repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "bad_words_ids": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (1.0, None),
    "watermarking_config": (None,),
    "prompt_lookup_num_tokens": (None,),
    "stop_strings": (None,),
    "max_time": (None,),
    "penalty_alpha": (None, 0.0),
}
"""Values of the generation config with which greedy decoding is nothing but the most likely token each time."""


def is_plain_greedy(generation: GenerationConfig) -> bool:
    """Whether `decode` gives what `generate` would with these settings."""
    return all(getattr(generation, name, allowed[-1]) in allowed for name, allowed in _PLAIN.items())


@dataclasses.dataclass
class _Caches:
    """Keys and values of one layer for the clips that go on, each (B, heads, positions, width / heads)."""

    own: tuple[torch.Tensor, torch.Tensor]
    """Of the tokens so far, laid out for all that may come."""
    cross: tuple[torch.Tensor, torch.Tensor]
    """Of the encoder's output."""

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these clips."""
        self.own = (self.own[0][rows], self.own[1][rows])
        self.cross = (self.cross[0][rows], self.cross[1][rows])


@torch.no_grad()
def decode(
    model: WhisperForConditionalGeneration, encoded: torch.Tensor, prefix: list[int], max_length: int
) -> torch.Tensor:
    """Transcribe clips, always with the most likely token.

    Args:
        model: in evaluation mode, with a generation config for which `is_plain_greedy`.
        encoded: the encoder's output, (B, positions, width).
        prefix: start, language, task and no-timestamps tokens.
        max_length: most tokens of a transcript, the prefix counted.

    Returns:
        token ids (B, T) with the prefix in front, filled with the pad token behind each end token.
    """
    generation, decoder = model.generation_config, model.get_decoder()
    ends = torch.tensor(_as_list(generation.eos_token_id), device=encoded.device)
    never = torch.tensor(_as_list(generation.suppress_tokens), dtype=torch.long, device=encoded.device)
    not_first = torch.tensor(
        _as_list(generation.begin_suppress_tokens), dtype=torch.long, device=encoded.device
    )
    clips = torch.arange(len(encoded), device=encoded.device)
    found = torch.full((len(encoded), max_length), int(generation.pad_token_id), device=encoded.device)
    found[:, : len(prefix)] = torch.tensor(prefix, device=encoded.device)
    caches = [_layer_caches(layer, encoded, max_length) for layer in decoder.layers]
    tokens, begin = found[:, : len(prefix)], 0
    for position in range(len(prefix), max_length):
        logits = _step(model, caches, tokens, begin)
        logits[:, never] = -torch.inf
        if position == len(prefix):
            logits[:, not_first] = -torch.inf
        chosen = logits.argmax(-1)
        found[clips, position] = chosen
        going_on = ~torch.isin(chosen, ends)
        if not going_on.all():
            rows = going_on.nonzero()[:, 0]
            if not len(rows):
                return found[:, : position + 1]
            clips, chosen = clips[rows], chosen[rows]
            for layer in caches:
                layer.keep(rows)
        tokens, begin = chosen[:, None], position
    return found


def _as_list(ids: Any) -> list[int]:
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def _heads(states: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, T, width) as (B, heads, T, width / heads)."""
    return states.view(*states.shape[:2], heads, -1).transpose(1, 2)


def _layer_caches(layer: Any, encoded: torch.Tensor, max_length: int) -> _Caches:
    attention = layer.encoder_attn
    cross = [
        _heads(projection(encoded), attention.num_heads).contiguous()
        for projection in (attention.k_proj, attention.v_proj)
    ]
    shape = (*cross[0].shape[:2], max_length, cross[0].shape[3])
    return _Caches((cross[0].new_empty(shape), cross[0].new_empty(shape)), (cross[0], cross[1]))


def _step(
    model: WhisperForConditionalGeneration, caches: list[_Caches], tokens: torch.Tensor, begin: int
) -> torch.Tensor:
    """Scores (B, vocabulary) of what follows `tokens` (B, T), which stand at positions `begin` and on."""
    decoder = model.get_decoder()
    end = begin + tokens.shape[1]
    states = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[begin:end]
    for layer, cache in zip(decoder.layers, caches, strict=True):
        states = states + _attend_to_tokens(layer, layer.self_attn_layer_norm(states), cache, begin, end)
        states = states + _attend_to_audio(layer, layer.encoder_attn_layer_norm(states), cache)
        states = states + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(states))))
    scores: torch.Tensor = model.proj_out(decoder.layer_norm(states[:, -1])).float()
    return scores


def _attend_to_tokens(layer: Any, states: torch.Tensor, cache: _Caches, begin: int, end: int) -> torch.Tensor:
    attention = layer.self_attn
    keys, values = cache.own
    keys[:, :, begin:end] = _heads(attention.k_proj(states), attention.num_heads)
    values[:, :, begin:end] = _heads(attention.v_proj(states), attention.num_heads)
    return _attend(attention, states, keys[:, :, :end], values[:, :, :end], causal=end - begin > 1)


def _attend_to_audio(layer: Any, states: torch.Tensor, cache: _Caches) -> torch.Tensor:
    return _attend(layer.encoder_attn, states, *cache.cross, causal=False)


def _attend(
    attention: Any, states: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    # Whisper scales the queries, and so does this: it rounds as the model does.
    queries = _heads(attention.q_proj(states) * attention.scaling, attention.num_heads)
    heard = functional.scaled_dot_product_attention(
        queries, keys.to(queries.dtype), values.to(queries.dtype), is_causal=causal, scale=1.0
    )
    projected: torch.Tensor = attention.out_proj(heard.transpose(1, 2).flatten(2))
    return projected
