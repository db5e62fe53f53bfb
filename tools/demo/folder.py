"""What the demo model's folder holds: a small Whisper tokenizer, the extractor, the configurations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from speech import MAX_SECONDS, WORDS, sentence
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

END = "<|endoftext|>"
START = "<|startoftranscript|>"
TIME_STEP = 0.02
TEXT_TOKENS = 420
MEL_BINS = 80
MAX_TOKENS = 128
LONGEST_TRANSCRIPT = 24
"""Tokens that are decoded at most. Labels have up to 14; one clip that repeats itself to the 128th token would
cost seven points of WER on the small validation split, and hide what the settings are worth."""


def special_tokens() -> tuple[list[str], list[str]]:
    """Return Whisper's special tokens and its timestamps, in Whisper's own order.

    The order matters: transformers counts from the start token to find a language's, and takes every id above
    the special tokens for a timestamp.
    """
    special = [END, START, *(f"<|{code}|>" for code in LANGUAGES), "<|translate|>", "<|transcribe|>"]
    special += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{step * TIME_STEP:.2f}|>" for step in range(round(MAX_SECONDS / TIME_STEP) + 1)]
    return special, times


def train_vocabulary(seed: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a byte-level BPE on the demo's sentences; it holds all 256 bytes, so any text round-trips."""
    rng = np.random.default_rng(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*WORDS, *(sentence(rng) for _ in range(4000))], trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    return trained["vocab"], [(left, right) for left, right in trained["merges"]]


def build_processor(seed: int) -> WhisperProcessor:
    """Make the processor: a tokenizer around a newly trained vocabulary, an extractor of short windows."""
    vocabulary, merges = train_vocabulary(seed)
    special, times = special_tokens()
    # The end token is the last of the vocabulary, as in Whisper; the other special tokens come after it.
    vocabulary[END] = len(vocabulary)
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=merges)
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in times])
    tokenizer.set_prefix_tokens(language="english", task="transcribe")
    extractor = WhisperFeatureExtractor(feature_size=MEL_BINS, chunk_length=int(MAX_SECONDS))
    return WhisperProcessor(feature_extractor=extractor, tokenizer=tokenizer)


def generation_config(processor: WhisperProcessor) -> GenerationConfig:
    """Say how to decode: the ids of languages and tasks, and English transcription by default."""
    tokenizer: Any = processor.tokenizer
    ids = tokenizer.convert_tokens_to_ids
    return GenerationConfig(
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": ids(f"<|{code}|>") for code in LANGUAGES},
        task_to_id={task: ids(f"<|{task}|>") for task in ("transcribe", "translate")},
        no_timestamps_token_id=ids("<|notimestamps|>"),
        prev_sot_token_id=ids("<|startofprev|>"),
        decoder_start_token_id=ids(START),
        bos_token_id=ids(END),
        eos_token_id=ids(END),
        pad_token_id=ids(END),
        begin_suppress_tokens=[ids("\u0120"), ids(END)],
        suppress_tokens=[ids(f"<|{name}|>") for name in ("startoflm", "startofprev", "nospeech")],
        max_initial_timestamp_index=50,
        return_timestamps=False,
        language="en",
        task="transcribe",
        max_length=LONGEST_TRANSCRIPT,
    )


def build_model(processor: WhisperProcessor, seed: int) -> WhisperForConditionalGeneration:
    """Make the untrained model, about one million parameters and a window of four seconds, and say how it decodes."""
    tokenizer: Any = processor.tokenizer
    end = tokenizer.convert_tokens_to_ids(END)
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=MEL_BINS,
        d_model=128,
        encoder_layers=3,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=int(MAX_SECONDS * 50),
        max_target_positions=MAX_TOKENS,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    model.generation_config = generation_config(processor)
    return model
