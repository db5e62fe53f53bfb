"""CTranslate2's format, and decoding with faster-whisper, which runs it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.conversion.formats import Decoding
from trainer.conversion.whisper_layout import whisper_layout
from trainer.data.audio import SAMPLE_RATE

_FASTER_WHISPER_POSITIONS = 448


def convert(folder: Path, output: Path, quantization: str) -> None:
    """Write the model of a Hugging Face folder for CTranslate2, with what faster-whisper reads beside it.

    Raises:
        ModelError: the model's vocabulary cannot be told in Whisper's layout.
    """
    from ctranslate2.converters import TransformersConverter
    from transformers import GenerationConfig, WhisperProcessor

    with whisper_layout(folder) as source:
        TransformersConverter(str(source)).convert(str(output), quantization=quantization)
        # Not copied: folders that transformers or others wrote may lack them.
        processor = WhisperProcessor.from_pretrained(source)
        processor.feature_extractor.save_pretrained(output)
        processor.tokenizer.backend_tokenizer.save(str(output / "tokenizer.json"))
        GenerationConfig.from_pretrained(source).save_pretrained(output)


def transcribe(folder: Path, decoding: Decoding, clips: Sequence[np.ndarray]) -> Iterator[str]:
    """Transcripts of clips by faster-whisper on the CPU.

    Each clip is filled up with silence to the model's window, as transformers does. faster-whisper by itself fills
    up features with zeros, which is no silence but a sound of middling loudness, and not what a model was trained on.
    """
    import ctranslate2
    import faster_whisper

    class ShortWindow(faster_whisper.WhisperModel):
        """faster-whisper (1.2.1) pads every window to 3,000 frames, whatever the model has positions for."""

        def encode(self, features: np.ndarray) -> Any:
            return super().encode(features[..., : self.feature_extractor.nb_max_frames])

    # Else it says on stderr that the CPU computes float16 weights in float32.
    ctranslate2.set_log_level(logging.ERROR)
    kind = ShortWindow if decoding.short_window else faster_whisper.WhisperModel
    model = kind(str(folder), device="cpu")
    length = round(decoding.window_seconds * SAMPLE_RATE)
    suppressed = json.loads((folder / "config.json").read_text(encoding="utf-8"))["suppress_ids"]
    # Start, language and task where the model has them, no timestamps. CTranslate2 ends at half the length that it is
    # given, this prefix included.
    prefix = 2 if decoding.language is None else 4
    longest = min(2 * decoding.max_new_tokens, _FASTER_WHISPER_POSITIONS) - prefix
    for samples in clips:
        segments, _ = model.transcribe(
            np.pad(samples, (0, max(0, length - len(samples)))),
            language=decoding.language,
            task=decoding.task,
            beam_size=1,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
            max_new_tokens=longest,
            suppress_tokens=suppressed,
            no_speech_threshold=None,
        )
        yield "".join(segment.text for segment in segments).strip()
