"""Memory that runs out: what such an error looks like; the same training, and evaluation, in smaller pieces."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distributed_run import little_memory
from safetensors.torch import load_file
from training import evaluate, train
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import ConfigError, DivergedError
from trainer.memory import (
    CPU_CLIPS,
    GPU_CLIPS,
    BatchSize,
    halve_micro_batch,
    is_out_of_memory,
    within_micro_batch,
)
from trainer.probe import probe_step
from trainer.scoring.decoding import Decoder

RAY_TEXT = """ray::_train_here() (pid=12, ip=10.0.0.3)
  File "trainer/train.py", line 152, in train
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB"""


def real_error() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


def wrapped(cause: BaseException) -> Exception:
    error = ValueError("the trial failed")
    error.__cause__ = cause
    return error


WANT_OF_MEMORY = [
    torch.OutOfMemoryError("anything"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:844"),
    RuntimeError("NCCL Error 1: unhandled cuda error ... Cuda failure 2 'out of memory'"),
    RuntimeError(RAY_TEXT),
    real_error(),
]
OTHERS = [
    RuntimeError("CUDA error: device-side assert triggered"),
    OSError(28, "No space left on device"),
    RuntimeError("Task was killed due to the node running low on memory."),
]


@pytest.mark.parametrize("error", [*WANT_OF_MEMORY, *OTHERS], ids=lambda error: str(error)[:20])
def test_errors_for_want_of_memory_are_told_from_others(error: Exception) -> None:
    for each in (error, wrapped(wrapped(error))):
        assert is_out_of_memory(each) == (error in WANT_OF_MEMORY)


@pytest.mark.parametrize(
    ("batch", "accumulation", "expected"), [(8, 1, (4, 2)), (9, 2, (3, 6)), (1, 6, None)]
)
def test_halving_keeps_the_effective_batch(
    batch: int, accumulation: int, expected: tuple[int, int] | None
) -> None:
    config = TrainConfig(train_batch_size=batch, gradient_accumulation_steps=accumulation, workers=2)
    halved = halve_micro_batch(config)
    assert (halved and (halved.train_batch_size, halved.gradient_accumulation_steps)) == expected
    cut = TrainConfig(train_batch_size=12, micro_batch=5)
    assert within_micro_batch(cut) == cut.replace(train_batch_size=4, gradient_accumulation_steps=3)


def test_a_training_goes_on_with_half_the_micro_batch(
    small_config: TrainConfig, one_thread: None, tmp_path: Path
) -> None:
    """The same weights come out, whatever the size of the pieces."""
    config = small_config.replace(
        **{"max_train_clips": 32, "max_eval_clips": 1, "epochs": 1.0, "evaluations": 2, "augment": 0.8},
        **{"train_batch_size": 4, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5},
    )
    train(config, output_dir=tmp_path / "whole")
    halved = halve_micro_batch(config)
    train(halved, output_dir=tmp_path / "halved", resume_from=tmp_path / "whole" / "checkpoint-2")
    found, expected = (
        load_file(tmp_path / name / "checkpoint-4" / "model.safetensors") for name in ("halved", "whole")
    )
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, atol=1e-5, rtol=0, msg=name)


def test_parts_are_halved_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [BatchSize(asked).at_once for asked in (None, 5)] == [CPU_CLIPS, 5]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert BatchSize(None, same_everywhere=True).loaded == CPU_CLIPS
    size, freed, most = BatchSize(None), [], 40
    tried: list[int] = []

    def work(part: slice) -> range:
        tried.append(part.stop - part.start)
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return range(part.start, part.stop)

    found = size.in_parts(GPU_CLIPS, work, lambda: freed.append(size.at_once))
    assert list(itertools.chain(*found)) == list(range(GPU_CLIPS))
    assert tried == [128, 64, 32, 32, 32, 32]
    assert freed == [64, 32]
    tried.clear()
    most = 0  # the next evaluation
    with pytest.raises(torch.OutOfMemoryError):
        size.in_parts(40, work)
    assert tried == [20, 10, 5, 2, 1]


@pytest.mark.parametrize(
    ("error", "same"), [(RuntimeError("shapes differ"), False), (torch.OutOfMemoryError("of CUDA"), True)]
)
def test_other_errors_and_processes_in_step_are_not_halved(error: RuntimeError, same: bool) -> None:
    tried: list[slice] = []

    def fail(part: slice) -> None:
        tried.append(part)
        raise error

    with pytest.raises(RuntimeError, match=str(error)):
        BatchSize(8, same_everywhere=same).in_parts(8, fail)
    assert tried == [slice(0, 8)]


def test_the_same_transcripts_in_little_memory(small_config: TrainConfig) -> None:
    config = small_config.replace(max_eval_clips=32)
    whole = evaluate(config.replace(eval_batch_size=32))
    with little_memory(9) as seen:
        found = evaluate(config)
    assert seen == [16, 8, 8, 8, 8]
    assert found.predictions == whole.predictions
    assert (found.rates["wer"], found.rates["cer"]) == (whole.rates["wer"], whole.rates["cer"])
    assert found.rates["loss"] == pytest.approx(whole.rates["loss"], rel=1e-4)
    split, told = prepare(config).splits["validation"], list[int]()
    with little_memory(9) as seen:
        transcripts = Decoder(config).transcribe(split, lambda done, total: told.append(done))
    assert (transcripts.texts, transcripts.batch_size) == (whole.predictions, 8)
    assert seen[1:] == [16, 8, 8, 8, 8]  # behind the one that warms up
    assert told == [8, 16, 24, 32]
    with little_memory(0), pytest.raises(ConfigError, match="a single clip does not fit in the memory of"):
        Decoder(config).transcribe(split)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Clips of each training pass, and the most that have memory."""
    found = SimpleNamespace(sizes=[], frames=set(), most=10**6)
    original = WhisperForConditionalGeneration.forward

    def forward(self: Any, input_features: Any = None, **kwargs: Any) -> Any:
        if input_features is not None and self.training:
            found.sizes.append(len(input_features))
            found.frames.add(input_features.shape[-1])
            if len(input_features) > found.most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, input_features, **kwargs)

    monkeypatch.setattr(WhisperForConditionalGeneration, "forward", forward)
    yield found


