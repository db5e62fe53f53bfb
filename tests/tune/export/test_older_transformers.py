"""Exported folders load in transformers 4.57, too; `benchmarks/exports_elsewhere.py` does it."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import WhisperProcessor

from trainer.model.pretrained import DEMO_MODEL
from tune.cli import main


def test_transformers_4_reads_special_tokens_and_beams(tmp_path: Path) -> None:
    """Version 5 writes a list of special tokens where 4.57 expects a mapping; its pipeline takes 5 beams by itself."""
    before = WhisperProcessor.from_pretrained(DEMO_MODEL).tokenizer
    assert "extra_special_tokens" in json.loads((DEMO_MODEL / "tokenizer_config.json").read_text())
    assert main(["export", "--from-model", "demo", "--output", str(tmp_path / "model")]) == 0
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    assert "extra_special_tokens" not in settings
    assert settings["additional_special_tokens"] == before.extra_special_tokens
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["task_specific_params"] == {"automatic-speech-recognition": {"num_beams": 1}}
    after = WhisperProcessor.from_pretrained(tmp_path / "model").tokenizer
    assert after.all_special_ids == before.all_special_ids
    assert after.decode(after("a (b)").input_ids, skip_special_tokens=True) == "a (b)"
