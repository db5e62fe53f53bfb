"""A few real steps that tell how fast a training is, and batches cut into passes that fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DivergedError
from trainer.probe import probe_step


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
    config = small_config.replace(gradient_accumulation_steps=4, micro_batch=1, max_steps=1)
    assert probe_step(config.replace(train_batch_size=4), data, seconds=0.0) is None
    rate = probe_step(config.replace(train_batch_size=3), data, seconds=0.0)
    assert rate is not None and rate > 0
    assert passes.sizes == [4] + [3] * (len(passes.sizes) - 1)


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


def test_a_model_whose_loss_is_no_number(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainer.training.whisper_trainer.summed_cross_entropy",
        lambda scores, labels, label_smoothing: scores.sum() * float("nan"),
    )
    with pytest.raises(DivergedError, match="model='demo': its loss is not a finite number"):
        probe_step(small_config, data, seconds=0.0)
