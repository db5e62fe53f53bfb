"""DeepSpeed's settings: what they may fix, and that the engine really runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import TrainConfig
from trainer.deepspeed import AUTO, PACKAGED, check_engine, engine_settings, packaged_file, zero_stage
from trainer.errors import ConfigError

#: Settings of the engine itself: no trial changes them.
ENGINE = {"stage", "overlap_comm", "contiguous_gradients", "stage3_gather_16bit_weights_on_model_save"}


def leaves(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for key, value in settings.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize(("name", "stage"), [(PACKAGED[0], 2), (PACKAGED[1], 3)])
def test_packaged_settings_leave_every_tunable_value_to_the_trial(name: str, stage: int) -> None:
    settings = leaves(json.loads(packaged_file(name).read_text()))
    assert settings["zero_optimization.stage"] == stage
    assert {key for key, value in settings.items() if value != "auto"} <= {
        *(f"zero_optimization.{name}" for name in ENGINE),
        "data_types.grad_accum_dtype",
    }
    assert {key for key in AUTO if not key.startswith("optimizer")} <= settings.keys()
    assert zero_stage(TrainConfig(deepspeed=name).deepspeed) == stage


def test_settings_travel_as_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    config = TrainConfig(deepspeed=str(path))
    path.unlink()
    again = TrainConfig.from_dict(config.to_dict())
    assert again.deepspeed == config.deepspeed
    assert zero_stage(again.deepspeed) == 1
    assert engine_settings(str(again.deepspeed))["train_micro_batch_size_per_gpu"] == "auto"


@pytest.mark.parametrize(("stage", "expected"), [(1, None), (2, "fp32"), (3, "fp32")])
def test_gradients_are_added_up_in_fp32_and_weights_gathered(stage: int, expected: str | None) -> None:
    own = json.dumps({"zero_optimization": {"stage": stage}})
    settings = engine_settings(str(TrainConfig(deepspeed=own).deepspeed))
    assert settings.get("data_types", {}).get("grad_accum_dtype") == expected
    gathers = settings["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False)
    assert gathers is (stage == 3), "its weights are whole only where they are gathered"
    given = {"data_types": {"grad_accum_dtype": "bf16"}}
    assert engine_settings(json.dumps(json.loads(own) | given))["data_types"] == given["data_types"]


def test_an_optimizer_of_its_own_takes_the_rate_of_the_trial() -> None:
    settings = engine_settings(str(TrainConfig(deepspeed='{"optimizer": {"type": "AdamW"}}').deepspeed))
    names = ("lr", "betas", "eps", "weight_decay")
    assert settings["optimizer"] == {"type": "AdamW", "params": dict.fromkeys(names, "auto")}
    settings = engine_settings(str(TrainConfig(deepspeed='{"optimizer": {"type": "SGD"}}').deepspeed))
    assert settings["optimizer"]["params"] == {"lr": "auto", "weight_decay": "auto"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{nonsense", "is not JSON: line 1"),
        ("[]", "must hold DeepSpeed's settings as a JSON object"),
        ('{"fp16": true}', "fp16 is true; it must be an object of settings"),
        ('{"train_micro_batch_size_per_gpu": 4}', 'train_micro_batch_size_per_gpu is 4; set it to "auto"'),
        ('{"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}', "optimizer.params.lr is 1e-05"),
        ('{"scheduler": {"type": "WarmupLR"}}', "has a scheduler; remove it"),
        ('{"zero_optimization": {"stage": 4}}', "stage is 4; it must be 0, 1, 2 or 3"),
    ],
)
def test_settings_that_would_win_over_the_search_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        TrainConfig(deepspeed=str(path))
    assert message in str(error.value)
    assert str(error.value).startswith(f"deepspeed={str(path)!r}: ")


def test_an_inactive_engine_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"the engine is not active \(the model runs as Linear\)"):
        check_engine(torch.nn.Linear(1, 1))
