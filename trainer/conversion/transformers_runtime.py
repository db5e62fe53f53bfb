"""Decoding with transformers: the reference for every other runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.conversion.decoding import Decoding
from trainer.data.audio import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np

_BATCH = 8


def transcribe(
    folder: Path, decoding: Decoding, clips: Sequence[np.ndarray], progress: Callable[[int], None]
) -> list[str]:
    """Transcripts of clips by the model in a Hugging Face folder, on the GPU where there is one."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    from trainer.conversion.quiet import only_errors

    device = "cuda" if torch.cuda.is_available() else "cpu"
    processor: WhisperProcessor = WhisperProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    model.eval().to(device)
    model.generation_config.max_length = (
        decoding.max_new_tokens
    )  # Whisper's `generate` does not count the prefix
    texts: list[str] = []
    for start in range(0, len(clips), _BATCH):
        features = processor.feature_extractor(
            list(clips[start : start + _BATCH]), sampling_rate=SAMPLE_RATE, return_tensors="pt"
        )["input_features"]
        with torch.inference_mode(), only_errors():
            tokens = model.generate(input_features=features.to(device), num_beams=1)
        texts += [text.strip() for text in processor.batch_decode(tokens, skip_special_tokens=True)]
        progress(len(texts))
    return texts
