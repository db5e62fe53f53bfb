"""Real faults in mid-search: a worker killed, the data gone."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from forks import Command, family, tune_whisper

import trainer

SPACE = "learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}\nscheduler: {rungs: 4, reduction_factor: 2}\n"
WORDS = [
    "--space",
    "space.yaml",
    "--experiment",
    "x",
    "--set",
    "max_train_clips=80",
    "--set",
    "max_eval_clips=20",
]


def start(folder: Path, *words: str) -> Command:
    (folder / "space.yaml").write_text(SPACE)
    with (folder / "log").open("wb") as output:
        return Command(*WORDS, *words, cwd=folder, output=output, session=True)


def wait_for(condition: Callable[[], Any], process: Command, seconds: float = 560) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        assert process.poll() is None, "the search ended too early"
        time.sleep(0.2)
    raise AssertionError("waited too long")


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "experiments" / "x" / "results.json").read_text())
    return found


@pytest.mark.slow
def test_a_worker_is_killed_and_the_data_go_away(tmp_path: Path) -> None:
    """The one fails its trial and no other; the other is not noticed, the data were read once for all trials."""
    demo = Path(trainer.__file__).parent / "demo" / "data"
    shutil.copytree(demo, tmp_path / "recordings")
    words = ["--trials", "3", "--epochs", "6", "--max-concurrent", "1", "--max-failures", "0"]
    process = start(tmp_path, *words, "--data", "recordings")
    log = tmp_path / "log"
    wait_for(lambda: "trial 001 epoch" in log.read_text(), process)
    shutil.rmtree(tmp_path / "recordings")
    mine = [p for p in family(psutil.Process(process.pid)) if p.name().startswith("ray::ImplicitFunc")]
    assert len(mine) == 1
    mine[0].kill()
    assert process.wait(560) == 0, log.read_text()
    found = results(tmp_path)
    assert found["trials"][0]["status"] == "failed"
    assert {trial["status"] for trial in found["trials"][1:]} <= {"completed", "early_stopped"}
    assert len(found["trials"]) == 3
    printed = log.read_text()
    assert "trial 001 failed: The actor died unexpectedly" in printed
    assert "Traceback" not in printed
    assert "actor died" in found["trials"][0]["error"]
    assert (tmp_path / "experiments" / "x" / "trials" / "001" / "error.txt").is_file()
    done = tune_whisper("export", "x", "--output", "model", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not measured again" in done.stdout
    assert (tmp_path / "model" / "model.safetensors").is_file()
