"""What a step asks of a GPU: that the host never waits for it, and that little is copied to it.

Without a GPU it is seen by the operations that would wait for one.
"""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_loss import BYTES, at_most
from torch.utils._python_dispatch import TorchDispatchMode
from training import evaluate
from transformers import TrainerCallback

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.scoring.decoding import Decoder
from trainer.train import make_trainer
from trainer.training.arguments import loader_processes
from trainer.training.whisper_trainer import WhisperTrainer

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh"}
"""`.item()` and `bool()`; what has as many results as the numbers say; `torch.tensor(...)`, which copies."""


class Watched(TrainerCallback):
    """Switches something on within the steps, but for the first."""

    def __init__(self, switch: Any) -> None:
        self.switch = switch

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.switch(state.global_step > 0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.switch(False)


class Operations(TorchDispatchMode):
    """Names of operations, while it is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.on, self.found = False, set[str]()

    def switch(self, on: bool) -> None:
        self.on = on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.on:
            self.found.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


class EvaluatesAfterTwo(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_evaluate = state.global_step == 2


def trainer_of(config: TrainConfig, folder: Path) -> WhisperTrainer:
    data = prepare(config)
    return make_trainer(config, data, data.splits["validation"], folder)


STEPS: list[dict[str, Any]] = [
    {},
    {"gradient_accumulation_steps": 2, "label_smoothing": 0.1, "dropout": 0.1},
    {"precision": "bf16", "gradient_checkpointing": True},
    {"method": "decoder"},
]


def steps(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    return config.replace(max_steps=4, max_eval_clips=1, evaluations=1, log_every_seconds=1000.0, **changes)


@pytest.mark.parametrize(("changes", "apart"), [(STEPS[0], False), *((changes, True) for changes in STEPS)])
def test_the_host_never_waits_within_a_step(
    small_config: TrainConfig, tmp_path: Path, changes: dict[str, Any], apart: bool
) -> None:
    operations = Operations()
    trainer = trainer_of(steps(small_config, changes), tmp_path)
    trainer.add_callback(Watched(operations.switch))
    with at_most(BYTES if apart else 2**26), operations:
        trainer.train()
    assert {"addmm", "_fused_adamw_"} <= operations.found
    assert not operations.found & WAITS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and TEST_GPU=1")
@pytest.mark.parametrize("changes", STEPS, ids=lambda changes: "-".join(changes) or "plain")
def test_the_host_never_waits_on_a_gpu(
    small_config: TrainConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    trainer = trainer_of(steps(small_config, changes), tmp_path)
    trainer.add_callback(Watched(lambda on: torch.cuda.set_sync_debug_mode("error" if on else "default")))
    with at_most(BYTES):
        trainer.train()
    assert trainer.state.global_step == 4


class OnDevice(torch.Tensor):
    """Stands for a tensor that was copied to the device; what is computed of it is there, too."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a subclass stands for the GPU")
def test_all_that_workers_gather_is_on_the_device(
    small_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL refuses what lies on the host, where the clips' numbers were at 93bff97."""
    trainer = trainer_of(steps(small_config, {}), tmp_path)
    monkeypatch.setattr(WhisperTrainer, "_prepare_input", lambda self, data: copied(data))

    def copied(data: Any) -> Any:
        if isinstance(data, torch.Tensor):
            return data.as_subclass(OnDevice)
        return {name: copied(value) for name, value in data.items()}

    batch = next(iter(trainer.get_eval_dataloader()))
    _, _, (clips, losses, counts) = trainer.prediction_step(trainer.model, batch, False)
    assert all(isinstance(part, OnDevice) for part in (clips, losses, counts))


def test_attention_does_not_plan_for_each_shape(small_config: TrainConfig) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        uses: list[Callable[[TrainConfig], Any]] = [evaluate, Decoder]
        for use in uses:
            torch.backends.cuda.enable_cudnn_sdp(True)
            use(small_config)
            assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_gpu_gets_features_as_they_are_stored(small_config: TrainConfig, tmp_path: Path) -> None:
    losses = []
    for half in (False, True):
        trainer = trainer_of(steps(small_config, {}), tmp_path)
        for role, collator in trainer._collators.items():
            assert collator.half is torch.cuda.is_available()
            trainer._collators[role] = dataclasses.replace(collator, half=half)
        features = trainer._collators["train"]([0, 1])["input_features"]
        assert features.dtype == (torch.float16 if half else torch.float32)
        assert trainer._prepare_inputs({"input_features": features})["input_features"].dtype == torch.float32
        losses.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    trainer = trainer_of(steps(small_config, {"dataloader_workers": 2}), tmp_path)
    assert trainer.get_train_dataloader().num_workers == 2


@pytest.mark.parametrize(
    ("shared", "changes", "expected"),
    [
        (2**40, {}, 0),
        (2**40, {"augment": 0.5}, 7),
        (2**30, {"augment": 0.5, "train_batch_size": 64}, 3),
        (2**26, {"augment": 0.5}, 0),
        (2**26, {"augment": 0.5, "dataloader_workers": 2}, 2),
    ],
    ids=["prepared", "changed", "large batches", "container", "asked for"],
)
def test_on_a_gpu_as_many_processes_load_as_shared_memory_holds(
    monkeypatch: pytest.MonkeyPatch, shared: int, changes: dict[str, Any], expected: int
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=shared // 4096, f_frsize=4096))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert loader_processes(TrainConfig(**changes)) == expected


def test_bf16_writes_nearly_what_fp32_does(small_config: TrainConfig) -> None:
    expected = evaluate(small_config)
    found = evaluate(small_config.replace(precision="bf16"))
    decoder = Decoder(small_config.replace(precision="bf16"))
    assert decoder.transcribe(prepare(small_config).splits["validation"]).texts == found.predictions
    assert found.rates["loss"] == pytest.approx(expected.rates["loss"], rel=0.01)
    assert found.rates["wer"] == pytest.approx(expected.rates["wer"], abs=5)
    same = [one == other for one, other in zip(found.predictions, expected.predictions, strict=True)]
    assert sum(same) >= 12
    assert len(evaluate(small_config.replace(precision="bf16", generation_num_beams=2)).predictions) == 16


def test_an_evaluation_in_bf16_leaves_the_training_as_it_is(
    small_config: TrainConfig, tmp_path: Path
) -> None:
    """Weights stay in float32 and the model's arithmetic in bf16: evaluations on the way change no step."""
    config = steps(small_config, {"precision": "bf16", "train_batch_size": 4})
    learned = []
    for callbacks in ([], [EvaluatesAfterTwo]):
        trainer = trainer_of(config, tmp_path)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train()
        learned.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
    assert {value.dtype for value in learned[0].values()} == {torch.float32}
    for name, value in learned[0].items():
        assert torch.equal(learned[1][name], value), name
