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
    "base": {"width": 512, "layers": 6, "decoder_layers": 6, "heads": 8, "mels": 80, "vocabulary": 51865},
    "small": {"width": 768, "layers": 12, "decoder_layers": 12, "heads": 12, "mels": 80, "vocabulary": 51865},
    "medium": {
        "width": 1024,
        "layers": 24,
        "decoder_layers": 24,
        "heads": 16,
        "mels": 80,
        "vocabulary": 51865,
    },
    "large-v3-turbo": {
        "width": 1280,
        "layers": 32,
        "decoder_layers": 4,
        "heads": 20,
        "mels": 128,
        "vocabulary": 51866,
    },
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
    model = WhisperForConditionalGeneration(config_of(shape))
    model.generation_config = type(model.generation_config).from_pretrained(DEMO / "model")
    model.save_pretrained(folder)
    _processor(SHAPES[shape]["mels"]).save_pretrained(folder)
    return folder


def config_of(shape: str) -> WhisperConfig:
    """The configuration of a real shape."""
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
    return WhisperConfig.from_dict(values)


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


def widen_demo(folder: Path) -> Path:
    """The demo's model in whisper-tiny's shape, but for 12 heads of 32 and its few positions: it can learn.

    Its outputs are the same. All hidden values are there three times, so that layer norms see the same, and weights
    that add them up are divided by that; the layers that are new add nothing at first. Tokens that the demo lacks are
    as unlikely as can be: opposite to the mean of what the decoder ends with.
    """
    demo = WhisperForConditionalGeneration.from_pretrained(DEMO / "model").eval()
    what, old = SHAPES["tiny"], demo.config
    values = old.to_dict() | {
        "vocab_size": what["vocabulary"],
        "d_model": what["width"],
        "encoder_layers": what["layers"],
        "decoder_layers": what["decoder_layers"],
        "encoder_attention_heads": old.encoder_attention_heads * what["width"] // old.d_model,
        "decoder_attention_heads": old.decoder_attention_heads * what["width"] // old.d_model,
        "encoder_ffn_dim": 4 * what["width"],
        "decoder_ffn_dim": 4 * what["width"],
    }
    torch.manual_seed(0)
    wide = WhisperForConditionalGeneration(WhisperConfig.from_dict(values))
    weights = wide.state_dict()
    for name, weight in weights.items():
        if name.removeprefix("proj_out") != name:  # tied to the embeddings
            continue
        if name in demo.state_dict():
            is_table = "embed" in name
            small = demo.state_dict()[name]
            times = [new // before for new, before in zip(weight.shape, small.shape, strict=True)]
            times[0] = 1 if is_table else times[0]
            tiled = small.tile(times) / (times[1] if small.dim() > 1 and not is_table else 1)
            weight[: len(tiled)] = tiled
            if name.startswith("model.decoder.layer_norm"):  # what the embeddings multiply, three times
                weight.div_(times[0])
        elif "out_proj" in name or "fc2" in name:
            weight.zero_()
    times = what["width"] // old.d_model
    mean = _mean_output(demo)
    weights["model.decoder.embed_tokens.weight"][old.vocab_size :] = (-100 / mean.dot(mean) * mean).tile(
        times
    )
    wide.load_state_dict(weights)
    wide.generation_config = demo.generation_config
    wide.save_pretrained(folder)
    WhisperProcessor.from_pretrained(DEMO / "model").save_pretrained(folder)
    return folder


def _mean_output(model: WhisperForConditionalGeneration) -> torch.Tensor:
    """Mean of what the decoder hands to the embeddings, on noise and random tokens."""
    features = torch.randn(8, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    ids = torch.randint(0, model.config.vocab_size, (8, 20))
    with torch.no_grad():
        hidden = model.model(input_features=features, decoder_input_ids=ids).last_hidden_state
    return hidden.mean(dim=(0, 1))


def _processor(mels: int) -> WhisperProcessor:
    demo = WhisperProcessor.from_pretrained(DEMO / "model")
    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=30)
    return WhisperProcessor(feature_extractor=extractor, tokenizer=demo.tokenizer)


def remove(folder: Path) -> None:
    """Remove a model again."""
    shutil.rmtree(folder, ignore_errors=True)
