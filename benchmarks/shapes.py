"""Whispers of the real shapes with random weights: what can be had offline."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

DEMO = Path(__file__).resolve().parent.parent / "trainer" / "demo"
SHAPES = {
    "tiny": (384, 4, 4, 6, 80, 51865),
    "base": (512, 6, 6, 8, 80, 51865),
    "small": (768, 12, 12, 12, 80, 51865),
    "medium": (1024, 24, 24, 16, 80, 51865),
    "large-v3-turbo": (1280, 32, 4, 20, 128, 51866),
    "large-v3": (1280, 32, 32, 20, 128, 51866),
}
"""Width, layers of encoder and decoder, heads, mel bins, vocabulary."""


def make_model(folder: Path, shape: str) -> Path:
    """A random Whisper of a real shape in `folder`, with the demo's tokenizer: ids above its 729 do not occur."""
    torch.manual_seed(0)
    config = config_of(shape)
    model = WhisperForConditionalGeneration(config)
    model.generation_config = type(model.generation_config).from_pretrained(DEMO / "model")
    model.save_pretrained(folder)
    tokenizer = WhisperProcessor.from_pretrained(DEMO / "model").tokenizer
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=30)
    WhisperProcessor(feature_extractor=extractor, tokenizer=tokenizer).save_pretrained(folder)
    return folder


def config_of(shape: str) -> WhisperConfig:
    width, layers, decoder_layers, heads, mels, vocabulary = SHAPES[shape]
    return WhisperConfig.from_dict(
        WhisperConfig.from_pretrained(DEMO / "model").to_dict()
        | {"vocab_size": vocabulary, "d_model": width, "num_mel_bins": mels}
        | {"encoder_layers": layers, "encoder_attention_heads": heads, "encoder_ffn_dim": 4 * width}
        | {"decoder_layers": decoder_layers, "decoder_attention_heads": heads, "decoder_ffn_dim": 4 * width}
        | {"max_source_positions": 1500, "max_target_positions": 448}
    )
