"""Memory: how much is free, here and on a GPU; errors where it runs out, and the same training in smaller pieces."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil

from trainer.config import TrainConfig

_SIGNS = re.compile(
    r"(CUDA|HIP|NCCL|Cuda failure)[^\n]{0,80}out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)
_USABLE = 0.85
"""Of what is left on a GPU: parts of it are in pieces that are too small, and CUDA itself takes some."""
_SHARE = "TUNE_WHISPER_GPU_SHARE"
PRETENDED_GPUS = "TUNE_WHISPER_PRETEND_GPUS"
"""Set where tests tell Ray of GPUs that are not there: to their compute capability, or to 1."""
BF16_CAPABILITY = 8.0
"""Compute capability from which on GPUs have bf16."""
_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_INACTIVE = re.compile(r"^inactive_file (\d+)$", re.MULTILINE)
"""Files that the kernel keeps in memory and gives back, such as checkpoints that were just written."""


def free_memory() -> int:
    """Bytes of main memory that this process may still take: the machine's, or what its container or job may."""
    free = int(psutil.virtual_memory().available)
    own = re.search(r"^0::/(.*)$", _OWN_CGROUP.read_text(), re.MULTILINE) if _OWN_CGROUP.exists() else None
    group = _CGROUPS / (own[1] if own else "")
    for place in (group, *group.parents):
        try:
            most, used, stat = (
                (place / f"memory.{name}").read_text().strip() for name in ("max", "current", "stat")
            )
        except OSError:  # the top of all, or no group of this kind
            continue
        inactive = _INACTIVE.search(stat)
        if most.isdecimal():
            free = min(free, int(most) - int(used) + int(inactive[1] if inactive else 0))
    return free


def use_share_of_gpu(share: float) -> None:
    """Let this process take only a part of its GPU where it may choose: others compute there, too."""
    os.environ[_SHARE] = str(share)


def room_on_gpu() -> int | None:
    """Bytes that this process can take of its GPU beside what it has in tensors; None where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    share = float(os.environ.get(_SHARE, "1"))
    free, total = torch.cuda.mem_get_info()
    held, kept = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    return max(0, int(_USABLE * min(free + kept - held, share * total - held)))


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
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        found = left.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        kind = type(found)
        if kind.__module__.startswith("torch") and kind.__name__ == "OutOfMemoryError":
            return True
        if _SIGNS.search(str(found)):
            return True
        left += [found.__cause__, found.__context__]
    return False


def within_micro_batch(config: TrainConfig) -> TrainConfig:
    """The same training in forward passes of at most `config.micro_batch` clips; unchanged where they have no more."""
    while config.micro_batch is not None and config.train_batch_size > config.micro_batch:
        config = _divided(config)
    return config


def halve_micro_batch(config: TrainConfig) -> TrainConfig | None:
    """The same training with half the clips in a forward pass and twice the passes; `None` where one clip is left.

    What is halved are the passes that it really makes, which `config.micro_batch` may have made smaller.
    """
    config = within_micro_batch(config)
    return None if config.train_batch_size == 1 else _divided(config)


def _divided(config: TrainConfig) -> TrainConfig:
    """The same training with its batch divided by its smallest prime factor, and so many times as many passes.

    So the effective batch, and with it every step's clips and gradient, stay as they are.
    """
    size = config.train_batch_size
    factor = next(factor for factor in range(2, size + 1) if size % factor == 0)
    return config.replace(
        train_batch_size=size // factor,
        gradient_accumulation_steps=config.gradient_accumulation_steps * factor,
    )
