"""Whisper's real shape, with random weights, on real speech."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from training import train

from trainer.config import TrainConfig


@pytest.mark.slow
def test_random_whisper_tiny_takes_two_steps(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "whisper_tiny_processor"
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig.from_pretrained(source))
    model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    model.save_pretrained(tmp_path / "tiny")
    transformers.WhisperProcessor.from_pretrained(source).save_pretrained(tmp_path / "tiny")
    config = TrainConfig(
        model=str(tmp_path / "tiny"),
        data=str(shared_data / "speech_en_de"),
        cache_dir=str(tmp_path / "cache"),
        language="en",
        **{"max_steps": 2, "train_batch_size": 2, "evaluations": 1, "generation_max_length": 24},
        **{"max_train_clips": 8, "max_eval_clips": 2},
    )
    result = train(config, output_dir=tmp_path / "out")
    assert result.steps == 2
    assert result.best is not None and result.checkpoint is not None
