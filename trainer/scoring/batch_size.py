"""How many clips of an evaluation are measured at once: so many as were asked for, or as there is memory for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from trainer.memory import is_out_of_memory, room_on_gpu

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration

CPU_CLIPS = 16
"""What `auto` is on a CPU, where more clips at once are hardly faster."""
GPU_CLIPS = 128
"""The most that `auto` is on a GPU: beyond it a token takes as long as the reading of the clips' caches."""
_ENCODER_BYTES = 50
"""For each position and number of the width: what the encoder and the loss hold at once, rounded up."""
_PREFIX = 4
"""Tokens before a transcript."""
_Found = TypeVar("_Found")


def clip_bytes(model: WhisperForConditionalGeneration, frames: int, precision: str) -> int:
    """About what a clip of so many frames takes of memory while it is measured and transcribed."""
    config, generation = model.config, model.generation_config
    each = 4 if precision == "fp32" else 2
    positions, tokens = frames // 2, min(generation.max_length + _PREFIX, config.max_target_positions)
    caches = 2 * config.decoder_layers * config.d_model * (positions + tokens) * each
    scores = 4 * 4 * config.vocab_size
    encoder = positions * config.d_model * _ENCODER_BYTES
    return int((caches + scores) * (generation.num_beams or 1) + encoder)


class BatchSize:
    """Clips at once, fewer for the rest of a training once memory ran out."""

    def __init__(self, asked: int | None, clip_bytes: int, *, same_everywhere: bool = False) -> None:
        """Begin with what was asked for.

        Args:
            asked: clips; `None` (`auto`): on a GPU as many as there is room for, at most `GPU_CLIPS`; else `CPU_CLIPS`.
            clip_bytes: about what each takes.
            same_everywhere: processes take the same steps together, so that none may take fewer clips by itself.
        """
        self._clip_bytes, self._same_everywhere = clip_bytes, same_everywhere
        self._by_room = asked is None and not same_everywhere and room_on_gpu() is not None
        self.loaded = asked or (GPU_CLIPS if self._by_room else CPU_CLIPS)
        """Clips of a batch that is loaded, of which the parts are taken that there is memory for."""
        self._limit = self.at_once = self.loaded

    def start(self) -> None:
        """Look how much room there is now; to be called before an evaluation takes any itself."""
        room = room_on_gpu() if self._by_room else None
        fitting = self._limit if room is None else max(1, room // self._clip_bytes)
        self.at_once = min(self._limit, fitting)

    def in_parts(
        self, clips: int, work: Callable[[slice], _Found], free: Callable[[], None] = lambda: None
    ) -> list[_Found]:
        """What `work` gives for the clips of a batch, as many of them at a time as there is memory for.

        Args:
            clips: their number.
            work: is given which of them.
            free: gives memory back that is not needed, where it ran out.

        Raises:
            RuntimeError: one clip alone does not fit.
        """
        found: list[_Found] = []
        first = 0
        while first < clips:
            left = clips - first
            size = math.ceil(left / math.ceil(left / self.at_once))  # all of about the same size
            try:
                found.append(work(slice(first, first + size)))
            except RuntimeError as error:
                if size == 1 or self._same_everywhere or not is_out_of_memory(error):
                    raise
            else:
                first += size
                continue
            # Outside of the block: the error holds the frames, and they the tensors.
            self._limit = self.at_once = size // 2
            free()
            _empty_cache()
        return found


def _empty_cache() -> None:
    import torch

    torch.cuda.empty_cache()
