"""Greedy decoding of Whisper for evaluations: the tokens of transformers' `generate`, in less time.

`generate` spends much of a short transcript's time around the model: it grows its cache by concatenation, builds a mask
and checks its settings at every token, and goes on with the whole batch until the last clip has ended. Here the caches
are laid out once for all batches, and clips that have ended leave the batch. On a GPU the host looks only every few
tokens which have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperForConditionalGeneration

_PLAIN: dict[str, float] = {
    **dict.fromkeys(("num_beams", "repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(
        ("do_sample", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "penalty_alpha"), 0
    ),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
}
_ABSENT = (
    *("bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"),
    *("sequence_bias", "watermarking_config", "prompt_lookup_num_tokens", "stop_strings", "max_time"),
)
"""Values of the generation config, or None, with which greedy decoding is nothing but the most likely token each time;
and those that must be None."""
_LOOK_EVERY = 8
"""On a GPU: tokens between two looks at which clips have ended, since the host waits for it with each."""
_ENDED_SHARE = 0.25
"""On a GPU: when so many of the clips have ended the others are moved together. On a CPU, where a look costs nothing
and each clip takes its own time, that is done with each that has ended."""


def is_plain_greedy(generation: GenerationConfig) -> bool:
    """Whether a `GreedyDecoder` gives what `generate` would with these settings."""
    return all(getattr(generation, name, None) in (None, value) for name, value in _PLAIN.items()) and all(
        getattr(generation, name, None) is None for name in _ABSENT
    )


class GreedyDecoder:
    """Transcribes batch after batch with one model, always with the most likely token."""

    def __init__(self, model: WhisperForConditionalGeneration, *, on_gpu: bool | None = None) -> None:
        """Lay nothing out yet.

        Args:
            model: in evaluation mode, with a generation config for which `is_plain_greedy`. It keeps its weights as
                long as the decoder is used.
            on_gpu: whether it is decoded as on a GPU; `None`: where it is on one.
        """
        self.model = model
        self._on_gpu = model.device.type == "cuda" if on_gpu is None else on_gpu
        self._caches: _Caches | None = None

    def forget(self) -> None:
        """Give the memory of the caches back; the next batch lays them out anew."""
        self._caches = None

    @torch.no_grad()
    def decode(
        self, encoded: torch.Tensor, prefix: Sequence[int] | torch.Tensor, max_length: int
    ) -> torch.Tensor:
        """Transcribe clips.

        Args:
            encoded: the encoder's output, (B, positions, width).
            prefix: start, language, task and no-timestamps tokens; of each clip its own as (B, tokens).
            max_length: most tokens of a transcript, the prefix counted.

        Returns:
            token ids (B, T) with the prefix in front, filled with the pad token behind each end token.
        """
        generation, device = self.model.generation_config, encoded.device
        begins = torch.as_tensor(prefix, device=device)
        first = begins.shape[-1]
        ends = torch.tensor(_as_list(generation.eos_token_id), device=device)
        never = torch.tensor(_as_list(generation.suppress_tokens), dtype=torch.long, device=device)
        not_first = torch.tensor(_as_list(generation.begin_suppress_tokens), dtype=torch.long, device=device)
        pad = int(generation.pad_token_id)
        transcripts = torch.full((len(encoded), max_length), pad, device=device)
        transcripts[:, :first] = begins
        positions = torch.arange(max_length, device=device)
        clips = torch.arange(len(encoded), device=device)
        ended = torch.zeros(len(encoded), dtype=torch.bool, device=device)
        length: torch.Tensor | int = first
        look_every = _LOOK_EVERY if self._on_gpu else 1
        caches = self._caches = self._encoder_caches(encoded, max_length)
        tokens, begin = transcripts[:, :first], 0
        for position in range(first, max_length):
            scores = _scores(self.model, caches, tokens, positions[begin:position], position)
            scores.index_fill_(1, never, -torch.inf)
            if position == first:
                scores.index_fill_(1, not_first, -torch.inf)
            chosen = scores.argmax(-1)
            if self._on_gpu:
                chosen.masked_fill_(ended, pad)
            transcripts[clips, position] = chosen
            length = length + (~ended.all() if self._on_gpu else 1)
            ended |= torch.isin(chosen, ends)
            if (position - first) % look_every == look_every - 1:
                rows = self._rows_kept(caches, ended.tolist())
                if not rows:
                    break
                if len(rows) < len(ended):
                    kept = torch.tensor(rows, device=device)
                    clips, chosen, ended = clips[kept], chosen[kept], ended[kept]
            tokens, begin = chosen[:, None], position
        return transcripts[:, : int(length)]

    def _encoder_caches(self, encoded: torch.Tensor, max_length: int) -> _Caches:
        """Caches with keys and values of the encoder's output: those of the batch before, where these fit in."""
        caches = self._caches
        for number, layer in enumerate(self.model.get_decoder().layers):
            attention = layer.encoder_attn
            for part, projection in enumerate((attention.k_proj, attention.v_proj)):
                states = _heads(projection(encoded), attention.num_heads)
                if caches is None or not caches.hold(states, max_length):
                    caches = self._caches = None  # first, so that there is room
                    clips, heads, positions, width = states.shape
                    layers = range(self.model.config.decoder_layers)
                    caches = _Caches(
                        own=[states.new_empty(2, clips, heads, max_length, width) for _ in layers],
                        cross=[states.new_empty(2, clips, heads, positions, width) for _ in layers],
                    )
                caches.cross[number][part, : len(states)] = states
        assert caches is not None
        return caches

    def _rows_kept(self, caches: _Caches, ended: list[bool]) -> list[int]:
        """The rows that the next steps go on with, in their new order, which the caches have then; none at the end."""
        going = [row for row, over in enumerate(ended) if not over]
        if not going:
            return []
        kept = len(ended)
        if len(going) <= (1 - _ENDED_SHARE * self._on_gpu) * kept:
            kept = len(going)
        rows = list(range(kept))
        behind = [row for row in going if row >= kept]
        free = [row for row in rows if ended[row]][: len(behind)]
        if behind:
            caches.move(behind, free)
        for origin, target in zip(behind, free, strict=True):
            rows[target] = origin
        return rows


