"""`TrainConfig`: every field is documented, checked, and says in one line what it allows."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from trainer.__main__ import main
from trainer.config import TrainConfig, check_value, describe_field, field_docs, field_type, nearest_field
from trainer.config_file import read_config_file
from trainer.errors import ConfigError

SHARES = (
    "mask_time_prob mask_feature_prob augment augment_speed augment_reverb augment_noise augment_telephone "
)
SHARES += "max_dropped_share decay_ratio warmup_ratio"
COUNTS = "max_train_clips max_eval_clips train_batch_size gradient_accumulation_steps micro_batch max_steps "
COUNTS += "max_samples shuffle_buffer evaluations workers eval_batch_size generation_num_beams"

#: For each field the values that it refuses beside those of another type.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(SHARES.split(), (-0.1, 1.1)),
    **dict.fromkeys(COUNTS.split(), (0,)),
    **dict.fromkeys(("freeze_encoder_layers", "warmup_steps", "dataloader_workers"), (-1,)),
    **dict.fromkeys(("dropout", "lora_dropout", "label_smoothing"), (-0.1, 0.91)),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), (-0.1, 1)),
    **dict.fromkeys(("learning_rate", "adam_epsilon", "epochs", "max_hours", "lora_alpha"), (0, -1e-5)),
    **dict.fromkeys(("weight_decay", "max_grad_norm", "log_every_seconds"), (-0.1,)),
    **dict.fromkeys(("mask_time_length", "mask_feature_length"), (0, 65)),
    **dict.fromkeys(("data_seed", "seed"), (-1, 2**32)),
    **dict.fromkeys(("model", "data", "cache_dir", "output_dir"), ("",)),
    "language": ("belorusian", ""),
    "lora_rank": (0, 1025),
    "augment_strength": (-0.1, 3.1),
    "augment_snr": (-11, 36),
    "train_on": ("validation",),
    "validation_share": (0, 0.95),
    "audio_channel": (0, 1.5),
    "timestamp_share": (-0.1, 1.5),
    "segment_columns": ("start", "start,", "a,b,c"),
    "pack_seconds": (-1, 31),
    "source_weights": ("a", "a=-1", "=2", "a=1,a=2"),
    "audio_window": (0.5, 31, "long", "Batch"),
    "evaluate_at": (3, "3", [], [0], [2, 1], [1, 1], ["x"], {1: 2}),
    "deepspeed": ("", "no_such_settings.json"),
    "generation_max_length": (1,),
}


def refused(name: str) -> tuple[Any, ...]:
    """Values of other types, and those of the table."""
    kind, allowed, optional = field_type(name)
    others: dict[Any, tuple[Any, ...]] = {
        bool: ("maybe", 1, 0.0, []),
        str: (3, True, [], {}, *(["other"] if allowed else [])),
        float: ("high", True, [1], float("nan"), float("inf")),
        int: ("high", True, [1], float("nan"), 1.5, 10**400),
    }
    return (*others.get(kind, ()), *REFUSED.get(name, ()), *(() if optional else (None,)))


FIELDS = [field.name for field in dataclasses.fields(TrainConfig)]


@pytest.mark.parametrize("name", FIELDS)
def test_wrong_values_are_refused_in_one_line(name: str) -> None:
    assert name in REFUSED or field_type(name)[0] in (bool, str), "a number has a range"
    for value in refused(name):
        with pytest.raises(ConfigError) as error:
            TrainConfig(**{name: value})
        message = str(error.value)
        assert message.startswith(f"{name}={value!r}: ")
        assert "\n" not in message
        with pytest.raises(ConfigError):
            check_value(name, value)


def test_every_field_is_described_and_its_default_allowed() -> None:
    documented = field_docs(TrainConfig)
    assert list(documented) == FIELDS
    for name in FIELDS:
        default = getattr(TrainConfig, name)
        assert check_value(name, default) == default
        assert ("or null" in describe_field(name)) == field_type(name)[2]


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("learning_rate", "1e-5", 1e-5),  # PyYAML reads 1e-5 as text
        ("train_batch_size", 8.0, 8),
        ("spec_augment", "true", True),
        ("dropout", 0, 0.0),
        ("language", "Belarusian", "be"),
        ("evaluate_at", [10, 20], (10, 20)),
        ("audio_window", "auto", None),
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
    with pytest.raises(ConfigError, match="epochs=2 and max_steps=3: only one budget can be given"):
        TrainConfig(epochs=2, max_steps=3)


def test_replaced_and_back() -> None:
    config = TrainConfig(train_batch_size=4, gradient_accumulation_steps=3, language="german")
    assert config.effective_batch_size == 12
    assert config.replace(seed=3).seed == 3
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
    for alias in ("batch_size", "num_train_epochs", "grad_accumulation", "warmup"):  # names of other tools
        assert nearest_field(alias) in FIELDS
    assert nearest_field("xyzzy") is None


def test_short_names_of_models() -> None:
    names = {"demo": "demo", "tiny.en": "openai/whisper-tiny.en", "someone/whisper": "someone/whisper"}
    assert {name: TrainConfig(model=name).model_source for name in names} == names


def config_file(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder / "config.yaml"


def test_values_are_taken_as_written(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, "language: no\nlearning_rate: 1e-5\nwarmup_steps: null\nspec_augment: true\n"
    )
    config = TrainConfig.from_dict(read_config_file(path))
    assert (config.language, config.learning_rate, config.warmup_steps) == ("no", 1e-5, None)
    assert config.spec_augment is True


def test_lists_and_weights_of_sources_in_a_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, "evaluate_at: [100, 200]\nweight.fleurs: 2\nweight.own: 0.5\n")
    assert read_config_file(path) == {"evaluate_at": (100, 200), "source_weights": "fleurs=2,own=0.5"}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("lr: 1\ntrain_batch_size: 0\n", ["unknown setting 'lr'", "train_batch_size='0'"]),
        ("seed: 1\nseed: 2\n", ["line 2: seed: given twice, first in line 1; remove one"]),
        ("- seed\n", ["KEY: VALUE"]),
        ("seed: [1\n", ["not valid YAML"]),
        ("output_dir: out\n", ["output_dir='out': exists already"]),
        (
            "freeze_encoder_layers: 9\nmax_train_clips: 4\nmax_eval_clips: 1\ngeneration_max_length: 5\n",
            ["freeze_encoder_layers=9: the encoder of demo has 3"],
        ),
    ],
)
def test_mistakes_are_a_line_each(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    lines: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert main([str(config_file(tmp_path, text))]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == len(lines)
    for line, expected in zip(printed, lines, strict=True):
        assert line.startswith("error: ")
        assert expected in line


def test_a_missing_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing.yaml")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "nothing.yaml: cannot be read" in line
