"""How a model decodes, told the same to every runtime: language, task, how long, what it never writes."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import WhisperProcessor

_SYMBOLS = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_NOTES = "♩♪♫♬♭♮♯"
_WHISPER_WINDOW = 30.0
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
    def prefix_tokens(self) -> int:
        """Start, language and task where the model has them, no timestamps."""
        return 2 if self.language is None else 4

    @property
    def short_window(self) -> bool:
        """Whether the window is shorter than Whisper's."""
        return self.window_seconds < _WHISPER_WINDOW


def read_decoding(folder: Path) -> Decoding:
    """How the model in a Hugging Face folder decodes, by its generation config."""
    from transformers import AutoConfig, GenerationConfig, WhisperProcessor

    from trainer.model.processor import window_seconds

    processor: WhisperProcessor = WhisperProcessor.from_pretrained(folder)
    generation = GenerationConfig.from_pretrained(folder)
    positions: int = AutoConfig.from_pretrained(folder).max_target_positions
    longest = min(generation.max_length or positions, positions // 2 - _WHISPER_CPP_SPARES)
    return Decoding(
        language=getattr(generation, "language", None),
        task=getattr(generation, "task", None) or "transcribe",
        max_new_tokens=longest,
        suppresses_symbols=_symbol_tokens(processor) <= set(generation.suppress_tokens or []),
        window_seconds=window_seconds(processor.feature_extractor),
    )


def _symbol_tokens(processor: WhisperProcessor) -> set[int]:
    """The list of OpenAI's models (`non_speech_tokens` in the tokenizer of openai/whisper)."""
    encode = functools.partial(processor.tokenizer.encode, add_special_tokens=False)
    found = {encode(" -")[0], encode(" '")[0]}
    for symbol in [*_SYMBOLS, *_GROUPS.split(), *_NOTES]:
        for tokens in (encode(symbol), encode(f" {symbol}")):
            if len(tokens) == 1 or symbol in _NOTES:
                found.add(tokens[0])
    return found


def end_token(processor: WhisperProcessor) -> int:
    """Id of `<|endoftext|>`: all ids below it are text, all above are special."""
    return int(processor.tokenizer.convert_tokens_to_ids("<|endoftext|>"))