@dataclasses.dataclass(frozen=True)
class _Caches:
    """Keys and values, for each layer a tensor (2, clips, heads, positions, width / heads).

    Clips that go on are in the first rows.
    """

    own: list[torch.Tensor]
    """Of the tokens so far, with room for all that may come."""
    cross: list[torch.Tensor]
    """Of the encoder's output."""

    def hold(self, like: torch.Tensor, max_length: int) -> bool:
        """Whether there is room for clips whose keys to the encoder's output are `like` these."""
        same = self.cross[0][0]
        fitting = like.shape[1:] == same.shape[1:] and (like.dtype, like.device) == (same.dtype, same.device)
        _, clips, _, longest, _ = self.own[0].shape
        return fitting and len(like) <= clips and max_length <= longest

    def move(self, origins: Sequence[int], targets: Sequence[int]) -> None:
        """Put the clips of some rows into others."""
        device = self.own[0].device
        rows, to = torch.tensor(origins, device=device), torch.tensor(targets, device=device)
        for cache in (*self.own, *self.cross):
            cache[:, to] = cache[:, rows]


def _scores(
    model: WhisperForConditionalGeneration,
    caches: _Caches,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    end: int,
) -> torch.Tensor:
    """Scores (B, vocabulary) of what follows `tokens` (B, T), which stand at `places` (T,), up to `end`."""
    decoder, clips = model.get_decoder(), len(tokens)
    states = decoder.embed_tokens(tokens) + decoder.embed_positions.weight[positions]
    for layer, own, cross in zip(decoder.layers, caches.own, caches.cross, strict=True):
        attention, normed = layer.self_attn, layer.self_attn_layer_norm(states)
        for cache, projection in zip(own, (attention.k_proj, attention.v_proj), strict=True):
            cache[:clips].index_copy_(2, positions, _heads(projection(normed), attention.num_heads))
        states = states + _attend(attention, normed, own[:, :clips, :, :end], causal=len(positions) > 1)
        normed = layer.encoder_attn_layer_norm(states)
        states = states + _attend(layer.encoder_attn, normed, cross[:, :clips])
        states = states + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(states))))
    scores: torch.Tensor = model.proj_out(decoder.layer_norm(states[:, -1])).float()
    return scores


def _as_list(ids: Any) -> list[int]:
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list | tuple) else [int(ids)]


def _heads(states: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, T, width) as (B, heads, T, width / heads)."""
    return states.view(*states.shape[:2], heads, -1).transpose(1, 2)


def _attend(
    attention: Any, states: torch.Tensor, cache: torch.Tensor, *, causal: bool = False
) -> torch.Tensor:
    """What `states` (B, T, width) attend to in keys and values (2, B, heads, positions, width / heads)."""
    # Whisper scales the queries, and so does this: it rounds as the model does.
    queries = _heads(attention.q_proj(states) * attention.scaling, attention.num_heads)
    keys, values = cache
    attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal, scale=1.0)
    projected: torch.Tensor = attention.out_proj(attended.transpose(1, 2).flatten(2))
    return projected
