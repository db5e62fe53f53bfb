"""The audio window: how much of Whisper's 30 seconds a training uses.

Whisper fills every clip with silence up to 30 s, and its encoder works on all of it, while the clips that people
tune on last 3 to 10 s. The encoder's positions are fixed sinusoids, one vector each, so the first rows of the table
are those of a Whisper with a shorter window. Nothing is cut out of the model: it only uses fewer rows for a while,
and what is saved is the model with all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trainer.config import TrainConfig

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration

    from trainer.data.prepared import PreparedData

FRAMES_PER_SECOND = 100
"""Of Whisper's log-mel features (hop of 160 samples at 16 kHz)."""
_BATCH_STEP = 32
"""Windows of single batches are a third of a second apart."""
_SILENCE = 40
"""Frames of silence behind the longest clip of a batch: a model trained with hardly any is worse in the whole window,
which is padded with it (evaluation loss of the demo after 4 epochs at 1e-3, seed 1: 0.150, with them 0.134)."""
_STEP = 16
"""Windows are whole multiples of so many frames: the encoder halves them, and GPUs like multiples of 8."""
_LEAST_SHARE = 1 / 3
"""Of the model's own window. In a shorter one Whisper before fine-tuning misses the end of a clip and repeats itself:
whisper-base has 20.7 % WER on 40 German clips of at most 5.5 s in 10 s, 72.3 % in 7.5 s, 194.2 % in 6 s
(benchmarks/README.md; ggml-org/whisper.cpp#1951, where it is called `audio_ctx`)."""
GUARD_CLIPS = 64
"""Validation clips on which the base model is compared in a training's window and in its whole one."""
_MORE_TOKENS = 1.2
_MORE_POINTS, _MORE_SHARE = 1.0, 0.05
_UNUSABLE = 80.0
"""WER in percent from which on it says nothing of a window: the model does not know the language."""


def window_frames(config: TrainConfig, data: PreparedData, full: int) -> int:
    """Feature frames of the window that `config` asks for, of a model whose own has `full` (3000 for 30 s).

    `audio_window: null` (auto) takes the longest clip of all splits, and a third of `full` at least; so does `batch`,
    whose windows are at most that long. A number of seconds is never taken below the longest clip: clips are not cut.
    A stream, whose lengths are not known, must have a number, and it is never taken below a third of `full` either.
    A clip that is as long as the number has up to two frames more.
    """
    longest = max(split.most_frames() for split in data.splits.values())
    asked = config.audio_window
    wanted = longest
    if isinstance(asked, float):
        wanted = max(longest, round(asked * FRAMES_PER_SECOND) + 2 * config.streaming)
    chosen = not isinstance(asked, float) or config.streaming
    return min(full, max(round_window(wanted), least_frames(full) if chosen else 0))


def least_frames(full: int) -> int:
    """The shortest window that is chosen for a model whose own has `full` frames."""
    return min(full, round_window(math.ceil(full * _LEAST_SHARE)))


def round_window(frames: int) -> int:
    """The least window of so many frames."""
    return math.ceil(frames / _STEP) * _STEP


def varies(config: TrainConfig) -> bool:
    """Whether each effective batch has a window of its own; not where each shape would have to be compiled."""
    if config.torch_compile:
        return False
    return config.audio_window == "batch" or (config.audio_window is None and config.group_by_length)


def batch_frames(longest: int, most: int, least: int) -> int:
    """The window of a training's batch whose longest clip has so many frames: one of a few lengths, at most `most`.

    Few, since a GPU prepares itself anew for each shape. Where `least` allows it: see `least_frames`.
    """
    return min(most, max(least, math.ceil((longest + _SILENCE) / _BATCH_STEP) * _BATCH_STEP))


def clip_frames(frames: int, most: int, least: int) -> int:
    """The window that a clip of so many frames is evaluated in, where it is not the whole one; at least `least`.

    A quarter of `most`, two, three or all: batches of one window stay large, since decoding costs by the batch. What is
    written for a clip depends on nothing else.
    """
    quarter = 2 * math.ceil(most / 8)  # even, as the encoder halves frames
    return min(most, max(least, math.ceil((frames + _SILENCE) / quarter) * quarter))


def mean_evaluated_frames(config: TrainConfig, data: PreparedData, full: int) -> float:
    """Feature frames of a validation clip's window where the whole one is not evaluated; arguments as above."""
    most = window_frames(config, data, full)
    if not varies(config):
        return float(most)
    return statistics.fmean(
        clip_frames(frames, most, least_frames(full))
        for frames in data.splits["validation"].values("frames").tolist()
    )


@dataclasses.dataclass(frozen=True)
class Written:
    """What a model wrote for some clips in one window."""

    tokens: Sequence[int]
    """Of each clip, without the prefix and the end token."""
    limit: int
    """Most tokens that it may write for a clip."""
    rate: float
    """The objective, in percent."""


def window_problem(whole: Written, short: Written) -> str | None:
    """Why the base model cannot be trusted in a training's window, in words; None where it can."""
    if sum(short.tokens) > _MORE_TOKENS * sum(whole.tokens):
        return f"it writes {sum(short.tokens):,} tokens instead of {sum(whole.tokens):,}"
    cut, before = (sum(count >= each.limit for count in each.tokens) for each in (short, whole))
    if cut > before:
        return f"it leaves {cut} of {len(short.tokens)} transcripts without an end instead of {before}"
    allowed = whole.rate + max(_MORE_POINTS, _MORE_SHARE * whole.rate)
    if whole.rate < _UNUSABLE and short.rate > allowed:
        return f"its WER is {short.rate:.2f} % instead of {whole.rate:.2f} %"
    return None


def set_window(model: WhisperForConditionalGeneration, frames: int) -> None:
    """Make the encoder take `frames` feature frames (an even number) and use as many rows of its positions as it needs.

    transformers 5.23 takes both numbers from these two places at every forward pass.
    """
    encoder = model.get_encoder()
    encoder.config.max_source_positions = frames // 2
    encoder.embed_positions.num_embeddings = frames // 2


@contextlib.contextmanager
def in_window(model: WhisperForConditionalGeneration, frames: int) -> Iterator[None]:
    """The same for the length of a block."""
    before = 2 * int(model.get_encoder().embed_positions.num_embeddings)
    set_window(model, frames)
    try:
        yield
    finally:
        set_window(model, before)
