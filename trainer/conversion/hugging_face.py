"""A training checkpoint as a plain Hugging Face folder, and decoding with transformers, the reference of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from trainer.config import TrainConfig
from trainer.conversion.formats import Decoding
from trainer.data.audio import SAMPLE_RATE
from trainer.model.averaging import load_mean
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model

_BATCH = 8


def write_model(config: TrainConfig, checkpoint: Path, output: Path, point: float | None = None) -> None:
    """Write weights (safetensors), processor and generation config of a training's checkpoint to a folder.

    What belongs to training only stays behind: optimiser, dropout, SpecAugment. Added are `preprocessor_config.json`,
    which transformers 5 writes no more and faster-whisper, Optimum and transformers.js look for; and, where the model
    names none, the attention heads that word timestamps come from: all of the decoder's upper half, OpenAI's default.
    The folder loads in transformers 4.57, too, and decodes there as here. `point` is the share of the checkpoint in its
    mean with the base model; None for the checkpoint itself.
    """
    plain = config.replace(model=str(checkpoint), dropout=0.0, spec_augment=False)
    if point is None:
        processor = load_processor(plain)
        model = load_model(plain, processor)
    else:
        model, processor = load_mean(plain, [(config.model, 1.0 - point), (str(checkpoint), point)])
    if not getattr(model.generation_config, "alignment_heads", None):
        layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
        model.generation_config.alignment_heads = [
            [layer, head] for layer in range(layers // 2, layers) for head in range(heads)
        ]
    # Version 4's pipeline takes 5 beams unless it is told here; version 5's asks the generation config.
    beams = {"num_beams": model.generation_config.num_beams}
    model.config.task_specific_params = {"automatic-speech-recognition": beams}
    model.save_pretrained(output)
    processor.save_pretrained(output)
    processor.feature_extractor.save_pretrained(output)


def transcribe(folder: Path, decoding: Decoding, clips: Sequence[np.ndarray]) -> Iterator[str]:
    """Transcripts of clips by the model in a Hugging Face folder, on the GPU where there is one."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor
    from transformers.utils import logging

    device = "cuda" if torch.cuda.is_available() else "cpu"
    processor: WhisperProcessor = WhisperProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    model.eval().to(device)
    # Whisper's `generate` does not count the prefix.
    model.generation_config.max_length = decoding.max_new_tokens
    for start in range(0, len(clips), _BATCH):
        features = processor.feature_extractor(
            list(clips[start : start + _BATCH]), sampling_rate=SAMPLE_RATE, return_tensors="pt"
        )["input_features"]
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # it warns of arguments that its `generate` for Whisper passes to itself
        try:
            with torch.inference_mode():
                tokens = model.generate(input_features=features.to(device), num_beams=1)
        finally:
            logging.set_verbosity(verbosity)
        yield from (text.strip() for text in processor.batch_decode(tokens, skip_special_tokens=True))
