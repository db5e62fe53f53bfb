"""Memory: how much is free, here and on a GPU; errors where it runs out, and the same training in smaller pieces."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import TypeVar

from trainer.config import TrainConfig

_SIGNS = re.compile(
    r"(CUDA|HIP|NCCL|Cuda failure)[^\n]{0,80}out of memory"
    r"|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED"  # where PyTorch asks how much is free (pytorch#112377)
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)
PRETENDED_GPUS = "TUNE_WHISPER_PRETEND_GPUS"
"""Set where tests tell Ray of GPUs that are not there: to their compute capability, or to 1."""
BF16_CAPABILITY = 8.0
"""Compute capability from which on GPUs have bf16."""
CPU_CLIPS = 16
"""What `auto` is on a CPU, where more clips at once are hardly faster."""
GPU_CLIPS = 128
"""The same on a GPU: beyond it a token takes as long as the reading of the clips' caches."""
_CONTEXT_BYTES = 600_000_000
"""Of CUDA's context and libraries in each process, which PyTorch's limit does not count: some 0.5 GB (not measured)."""
_Found = TypeVar("_Found")


def use_share_of_gpu(share: float) -> None:
    """Let this process take no more than a part of its GPU: others compute there, too."""
    import torch

    if torch.cuda.is_available():
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(max(share / 2, share - _CONTEXT_BYTES / total))


def gpu_capability() -> float | None:
    """The compute capability of this process' GPU, such as 8.6; None where there is none."""
    pretended = os.environ.get(PRETENDED_GPUS)
    if pretended:
        return float(pretended) if "." in pretended else None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return major + minor / 10


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that a tensor found no memory.

    Also errors of other processes count, which arrive as text inside another error. A process that the system
    killed for its memory raises nothing and is not recognised here.
    """
    errors = [error]
    for cause in errors:
        origins = (cause.__cause__, cause.__context__)
        errors += [each for each in origins if each is not None and each not in errors]
    return any(
        _SIGNS.search(str(cause))
        or (type(cause).__module__.startswith("torch") and type(cause).__name__ == "OutOfMemoryError")
        for cause in errors
    )


def within_micro_batch(config: TrainConfig) -> TrainConfig:
    """The same training in forward passes of at most `config.micro_batch` clips; unchanged where they have no more."""
    return _in_passes(config, config.micro_batch or config.train_batch_size)


def halve_micro_batch(config: TrainConfig) -> TrainConfig | None:
    """The same training with half the clips in a forward pass and twice the passes; `None` where one clip is left.

    What is halved are the passes that it really makes, which `config.micro_batch` may have made smaller. A number that
    is not even is divided by its smallest factor.
    """
    config = within_micro_batch(config)
    return None if config.train_batch_size == 1 else _in_passes(config, config.train_batch_size - 1)


def _in_passes(config: TrainConfig, most: int) -> TrainConfig:
    """The same training with as many clips in a pass as divide its batch, at most so many, in more passes.

    So the effective batch, and with it every step's clips and gradient, stay as they are.
    """
    size = next(
        each
        for each in range(min(most, config.train_batch_size), 0, -1)
        if config.train_batch_size % each == 0
    )
    passes = config.gradient_accumulation_steps * (config.train_batch_size // size)
    return config.replace(train_batch_size=size, gradient_accumulation_steps=passes)


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

        `free` gives memory back that is not needed, where it ran out.

        Raises:
            RuntimeError: one clip alone does not fit.
        """
        parts: list[_Found] = []
        first = 0
        while first < clips:
            left = clips - first
            size = math.ceil(left / math.ceil(left / self.at_once))  # all of about the same size
            try:
                parts.append(work(slice(first, first + size)))
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
        return parts
