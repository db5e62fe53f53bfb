"""`TrainConfig`: every field is documented, checked, and says in one line what it allows."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
from typing import Any

import pytest

import trainer.config
from trainer.config import (
    ConfigError,
    TrainConfig,
    check_value,
    describe_field,
    field_type,
    nearest_field,
)

NUMBER = ("high", True, [1], float("nan"), float("inf"))
WHOLE = (*NUMBER, 1.5)
FLAG: tuple[Any, ...] = ("maybe", 1, 0.0, None, [])
TEXT: tuple[Any, ...] = (3, True, [], {})
ONE_OF: tuple[Any, ...] = ("other", 3, True, [])

#: For each field some values that it refuses.
REFUSED: dict[str, tuple[Any, ...]] = {
    "model": (*TEXT, "", None),
    "language": (*TEXT, "belorussian", ""),
    "task": (*ONE_OF, None),
    "dropout": (*NUMBER, -0.1, 0.91, None),
    "method": (*ONE_OF, None),
    "lora_rank": (*WHOLE, 0, 1025, None),
    "lora_alpha": (*NUMBER, 0, -1, None),
    "lora_scaling": (*ONE_OF, None),
    "lora_dropout": (*NUMBER, -0.1, 0.91, None),
    "lora_targets": (*ONE_OF, None),
    "freeze_encoder_layers": (*WHOLE, -1, None),
    "gradient_checkpointing": FLAG,
    "spec_augment": FLAG,
    "mask_time_prob": (*NUMBER, -0.1, 1.1, None),
    "mask_feature_prob": (*NUMBER, -0.1, 1.1, None),
    "mask_time_length": (*WHOLE, 0, 65, None),
    "mask_feature_length": (*WHOLE, 0, 65, None),
    "augment": (*NUMBER, -0.1, 1.1, None),
    "augment_strength": (*NUMBER, -0.1, 3.1, None),
    "augment_speed": (*NUMBER, -0.1, 1.1, None),
    "augment_reverb": (*NUMBER, -0.1, 1.1, None),
    "impulse_dir": TEXT,
    "augment_noise": (*NUMBER, -0.1, 1.1, None),
    "augment_snr": (*NUMBER, -11, 36, None),
    "noise_dir": TEXT,
    "augment_telephone": (*NUMBER, -0.1, 1.1, None),
    "data": (*TEXT, "", None),
    "data_config": TEXT,
    "train_on": (*ONE_OF, "validation", None),
    "train_split": (*TEXT, None),
    "validation_split": (*TEXT, None),
    "test_split": (*TEXT, None),
    "validation_share": (*NUMBER, 0, 0.95, None),
    "split_by": TEXT,
    "splits": TEXT,
    "audio_column": TEXT,
    "audio_channel": (*NUMBER, 0, 1.5),
    "segment_columns": (3, "start", "start,", "a,b,c"),
    "pack_seconds": (*NUMBER[:1], -1, 31, "x"),
    "text_column": TEXT,
    "language_column": TEXT,
    "task_column": TEXT,
    "row_filter": TEXT,
    "source_weights": (*TEXT, "a", "a=-1", "=2", "a=1,a=2"),
    "max_train_clips": (*WHOLE, 0),
    "max_eval_clips": (*WHOLE, 0),
    "max_dropped_share": (*NUMBER, -0.1, 1.1, None),
    "data_seed": (*WHOLE, -1, 2**32, None),
    "cache_dir": (*TEXT, "", None),
    "lowercase": FLAG,
    "remove_punctuation": FLAG,
    "leading_space": FLAG,
    "keep_suppress_tokens": FLAG,
    "learning_rate": (*NUMBER, 0, -1e-5),
    "optimizer": (*ONE_OF, None),
    "adam_beta1": (*NUMBER, -0.1, 1, None),
    "adam_beta2": (*NUMBER, -0.1, 1, None),
    "adam_epsilon": (*NUMBER, 0, -1e-8, None),
    "scheduler_type": (*ONE_OF, None),
    "decay_ratio": (*NUMBER, -0.1, 1.1, None),
    "warmup_ratio": (*NUMBER, -0.1, 1.1, None),
    "warmup_steps": (*WHOLE, -1),
    "weight_decay": (*NUMBER, -0.1, None),
    "label_smoothing": (*NUMBER, -0.1, 0.91, None),
    "max_grad_norm": (*NUMBER, -0.1, None),
    "audio_window": (*NUMBER, 0.5, 31, "long", "Batch"),
    "group_by_length": FLAG,
    "full_window_evaluation": FLAG,
    "train_batch_size": (*WHOLE, 0, 10**400, None),
    "gradient_accumulation_steps": (*WHOLE, 0, None),
    "micro_batch": (*WHOLE, 0),
    "epochs": (*NUMBER, 0, -1),
    "max_steps": (*WHOLE, 0),
    "max_samples": (*WHOLE, 0),
    "max_hours": (*NUMBER, 0, -1),
    "streaming": FLAG,
    "shuffle_buffer": (*WHOLE, 0, None),
    "evaluations": (*WHOLE, 0, None),
    "evaluate_at": (3, "3", [], [0], [2, 1], [1, 1], ["x"], {1: 2}),
    "precision": (*ONE_OF, "fp8", None),
    "seed": (*WHOLE, -1, 2**32, None),
    "tf32": FLAG,
    "torch_compile": FLAG,
    "dataloader_workers": (*WHOLE, -1),
    "workers": (*WHOLE, 0, None),
    "deepspeed": (*TEXT, "", "no_such_settings.json"),
    "eval_batch_size": (*WHOLE, 0, "all"),
    "generation_max_length": (*WHOLE, 1),
    "generation_num_beams": (*WHOLE, 0, None),
    "objective": (*ONE_OF, None),
    "normalizer": (*ONE_OF, None),
    "output_dir": (*TEXT, "", None),
    "log_every_seconds": (*NUMBER, -1, None),
}
FIELDS = [field.name for field in dataclasses.fields(TrainConfig)]


def test_the_table_names_every_field() -> None:
    assert sorted(REFUSED) == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_wrong_values_are_refused_in_one_line(name: str) -> None:
    for value in REFUSED.get(name, ()):
        with pytest.raises(ConfigError) as error:
            TrainConfig(**{name: value})
        message = str(error.value)
        assert message.startswith(f"{name}={value!r}: ")
        assert "\n" not in message
        with pytest.raises(ConfigError):
            check_value(name, value)


@pytest.mark.parametrize("name", FIELDS)
def test_defaults_are_allowed_and_described(name: str) -> None:
    default = getattr(TrainConfig, name)
    assert check_value(name, default) == default
    assert describe_field(name)
    assert ("or null" in describe_field(name)) == field_type(name)[2]


def test_every_field_is_followed_by_its_docstring() -> None:
    tree = ast.parse(inspect.getsource(trainer.config))
    body = next(
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "TrainConfig"
    ).body
    documented = []
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert isinstance(following, ast.Expr), f"{statement.target.id} has no docstring"
            assert isinstance(following.value, ast.Constant)
            assert str(following.value.value).rstrip().endswith("."), statement.target.id
            documented.append(statement.target.id)
    assert documented == FIELDS


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("learning_rate", "1e-5", 1e-5),  # PyYAML reads 1e-5 as text
        ("learning_rate", 1, 1.0),
        ("train_batch_size", "8", 8),
        ("train_batch_size", 8.0, 8),
        ("spec_augment", "true", True),
        ("spec_augment", "False", False),
        ("dropout", 0, 0.0),
        ("dropout", 0.9, 0.9),
        ("language", "Belarusian", "be"),
        ("language", "pt-BR", "pt"),
        ("language", None, None),
        ("warmup_steps", None, None),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("evaluate_at", [10, 20], (10, 20)),
        ("audio_window", "auto", None),
        ("audio_window", "8", 8.0),
        ("audio_window", "batch", "batch"),
    ],
)
def test_values_are_converted_to_the_type_of_the_field(name: str, written: Any, value: Any) -> None:
    converted = getattr(TrainConfig(**{name: written}), name)
    assert converted == value
    assert type(converted) is type(value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig(dropout=2, seed=-1)
    assert str(error.value) == (
        "dropout=2: must be a number from 0 to 0.9\nseed=-1: must be a whole number from 0 to 4294967295"
    )


def test_only_one_budget() -> None:
    with pytest.raises(
        ConfigError, match="epochs=2 and max_steps=3: only one budget can be given; remove one"
    ):
        TrainConfig(epochs=2, max_steps=3)


def test_frozen_and_replaced() -> None:
    config = TrainConfig(train_batch_size=4, gradient_accumulation_steps=3)
    assert config.effective_batch_size == 12
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3  # type: ignore[misc]
    assert config.replace(seed=3).seed == 3
    with pytest.raises(ConfigError, match="seed=-3"):
        config.replace(seed=-3)


def test_plain_values_and_back() -> None:
    config = TrainConfig(learning_rate=1e-5, language="german", max_steps=3)
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_unknown_settings_get_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig.from_dict({"lr": 1, "weight_decy": 1, "xyzzy": 1, "train_batch_size": 0})
    assert str(error.value) == (
        "unknown setting 'lr'; did you mean learning_rate?\n"
        "unknown setting 'weight_decy'; did you mean weight_decay?\n"
        "unknown setting 'xyzzy'; python -m trainer --help lists them\n"
        "train_batch_size=0: must be a whole number of at least 1"
    )
    assert nearest_field("batch_size") == "train_batch_size"
    assert nearest_field("xyzzy") is None


@pytest.mark.parametrize("alias", ["lr", "batch_size", "num_train_epochs", "grad_accumulation", "warmup"])
def test_names_that_other_tools_use_lead_to_a_field(alias: str) -> None:
    assert nearest_field(alias) in FIELDS


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("demo", "demo"),
        ("small", "openai/whisper-small"),
        ("tiny.en", "openai/whisper-tiny.en"),
        ("large-v3-turbo", "openai/whisper-large-v3-turbo"),
        ("someone/whisper-xhosa", "someone/whisper-xhosa"),
        ("./my-model", "./my-model"),
    ],
)
def test_short_names_of_models(name: str, source: str) -> None:
    assert TrainConfig(model=name).model_source == source


def test_noises_of_files_need_a_folder() -> None:
    assert TrainConfig(augment=0.5).augments
    assert not TrainConfig(augment=0.5, augment_strength=0).augments
