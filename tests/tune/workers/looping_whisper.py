"""A made Whisper that ends its transcripts only where it sees the later part of its window, and else repeats itself."""

import json
from pathlib import Path

import torch
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model

ENDS_BEHIND = 150
"""Position of the encoder (20 ms each) from which on it knows that a clip is over: 3 of the demo's 4 s."""
_WORDS = 3
"""Tokens that it writes at least."""


def make_looping_whisper(folder: Path, width: int = 128) -> Path:
    """A model in the demo's shape but for its width, and with its tokenizer, in `folder`.

    All of its layers but one attention hand on what they are given. The encoder's states are one direction before
    `ENDS_BEHIND` and another behind; the decoder's last cross attention looks for the other one, and where it finds it,
    the end token becomes the most likely, behind the first tokens. Else that is one and the same word.
    """
    config = TrainConfig()
    processor = load_processor(config)
    demo = load_model(config, processor)
    demo.config.d_model = width
    model, end = WhisperForConditionalGeneration(demo.config), demo.config.eos_token_id
    model.generation_config = demo.generation_config
    word = processor.tokenizer.convert_tokens_to_ids("Ġdoor")
    first, other, ending, speaking = torch.eye(width)[:4]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            norm = "layer_norm" in name and name.endswith("weight")
            weight.fill_(1.0 if norm else 0.0)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        encoder.embed_positions.weight[:ENDS_BEHIND] = 10 * first
        encoder.embed_positions.weight[ENDS_BEHIND:] = 10 * other
        attention = decoder.layers[-1].encoder_attn
        attention.q_proj.bias.fill_(10.0)
        attention.k_proj.weight.copy_(other.expand(width, width))
        attention.v_proj.weight[ending.argmax()] = other
        attention.out_proj.weight.copy_(torch.eye(width))
        prefix = len(processor.tokenizer.prefix_tokens)
        decoder.embed_positions.weight[:] = 4 * speaking
        decoder.embed_positions.weight[: prefix + _WORDS - 1] = 40 * speaking
        decoder.embed_tokens.weight[word] = speaking
        decoder.embed_tokens.weight[end] = ending
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    path = folder / "generation_config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(written | {"max_length": 30}), encoding="utf-8")
    return folder
