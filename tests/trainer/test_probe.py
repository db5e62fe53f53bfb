"""A few real steps that tell what fits in memory and how fast it is, and batches cut into passes that fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DivergedError
from trainer.memory import within_micro_batch
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from trainer.probe import Measured, probe_step
from trainer.train import train
from trainer.training import arguments
from tune.workers.retries import ACCUMULATION, MICRO_BATCH, train_persistently

# ----- the micro-batch -----


def test_a_batch_in_smaller_passes_trains_the_same_weights(small_config: TrainConfig, tmp_path: Path) -> None:
    config = small_config.replace(train_batch_size=12, max_steps=3, evaluations=1, max_eval_clips=2)
    config = config.replace(log_every_seconds=1000.0)  # else a busy machine would log the loss of fewer steps
    cut = config.replace(micro_batch=5)
    assert within_micro_batch(cut) == cut.replace(train_batch_size=3, gradient_accumulation_steps=4)
    assert within_micro_batch(cut.replace(micro_batch=12)).train_batch_size == 12
    weights, losses, passes = {}, {}, []
    original = WhisperForConditionalGeneration.forward

    def forward(self: Any, input_features: Any = None, **kwargs: Any) -> Any:
        if input_features is not None:
            passes.append(len(input_features))
        return original(self, input_features, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhisperForConditionalGeneration, "forward", forward)
        for name, one in (("whole", config), ("cut", cut)):
            rows: list[Any] = []
            result = train(
                one, lambda metrics, folder, rows=rows: rows.append(metrics), output_dir=tmp_path / name
            )
            assert (result.steps, result.samples_seen) == (3, 36)
            assert result.checkpoint is not None
            weights[name] = load_file(result.checkpoint / "model.safetensors")
            losses[name] = rows[0]["loss"]
    assert passes == [12] * 3 + [3] * 12
    assert losses["cut"] == pytest.approx(losses["whole"], rel=1e-4)
    assert weights["cut"].keys() == weights["whole"].keys()
    start = load_model(config, load_processor(config)).state_dict()
    learned = {
        one: torch.cat([(found[name] - start[name]).flatten() for name in found])
        for one, found in weights.items()
    }
    # Sums in another order: Adam makes something of the last digits of a gradient that is almost 0.
    assert (learned["cut"] - learned["whole"]).norm() < 1e-3 * learned["whole"].norm()


def test_memory_that_runs_out_halves_the_passes_that_are_made() -> None:
    def work(config: TrainConfig, checkpoint: Any) -> int:
        if within_micro_batch(config).train_batch_size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return config.effective_batch_size

    told: list[dict[str, float]] = []
    done = train_persistently(
        work,
        TrainConfig(train_batch_size=16, micro_batch=8),
        checkpoints=list,
        tell=told.append,
    )
    assert done == 16
    # Not 8 first, which it had already.
    assert told == [{MICRO_BATCH: 4.0, ACCUMULATION: 4.0}, {MICRO_BATCH: 2.0, ACCUMULATION: 8.0}]


# ----- the steps -----


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Clips of each training pass, and the most that have memory."""
    found = SimpleNamespace(sizes=[], tokens=[], frames=set(), most=10**6)
    original = WhisperForConditionalGeneration.forward

    def forward(self: Any, input_features: Any = None, **kwargs: Any) -> Any:
        if input_features is not None and self.training:
            found.sizes.append(len(input_features))
            found.tokens.append(kwargs["labels"].shape[1] if "labels" in kwargs else None)
            found.frames.add(input_features.shape[-1])
            if len(input_features) > found.most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, input_features, **kwargs)

    monkeypatch.setattr(WhisperForConditionalGeneration, "forward", forward)
    yield found


@pytest.fixture(scope="module")
def data(small_config: TrainConfig) -> PreparedData:
    return prepare(small_config)


