"""Floating-point operations of Whisper, and what the device can do of them at most."""

from __future__ import annotations

import statistics
import time

import torch
from transformers import WhisperConfig


def training_flops(config: WhisperConfig, frames: int, tokens: float) -> float:
    """Operations of one clip in training: a forward pass and the twice as costly backward pass.

    Multiplications and additions of all matrix products (2 each); norms, activations and softmax are left out, as is
    usual where a share of the peak is told (PaLM, arXiv:2204.02311, appendix B).

    Args:
        config: the model's.
        frames: feature frames of the window, 3000 for 30 s.
        tokens: label tokens of the clip.
    """
    width, positions = config.d_model, frames // 2
    convolutions = 2 * 3 * width * (frames * config.num_mel_bins + positions * width)
    attention = 4 * width * width
    encoder = config.encoder_layers * positions * 2 * (attention + 2 * width * config.encoder_ffn_dim)
    encoder += config.encoder_layers * 4 * positions**2 * width
    decoder = config.decoder_layers * tokens * 2 * (attention + 2 * width * config.decoder_ffn_dim)
    decoder += config.decoder_layers * 4 * tokens**2 * width
    # Cross attention: queries and output for each token, keys and values for each position of the audio.
    decoder += config.decoder_layers * (attention * (tokens + positions) + 4 * tokens * positions * width)
    return 3.0 * (convolutions + encoder + decoder + 2 * tokens * width * config.vocab_size)


def matrix_peak(dtype: torch.dtype, device: str, size: int = 8192, repeats: int = 20) -> float:
    """Operations a second of large matrix products on the device: the median of several."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats + 3):
        _wait(device)
        begun = time.perf_counter()
        torch.mm(left, right)
        _wait(device)
        times.append(time.perf_counter() - begun)
    return 2.0 * size**3 / statistics.median(times[3:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
