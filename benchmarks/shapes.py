"""Whispers of the real shapes with random weights, and the demo's model with a real window: what can be had offline."""

from __future__ import annotations

import shutil
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
    "tiny": {"width": 384, "layers": 4, "decoder_layers": 4, "heads": 6, "mels": 80, "vocabulary": 51865},
    "small": {"width": 768, "layers": 12, "decoder_layers": 12, "heads": 12, "mels": 80, "vocabulary": 51865},
    "large-v3": {
        "width": 1280,
        "layers": 32,
        "decoder_layers": 32,
        "heads": 20,
        "mels": 128,
        "vocabulary": 51866,
    },
}


def make_model(folder: Path, shape: str, seed: int = 0) -> Path:
    """A random Whisper of a real shape in `folder`, with the demo's tokenizer: ids above its 729 do not occur."""
    torch.manual_seed(seed)
    what = SHAPES[shape]
    values = WhisperConfig.from_pretrained(DEMO / "model").to_dict() | {
        "vocab_size": what["vocabulary"],
        "d_model": what["width"],
        "encoder_layers": what["layers"],
        "decoder_layers": what["decoder_layers"],
        "encoder_attention_heads": what["heads"],
        "decoder_attention_heads": what["heads"],
        "encoder_ffn_dim": 4 * what["width"],
        "decoder_ffn_dim": 4 * what["width"],
        "num_mel_bins": what["mels"],
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }
    model = WhisperForConditionalGeneration(WhisperConfig.from_dict(values))
    model.generation_config = type(model.generation_config).from_pretrained(DEMO / "model")
    model.save_pretrained(folder)
    _processor(what["mels"]).save_pretrained(folder)
    return folder


def lengthen_demo(folder: Path) -> Path:
    """The demo's model with Whisper's window of 30 s: its positions are the first of the same sinusoids."""
    model = WhisperForConditionalGeneration.from_pretrained(DEMO / "model")
    values = model.config.to_dict() | {"max_source_positions": 1500}
    longer = WhisperForConditionalGeneration(WhisperConfig.from_dict(values))
    weights = model.state_dict()
    name = "model.encoder.embed_positions.weight"
    table = longer.state_dict()[name]
    assert torch.allclose(table[: len(weights[name])], weights[name], atol=1e-5)
    longer.load_state_dict(weights | {name: table})
    longer.generation_config = model.generation_config
    longer.save_pretrained(folder)
    _processor(80).save_pretrained(folder)
    return folder


def _processor(mels: int) -> WhisperProcessor:
    demo = WhisperProcessor.from_pretrained(DEMO / "model")
    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=30)
    return WhisperProcessor(feature_extractor=extractor, tokenizer=demo.tokenizer)


def remove(folder: Path) -> None:
    """Remove a model again."""
    shutil.rmtree(folder, ignore_errors=True)
