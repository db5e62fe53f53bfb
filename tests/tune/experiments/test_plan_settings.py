"""What no trial could run is refused with the plan: in one line, and before anything is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tune.cli import main
from tune.commands.job_request import read_request

LR = "learning_rate: {type: float, low: 1e-4, high: 1e-3, log: true}\n"
MISSING = "optimizer='adamw_8bit': bitsandbytes is not installed; pip install 'tune-whisper[8bit]'"
ENGINE = "optimizer='adafactor': DeepSpeed runs AdamW"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, on a machine without bitsandbytes."""
    found = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "bitsandbytes" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("space", "words", "expected"),
    [
        (LR, ["--set", "optimizer=adamw_8bit"], MISSING),
        (LR + "optimizer: adamw_8bit", [], MISSING),
        (LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}", [], MISSING),
        (LR + "optimizer: {type: choice, values: [adamw, adafactor]}", ["--deepspeed"], ENGINE),
        (LR + "optimizer: adafactor", ["--deepspeed"], ENGINE),
        (
            LR + "ema_decay: {type: float, low: 0.9, high: 0.99}",
            ["--deepspeed", "ds_config_zero3.json"],
            "ema_decay=0.9: ZeRO 3",
        ),
    ],
)
def test_a_search(
    here: Path, capfd: pytest.CaptureFixture[str], space: str, words: list[str], expected: str
) -> None:
    (here / "space.yaml").write_text(space)
    assert main(["--space", "space.yaml", *words]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 1
    assert expected in lines[0]
    assert [path.name for path in here.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--set", "optimizer=adamw_8bit"], MISSING),
        (["--set", "optimizer=adafactor", "--deepspeed"], ENGINE),
    ],
)
def test_a_training(here: Path, capfd: pytest.CaptureFixture[str], words: list[str], expected: str) -> None:
    assert main(["train", *words]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 1
    assert expected in lines[0]
    assert list(here.iterdir()) == []


def test_a_job_has_the_package_installed(here: Path) -> None:
    """It is the cluster that needs it, not the machine that sends the job."""
    (here / "space.yaml").write_text(LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}")
    place = ["--storage", "/mnt/all"]
    assert read_request(["--space", "space.yaml", *place], None).extras == ("8bit",)
    assert read_request(["--space", "space.yaml", "--set", "optimizer=adafactor", *place], None).extras == ()
    assert read_request(["train", "--set", "optimizer=adamw_8bit", *place], None).extras == ("8bit",)
