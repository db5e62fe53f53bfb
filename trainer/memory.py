"""Memory: how much is free, here and on a GPU; errors where it runs out, and the same training in smaller pieces."""

from __future__ import annotations

import os
import re

from trainer.config import TrainConfig

_SIGNS = re.compile(
    r"(CUDA|HIP|NCCL|Cuda failure)[^\n]{0,80}out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)
PRETENDED_GPUS = "TUNE_WHISPER_PRETEND_GPUS"
"""Set where tests tell Ray of GPUs that are not there: to their compute capability, or to 1."""
BF16_CAPABILITY = 8.0
"""Compute capability from which on GPUs have bf16."""


def use_share_of_gpu(share: float) -> None:
    """Let this process take no more than a part of its GPU: others compute there, too."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


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
    for found in errors:
        origins = (found.__cause__, found.__context__)
        errors += [each for each in origins if each is not None and each not in errors]
    return any(
        _SIGNS.search(str(found))
        or (type(found).__module__.startswith("torch") and type(found).__name__ == "OutOfMemoryError")
        for found in errors
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
