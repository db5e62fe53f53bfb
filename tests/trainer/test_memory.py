"""What an error for want of memory looks like, and the same training in smaller pieces."""

from __future__ import annotations

import pytest
import torch

from trainer.config import TrainConfig
from trainer.memory import halve_micro_batch, is_out_of_memory, within_micro_batch

RAY_TEXT = """ray::_train_here() (pid=12, ip=10.0.0.3)
  File "trainer/train.py", line 152, in train
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"""


def real_error() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


def wrapped(cause: BaseException) -> Exception:
    try:
        try:
            raise cause
        except BaseException as error:
            raise ValueError("the trial failed") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("anything"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("NCCL Error 1: unhandled cuda error ... Cuda failure 2 'out of memory'"),
        RuntimeError(RAY_TEXT),
        real_error(),
    ],
    ids=lambda error: str(error)[:20],
)
def test_errors_for_want_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert is_out_of_memory(wrapped(wrapped(error)))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered"),
        OSError(28, "No space left on device"),
        RuntimeError("Task was killed due to the node running low on memory."),
    ],
)
def test_other_errors_are_others(error: Exception) -> None:
    assert not is_out_of_memory(error)
    assert not is_out_of_memory(wrapped(error))


@pytest.mark.parametrize(
    ("batch", "accumulation", "expected"), [(8, 1, (4, 2)), (9, 2, (3, 6)), (1, 6, None)]
)
def test_halving_keeps_the_effective_batch(
    batch: int, accumulation: int, expected: tuple[int, int] | None
) -> None:
    cut = TrainConfig(train_batch_size=12, micro_batch=5)
    assert within_micro_batch(cut) == cut.replace(train_batch_size=4, gradient_accumulation_steps=3)
    config = TrainConfig(train_batch_size=batch, gradient_accumulation_steps=accumulation, workers=2)
    halved = halve_micro_batch(config)
    if expected is None:
        assert halved is None
        return
    assert halved == config.replace(train_batch_size=expected[0], gradient_accumulation_steps=expected[1])
