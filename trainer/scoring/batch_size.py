"""How many clips of an evaluation are measured at once: fewer once memory ran out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from trainer.memory import is_out_of_memory

CPU_CLIPS = 16
"""What `auto` is on a CPU, where more clips at once are hardly faster."""
GPU_CLIPS = 128
"""The same on a GPU: beyond it a token takes as long as the reading of the clips' caches."""
_Found = TypeVar("_Found")


class BatchSize:
    """Clips at once, fewer for the rest of a training once memory ran out."""

    def __init__(self, asked: int | None, *, same_everywhere: bool = False) -> None:
        """Begin with what was asked for.

        Args:
            asked: clips; `None` (`auto`): `GPU_CLIPS` on a GPU, else `CPU_CLIPS`.
            same_everywhere: processes take the same steps together, so that none may take fewer clips by itself.
        """
        import torch

        self._same_everywhere = same_everywhere
        many = torch.cuda.is_available() and not same_everywhere
        self.loaded = asked or (GPU_CLIPS if many else CPU_CLIPS)
        """Clips of a batch that is loaded, of which the parts are taken that there is memory for."""
        self.at_once = self.loaded

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
            self.at_once = size // 2
            free()
            import torch

            torch.cuda.empty_cache()
        return found
