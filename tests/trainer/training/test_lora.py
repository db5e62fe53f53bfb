"""How much of the model is trained: the decoder, the upper encoder layers, or LoRA's adapters, alone in checkpoints."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from training import evaluate, train
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.conversion.hugging_face import write_model
from trainer.errors import ModelError
from trainer.manifest import problem_of
from trainer.model.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, base_of, merged, with_base
from trainer.model.pretrained import DEMO_MODEL
from trainer.model.processor import load_processor
from trainer.model.whisper import limit_training, load_model
from trainer.training.checkpoints import checkpoint_bytes, estimated_checkpoint_bytes

ALL_LAYERS = "attention and feed-forward"


def limited(config: TrainConfig) -> WhisperForConditionalGeneration:
    model = load_model(config, load_processor(config))
    limit_training(model, config)
    return model


def trained(model: torch.nn.Module) -> dict[str, int]:
    return {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize(
    ("rank", "targets", "frozen", "scaling"),
    [
        (1, "attention", 0, "standard"),
        (8, ALL_LAYERS, 1, "rank_stabilized"),
        (64, "attention", 3, "standard"),
    ],
)
def test_lora_trains_what_its_formula_says(rank: int, targets: Any, frozen: int, scaling: Any) -> None:
    """The demo model has width 128, feed-forward width 256, three encoder layers and one decoder layer."""
    config = TrainConfig(method="lora", lora_rank=rank, lora_targets=targets, lora_scaling=scaling)
    config = config.replace(freeze_encoder_layers=frozen)
    model = limited(config)
    encoder, decoder = 8 * rank * 128, 16 * rank * 128
    if targets == ALL_LAYERS:
        encoder, decoder = (each + 2 * rank * (128 + 256) for each in (encoder, decoder))
    expected = (3 - frozen) * encoder + decoder
    found = trained(model)
    assert sum(found.values()) == expected
    assert all(".lora_A." in name or ".lora_B." in name for name in found)
    assert not [name for name in found if any(f"encoder.layers.{layer}." in name for layer in range(frozen))]
    adapters = [each for each in model.modules() if isinstance(each, LoraLayer)]
    scales = {each.scaling["default"] for each in adapters}
    assert scales == {32 / rank if scaling == "standard" else 32 / math.sqrt(rank)}
    assert checkpoint_bytes(config, model) == estimated_checkpoint_bytes(config)


def test_first_encoder_layers_are_left_as_they_are() -> None:
    found = limited(TrainConfig(freeze_encoder_layers=2))
    kept = {name for name, weight in found.named_parameters() if not weight.requires_grad}
    parts = ["conv1.", "conv2.", "layers.0.", "layers.1.", "embed_positions."]
    starts = tuple(f"model.encoder.{part}" for part in parts)
    assert kept == {name for name, _ in found.named_parameters() if name.startswith(starts)}


def test_the_method_decoder_leaves_the_encoder() -> None:
    model = limited(TrainConfig(method="decoder"))
    every = {name for name, _ in model.named_parameters()}
    assert set(trained(model)) == {name for name in every if ".encoder." not in name}


class Rows:
    """A report that keeps every row, and a copy of every checkpoint in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is not None:
            shutil.copytree(checkpoint_dir, self.folder / f"kept-{metrics['step']:.0f}")
        self.rows.append({**metrics, "evaluation": checkpoint_dir is not None})


@pytest.fixture(scope="module")
def config(small_config: TrainConfig) -> TrainConfig:
    """4 steps, evaluations after 2 and 4, all that draws random numbers."""
    return small_config.replace(
        **{"method": "lora", "lora_rank": 8, "lora_dropout": 0.1, "dropout": 0.1, "learning_rate": 1e-2},
        **{"max_train_clips": 16, "max_eval_clips": 4, "epochs": 2.0, "train_batch_size": 8},
        **{"evaluations": 2, "log_every_seconds": 0.0},
    )


@pytest.fixture(scope="module")
def run(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    report = Rows(tmp_path_factory.mktemp("lora"))
    train(config, report)
    assert [row["step"] for row in measured(report)] == [2, 4]
    return report


def measured(report: Rows) -> list[dict[str, Any]]:
    """The rows of evaluations."""
    return [row for row in report.rows if row["evaluation"]]


def test_a_checkpoint_holds_the_adapter_alone(config: TrainConfig, run: Rows) -> None:
    folder = run.folder / "kept-4"
    assert problem_of(folder) is None
    names = {path.name for path in folder.iterdir()}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "optimizer.pt", "config.json", "tokenizer.json"} <= names
    assert not [name for name in names if name.startswith("model")]
    weights = load_file(folder / ADAPTER_WEIGHTS)
    assert sum(value.numel() for value in weights.values()) == sum(trained(limited(config)).values())
    assert sum(path.stat().st_size for path in folder.iterdir()) <= estimated_checkpoint_bytes(config)
    whole = (DEMO_MODEL / "model.safetensors").stat().st_size
    assert (folder / ADAPTER_WEIGHTS).stat().st_size < whole / 10
    changed = [name for name, value in weights.items() if "lora_B" in name and value.abs().max() > 0]
    assert len(changed) == len(weights) / 2, "each adapter has learned"


