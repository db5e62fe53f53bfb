"""The base model's rates are measured once: what makes them another's, and what a damaged file does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainer.baseline_cache import keep_rates, recall_rates
from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.model.pretrained import DEMO_MODEL
from trainer.train import Evaluation, evaluate


@pytest.fixture
def config(small_config: TrainConfig, tmp_path: Path) -> TrainConfig:
    shutil.copytree(DEMO_MODEL, tmp_path / "model")
    return small_config.replace(
        model=str(tmp_path / "model"), max_eval_clips=3, cache_dir=str(tmp_path / "cache")
    )


@pytest.fixture
def kept(config: TrainConfig) -> tuple[PreparedData, Evaluation]:
    data = prepare(config)
    found = evaluate(config, data=data)
    assert recall_rates(config, data, "cpu", "validation") is None
    keep_rates(config, data, "cpu", "validation", found)
    return data, found


def test_what_was_measured_comes_back(config: TrainConfig, kept: tuple[PreparedData, Evaluation]) -> None:
    data, found = kept
    known = recall_rates(config, data, "cpu", "validation")
    assert known is not None
    assert known.rates() == found.rates()
    assert known.utterances == found.utterances
    assert (
        recall_rates(config.replace(learning_rate=0.1, seed=9), prepare(config), "cpu", "validation")
        is not None
    )


@pytest.mark.parametrize(
    "change",
    [
        *({"normalizer": "none"}, {"generation_max_length": 5}, {"generation_num_beams": 2}),
        *({"precision": "bf16"}, {"max_eval_clips": 2}, {"language": "de"}),
    ],
)
def test_other_settings_are_measured(
    config: TrainConfig, kept: tuple[PreparedData, Evaluation], change: dict[str, Any]
) -> None:
    other = config.replace(**change)
    data = prepare(other)
    assert recall_rates(other, data, "cpu", "validation") is None
    assert recall_rates(config, kept[0], "gpu", "validation") is None


@pytest.mark.parametrize("file", ["model.safetensors", "generation_config.json", "tokenizer.json"])
def test_another_model_in_the_same_folder_is_measured(
    config: TrainConfig, kept: tuple[PreparedData, Evaluation], file: str
) -> None:
    path = Path(config.model) / file
    path.write_bytes(
        path.read_bytes().replace(b"\n", b" \n") if path.suffix == ".json" else path.read_bytes()
    )
    assert recall_rates(config, kept[0], "cpu", "validation") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"wer": 1.0}'])
def test_a_damaged_file_is_no_answer(
    config: TrainConfig, kept: tuple[PreparedData, Evaluation], text: str
) -> None:
    [file] = (Path(config.cache_dir) / "baselines").glob("*.json")
    assert json.loads(file.read_text())["clips"] == 3
    file.write_text(text)
    assert recall_rates(config, kept[0], "cpu", "validation") is None
