"""How a model decodes, told the same to every runtime: language, task, how long, what it never writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

_WHISPER_WINDOW = 30.0
_WHISPER_TEXT_TOKENS = 50_254
"""Ids below are text in each of Whisper's own vocabularies."""
_WHISPER_CPP_SPARES = 4
"""whisper.cpp writes at most half the decoder's positions less so many tokens in a window (220 for Whisper)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Greedy decoding of clips of one window each, without timestamps and without fallbacks."""

    language: str | None
    """Whisper's code; None for models that only know English and have no token for it."""
    task: str
    max_new_tokens: int
    """Most tokens of a transcript, its prefix not counted; what all runtimes can write in a window."""
    suppresses_symbols: bool
    """Whether the model is kept from writing all symbols that nobody speaks, as OpenAI's are. Runtimes other than
    transformers have that list as a whole or not at all."""
    window_seconds: float
    """What the model hears at once: 30 s, less for models with another encoder."""

    @property
    def short_window(self) -> bool:
        """Whether the window is shorter than Whisper's."""
        return self.window_seconds < _WHISPER_WINDOW


def read_decoding(folder: Path) -> Decoding:
    """How the model in a Hugging Face folder decodes, by its generation config."""
    from transformers import AutoConfig, GenerationConfig, WhisperFeatureExtractor
    from transformers.models.whisper.configuration_whisper import NON_SPEECH_TOKENS, NON_SPEECH_TOKENS_MULTI

    from trainer.model.processor import window_seconds

    generation = GenerationConfig.from_pretrained(folder)
    positions: int = AutoConfig.from_pretrained(folder).max_target_positions
    listed = NON_SPEECH_TOKENS_MULTI if getattr(generation, "is_multilingual", True) else NON_SPEECH_TOKENS
    symbols = {token for token in listed if token < _WHISPER_TEXT_TOKENS}
    return Decoding(
        language=getattr(generation, "language", None),
        task=getattr(generation, "task", None) or "transcribe",
        max_new_tokens=min(generation.max_length or positions, positions // 2 - _WHISPER_CPP_SPARES),
        suppresses_symbols=symbols <= set(generation.suppress_tokens or []),
        window_seconds=window_seconds(WhisperFeatureExtractor.from_pretrained(folder)),
    )
