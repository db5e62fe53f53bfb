"""The formats that a model can be exported to, how it decodes in each, converting and transcribing.

Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Format:
    runtime: str
    """What decodes it, and what the converted model is checked with."""
    module: str
    """Of this package: has `transcribe`, and `convert` but for `hf`."""
    quantizations: tuple[str, ...]
    """How its weights can be stored; the first is the default."""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Packages that converting and checking need beyond transformers, by the module that each brings."""


FORMATS: Mapping[str, Format] = {
    "hf": Format("transformers", "hugging_face", ("float32",)),
    "ctranslate2": Format(
        "faster-whisper",
        "ctranslate2_format",
        ("float16", "float32", "int8", "int8_float16"),
        {"ctranslate2": "ctranslate2", "faster_whisper": "faster-whisper"},
    ),
    "ggml": Format(
        "whisper.cpp",
        "ggml_format",
        ("float16", "int8", "q5_0"),
        {"pywhispercpp": "pywhispercpp", "gguf": "gguf"},
    ),
}
CONVERTED = tuple(name for name in FORMATS if name != "hf")
_WHISPER_WINDOW = 30.0
_WHISPER_TEXT_TOKENS = 50_254
"""Ids below are text in each of Whisper's own vocabularies."""
_WHISPER_CPP_SPARES = 4
"""whisper.cpp writes at most half the decoder's positions less so many tokens in a window (220 for Whisper)."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A format, by name, with the storage of its weights; `resolve_targets` makes them."""

    name: str
    quantization: str


def resolve_targets(names: Sequence[str], quantization: str | None) -> list[Target]:
    """The formats, each once, that are to be made beside the Hugging Face folder; `hf` is none.

    Raises:
        ConfigError: a format is unknown or given twice, has no such quantization, or its packages are missing.
    """
    targets: list[Target] = []
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"--format {name}: must be one of {', '.join(FORMATS)}")
        if names.count(name) > 1:
            raise ConfigError(f"--format {name}: is given twice; remove one")
        if name == "hf":
            continue
        known = FORMATS[name].quantizations
        if quantization not in (None, *known):
            raise ConfigError(f"--quantization {quantization}: {name} can be stored as {', '.join(known)}")
        packages = FORMATS[name].packages
        missing = [package for module, package in packages.items() if not importlib.util.find_spec(module)]
        if missing:
            raise ConfigError(
                f"--format {name}: needs {' and '.join(missing)}; pip install 'tune-whisper[{name}]'"
            )
        targets.append(Target(name, quantization or known[0]))
    if quantization is not None and not targets:
        raise ConfigError(
            f"--quantization {quantization}: the Hugging Face format is always float32; name another --format"
        )
    return targets


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


def convert(target: Target, folder: Path, output: Path) -> None:
    """Write the model of a Hugging Face folder to a new one; a `ModelError` where the format cannot hold it."""
    module = importlib.import_module(f"trainer.conversion.{FORMATS[target.name].module}")
    module.convert(folder, output, target.quantization)


def transcribe(name: str, folder: Path, decoding: Decoding, clips: Sequence[np.ndarray]) -> Iterator[str]:
    """Transcripts of clips, float32 (samples,) each, 16 kHz mono, none longer than the window, by a format's runtime.

    Raises:
        ModelError: the runtime cannot load the model.
    """
    module = importlib.import_module(f"trainer.conversion.{FORMATS[name].module}")
    texts: Iterator[str] = module.transcribe(folder, decoding, clips)
    return texts