def test_the_largest_micro_batch_that_has_memory(
    small_config: TrainConfig, data: PreparedData, passes: SimpleNamespace
) -> None:
    passes.most = 9
    config = small_config.replace(gradient_accumulation_steps=4, micro_batch=1, max_steps=1)
    found = probe_step(config, data, micro_batches=[2, 4, 8, 16], seconds=0.0)
    assert [(one.micro_batch, one.fits) for one in found] == [(16, False), (8, True)]
    assert found[-1].samples_per_second is not None and found[-1].samples_per_second > 0
    assert (found[-1].peak_bytes, found[-1].total_bytes) == (None, None)  # no CUDA here
    assert passes.sizes == [16] + [8] * (len(passes.sizes) - 1)


def test_nothing_has_memory(small_config: TrainConfig, data: PreparedData, passes: SimpleNamespace) -> None:
    passes.most = 0
    found = probe_step(small_config, data, micro_batches=[2, 1], seconds=0.0)
    assert found == [Measured(2, None), Measured(1, None)]


def test_memory_of_the_evaluation_counts_unless_it_is_left_out(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("trainer.training.whisper_trainer.transcribe_encoded", full)
    assert [one.fits for one in probe_step(small_config, data, micro_batches=[2], seconds=0.0)] == [False]
    found = probe_step(small_config, data, micro_batches=[2], seconds=0.0, evaluated=False)
    assert [one.fits for one in found] == [True]


def test_the_clips_with_the_longest_texts_in_the_window_of_all(
    small_config: TrainConfig, data: PreparedData, passes: SimpleNamespace
) -> None:
    split = data.splits["train"].only(range(10))
    data = dataclasses.replace(data, splits={**data.splits, "train": split})
    longest = sorted((split.n_tokens(clip) for clip in range(len(split))), reverse=True)
    seen: list[int] = []
    original = type(split).labels

    def labels(self: Any, clip: int) -> list[int]:
        seen.append(len(original(self, clip)))
        return original(self, clip)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(split), "labels", labels)
        probe_step(small_config, data, micro_batches=[3], seconds=0.0, evaluated=False)
    assert set(seen) == set(longest[:3])
    (frames,) = passes.frames
    assert frames >= max(one.most_frames() for one in data.splits.values())
    # More clips than there are.
    found = probe_step(small_config, data, micro_batches=[len(split) + 2], seconds=0.0, evaluated=False)
    assert passes.sizes[-1] == len(split) + 2
    assert found[-1].fits


def test_the_clock_starts_when_all_are_ready(small_config: TrainConfig, data: PreparedData) -> None:
    calls: list[int] = []

    def ready() -> bool:
        calls.append(1)
        return False

    assert probe_step(small_config, data, micro_batches=[4], seconds=9.0, evaluated=False, ready=ready) == []
    assert calls == [1]


def test_a_compiled_training_is_timed_once_it_is_compiled(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = functools.partial(arguments.Seq2SeqTrainingArguments, torch_compile_backend="eager")
    monkeypatch.setattr(arguments, "Seq2SeqTrainingArguments", made)
    compiled: list[dict[str, int]] = []

    def ready() -> bool:
        compiled.append(dict(counters["stats"]))
        return True

    counters.clear()
    config = small_config.replace(torch_compile=True, max_eval_clips=2, generation_max_length=4)
    found = probe_step(config, data, micro_batches=[4], seconds=0.5, ready=ready)
    assert found[-1].fits
    assert compiled == [dict(counters["stats"])]
    assert compiled[0]["unique_graphs"] > 0


@pytest.mark.parametrize("raised", [KeyError("no such thing"), RuntimeError("shapes differ")])
def test_other_errors_of_the_steps_are_passed_on(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(WhisperForConditionalGeneration, "forward", fail)
    with pytest.raises(type(raised), match=str(raised.args[0])):
        probe_step(small_config, data, micro_batches=[2, 1], seconds=0.0)


def test_a_model_whose_loss_is_no_number(
    small_config: TrainConfig, data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "trainer.training.whisper_trainer.summed_cross_entropy",
        lambda scores, labels, label_smoothing: scores.sum() * float("nan"),
    )
    with pytest.raises(DivergedError, match="model='demo': its loss is no finite number"):
        probe_step(small_config, data, micro_batches=[2], seconds=0.0)