def test_plain_peft_gives_the_model_that_is_exported(config: TrainConfig, run: Rows, tmp_path: Path) -> None:
    checkpoint = run.folder / "kept-4"
    base = WhisperForConditionalGeneration.from_pretrained(DEMO_MODEL)
    adapted = peft.PeftModel.from_pretrained(base, str(checkpoint), torch_device="cpu").eval()
    write_model(config, checkpoint, tmp_path / "exported")
    exported = WhisperForConditionalGeneration.from_pretrained(tmp_path / "exported")
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 80, 2 * exported.config.max_source_positions, generator=generator)
    given = {"input_features": features, "decoder_input_ids": torch.ones(2, 5, dtype=torch.long)}
    with torch.no_grad():
        found, expected = exported(**given).logits, adapted(**given).logits
        untouched = load_model(config, load_processor(config)).eval()(**given).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - untouched).abs().max() > 0.1


def test_a_broken_adapter_is_one_line(config: TrainConfig, run: Rows, tmp_path: Path) -> None:
    def told(name: str, content: bytes) -> str:
        folder = tmp_path / "broken"
        shutil.copytree(run.folder / "kept-4", folder, dirs_exist_ok=True)
        (folder / name).write_bytes(content)
        broken = config.replace(model=str(folder))
        with pytest.raises(ModelError) as caught:
            load_model(broken, load_processor(broken))
        message = str(caught.value)
        assert str(folder) in message and "\n" not in message
        return message

    assert "cannot load the adapter" in told(ADAPTER_WEIGHTS, b"x")
    assert "cannot be read" in told(ADAPTER_CONFIG, b"{")
    settings = json.loads((run.folder / "kept-4" / ADAPTER_CONFIG).read_text())
    elsewhere = {**settings, "base_model_name_or_path": "/not/there"}
    assert "has adapters for /not/there" in told(ADAPTER_CONFIG, json.dumps(elsewhere).encode())


def test_adapters_find_a_base_model_that_has_another_path_here(
    config: TrainConfig, run: Rows, tmp_path: Path
) -> None:
    checkpoint, base = tmp_path / "checkpoint", tmp_path / "base"
    shutil.copytree(run.folder / "kept-4", checkpoint)
    shutil.copytree(DEMO_MODEL, base)
    settings = json.loads((checkpoint / ADAPTER_CONFIG).read_text())
    settings["base_model_name_or_path"] = "/only/on/that/node"
    (checkpoint / ADAPTER_CONFIG).write_text(json.dumps(settings))
    with with_base(checkpoint, str(base)) as found:
        assert base_of(found) == str(base)
        there = evaluate(config.replace(model=str(found)))
    assert there.rates["wer"] == pytest.approx(measured(run)[-1]["wer"], abs=0.1)
    for folder, base_model in ((run.folder / "kept-4", "demo"), (base, "small")):
        with with_base(folder, base_model) as found:
            assert found == folder


def test_resumed_it_is_the_unbroken_training(config: TrainConfig, run: Rows, tmp_path: Path) -> None:
    again = Rows(tmp_path)
    train(config, again, resume_from=run.folder / "kept-2")
    names = ("step", "evaluation", "learning_rate", "loss", "grad_norm", "wer", "eval_loss", "samples_seen")
    found, expected = ([[row.get(name) for name in names] for row in each.rows] for each in (again, run))
    assert found == [row for row in expected if row[0] > 2]
    weights, unbroken = (load_file(each.folder / "kept-4" / ADAPTER_WEIGHTS) for each in (again, run))
    for name, value in weights.items():
        torch.testing.assert_close(value, unbroken[name], atol=1e-6, rtol=0, msg=name)


def test_an_evaluation_leaves_the_training_as_it_was(config: TrainConfig, tmp_path: Path) -> None:
    """Merging and taking away again would change the weights a little each time."""
    config = config.replace(dropout=0.0, lora_dropout=0.0)
    often, once = Rows(tmp_path / "often"), Rows(tmp_path / "once")
    train(config.replace(max_eval_clips=1), often)
    train(config.replace(max_eval_clips=1, evaluations=1), once)
    first, second = ([row["loss"] for row in each.rows if not row["evaluation"]] for each in (often, once))
    assert first == second
    model = limited(config)
    before = {name: (id(value), value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    with merged(model):
        assert not [name for name in model.state_dict() if "lora" in name]
    after = model.state_dict(keep_vars=True)
    assert after.keys() == before.keys()
    for name, (place, value) in before.items():
        assert id(after[name]) == place and torch.equal(after[name], value)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True, "lora_targets": ALL_LAYERS, "freeze_encoder_layers": 3},
        {"precision": "bf16", "lora_scaling": "rank_stabilized", "optimizer": "adafactor"},
        {"generation_num_beams": 2, "audio_window": "batch", "method": "full", "freeze_encoder_layers": 2},
    ],
    ids=str,
)
def test_with_other_settings(config: TrainConfig, tmp_path: Path, settings: dict[str, Any]) -> None:
    config = config.replace(**{"epochs": 1.0, "evaluations": 1, "log_every_seconds": 9.0, **settings})
    report = Rows(tmp_path)
    result = train(config, report)
    [row] = measured(report)
    found = evaluate(config.replace(model=str(tmp_path / "kept-2")))
    assert found.rates["wer"] == pytest.approx(row["wer"], abs=0.1)
    assert result.best and result.best["wer"] == row["wer"]


def test_a_model_that_is_itself_an_adapter_is_trained_on(
    config: TrainConfig, run: Rows, tmp_path: Path
) -> None:
    """As whole weights, or with further adapters."""
    second = config.replace(model=str(run.folder / "kept-4"), max_steps=1, epochs=None, evaluations=1)
    for number, method in enumerate(("lora", "full"), start=1):
        report = Rows(tmp_path / str(number))
        train(second.replace(method=method), report)
        found = evaluate(config.replace(model=str(report.folder / "kept-1")))
        assert found.rates["wer"] == pytest.approx(measured(report)[0]["wer"], abs=0.1)
