"""Real speech: its odd clips with the demo's model, and Whisper's real shape."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from search_process import Search


@pytest.mark.slow
def test_real_speech_with_the_demo_model(shared_data: Path, tmp_path: Path) -> None:
    words = [
        "--space",
        "lr_batch.yaml",
        "--trials",
        "1",
        "--data",
        str(shared_data / "speech_en_de"),
        "--language",
        "en",
    ]
    words += ["--experiment", "real", "--epochs", "1", "--set", "generation_max_length=64"]
    search = Search(tmp_path, *words)
    assert search.end() == 0, search.log
    folder = tmp_path / "experiments" / "real"
    settings = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert sum(settings["dropped"].values()) > 0
    dropped = [json.loads(line) for line in (folder / "dropped_clips.jsonl").read_text().splitlines()]
    assert len(dropped) == sum(settings["dropped"].values())
    assert all(row["name"] and row["reason"] for row in dropped)
    with (shared_data / "speech_en_de" / "metadata.csv").open() as file:
        english = [row for row in csv.DictReader(file) if row["language"] == "en"]
    assert sum(settings["clips"].values()) + len(dropped) == len(english)
    assert "window" in search.log
    assert len(json.loads((folder / "results.json").read_text())["trials"]) == 1


@pytest.mark.slow
def test_random_whisper_tiny_takes_two_steps(shared_data: Path, tmp_path: Path) -> None:
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperForConditionalGeneration,
        WhisperProcessor,
    )

    source = shared_data / "whisper_tiny_processor"
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(source))
    model.generation_config = GenerationConfig.from_pretrained(source)
    model.save_pretrained(tmp_path / "tiny")
    WhisperProcessor.from_pretrained(source).save_pretrained(tmp_path / "tiny")
    settings = {
        **{
            "model": "tiny-folder",
            "data": str(shared_data / "speech_en_de"),
            "language": "en",
            "max_steps": 2,
        },
        **{"train_batch_size": 2, "evaluations": 1, "generation_max_length": 24},
        **{"max_train_clips": 8, "max_eval_clips": 2},
        "output_dir": "out",
    }
    settings["model"] = str(tmp_path / "tiny")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "config.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "before: WER" in done.stdout
    assert "after:  WER" in done.stdout
    assert "step 2" in done.stdout