@pytest.fixture(scope="module")
def data(small_config: TrainConfig) -> PreparedData:
    return prepare(small_config)


def test_a_batch_without_memory_has_no_time(
    small_config: TrainConfig, data: PreparedData, passes: SimpleNamespace
) -> None:
    passes.most = 3
    config = small_config.replace(gradient_accumulation_steps=4, max_steps=1)
    assert probe_step(config.replace(train_batch_size=4), data, seconds=0.0) is None
    rate = probe_step(config.replace(train_batch_size=3), data, seconds=0.0)
    assert rate is not None and rate > 0
    assert passes.sizes == [4] + [3] * (len(passes.sizes) - 1)
    assert probe_step(config.replace(train_batch_size=4, micro_batch=2), data, seconds=0.0)
    assert passes.sizes[-1] == 2


def test_the_clips_with_the_longest_texts_in_the_window_of_all(
    small_config: TrainConfig, data: PreparedData, passes: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = data.splits["train"].only(range(10))
    data = dataclasses.replace(data, splits={**data.splits, "train": split})
    longest = sorted((split.n_tokens(clip) for clip in range(len(split))), reverse=True)
    original, seen = type(split).labels, set[int]()

    def labels(self: Any, clip: int) -> list[int]:
        seen.add(len(original(self, clip)))
        return original(self, clip)

    monkeypatch.setattr(type(split), "labels", labels)
    probe_step(small_config.replace(train_batch_size=3), data, seconds=0.0)
    assert seen == set(longest[:3])
    (frames,) = passes.frames
    assert frames >= max(one.most_frames() for one in data.splits.values())
    # More clips than there are.
    assert probe_step(small_config.replace(train_batch_size=len(split) + 2), data, seconds=0.0)
    assert passes.sizes[-1] == len(split) + 2


@pytest.mark.parametrize("schedule", ["polynomial", "warmup_stable_decay"])
def test_every_schedule_has_a_time(schedule: str, small_config: TrainConfig, data: PreparedData) -> None:
    assert probe_step(small_config.replace(scheduler_type=schedule), data, seconds=0.0)


def test_a_model_whose_loss_is_no_number(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainer.training.whisper_trainer.summed_cross_entropy",
        lambda scores, labels, label_smoothing: scores.sum() * float("nan"),
    )
    with pytest.raises(DivergedError, match="model='demo': its loss is not a finite number"):
        probe_step(small_config, data, seconds=0.0)
