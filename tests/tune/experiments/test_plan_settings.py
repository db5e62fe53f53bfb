"""What no trial could run is refused with the plan: in one line, and before anything is written."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_data import make_small_whisper

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
        (LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}", [], MISSING),
        (LR + "optimizer: adafactor", ["--deepspeed"], ENGINE),
    ],
)
def test_a_search(
    here: Path, refused: Callable[..., str], space: str, words: list[str], expected: str
) -> None:
    (here / "space.yaml").write_text(space)
    assert expected in refused("--space", "space.yaml", *words)


def test_a_job_has_the_package_installed(here: Path) -> None:
    """It is the cluster that needs it, not the machine that sends the job."""
    (here / "space.yaml").write_text(LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}")
    place = ["--storage", "/mnt/all"]
    assert read_request(["--space", "space.yaml", *place]).extras == {"8bit"}
    assert read_request(["--space", "space.yaml", "--set", "optimizer=adafactor", *place]).extras == set()
    assert read_request(["train", "--set", "optimizer=adamw_8bit", *place]).extras == {"8bit"}


@pytest.fixture(scope="module")
def small_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_whisper(tmp_path_factory.mktemp("models") / "small")


AUTOMATIC = """\
learning_rate: {type: float, low: auto, high: auto, log: true}
train_batch_size: {type: choice, values: [4, 8]}
"""


def test_a_dry_run_tells_the_rates_of_each_base_model(
    here: Path, capsys: pytest.CaptureFixture[str], small_whisper: Path
) -> None:
    words = f"--space space.yaml --data demo --trials 2 --dry-run --model {small_whisper}".split()
    (here / "space.yaml").write_text(AUTOMATIC)
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "below 40 %: usual 1.5e-05, searched 1.5e-06 to 0.00015" in told
    assert "above that: usual 0.00015, searched 1.5e-05 to 0.0015" in told
    (here / "space.yaml").write_text(
        AUTOMATIC.replace("{type: float, low: auto, high: auto, log: true}", "auto")
    )
    assert main(words) == 0
    assert "fixed: learning_rate=auto" in capsys.readouterr().out
    assert main([*words, "--language", "de", "--set", "task=translate"]) == 0
    assert "fixed: learning_rate=3.75e-05" in capsys.readouterr().out


@pytest.mark.parametrize("high", ["1e-6", "1e-4"])
def test_a_range_that_is_empty_for_some_base_model_is_refused_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], small_whisper: Path, high: str
) -> None:
    (here / "space.yaml").write_text(f"learning_rate: {{type: float, low: auto, high: {high}, log: true}}\n")
    code = main(["--space", "space.yaml", "--model", str(small_whisper), "--data", "demo", "--dry-run"])
    assert code == (2 if high == "1e-6" else 0)
    assert ("is above high" in capsys.readouterr().err) == (code == 2)
