"""A search on a stream: killed and resumed, it sees the clips that the unbroken one sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_data import write_shards
from search_process import Search, state

WORDS = ["--space", "lr_batch", "--trials", "2", "--experiment", "x", "--seed", "5", "--finalists", "0"]
WORDS += ["--max-concurrent", "1", "--cpus-per-trial", "1"]
SETTINGS = [
    "streaming=true",
    "audio_window=10",
    "max_samples=200",
    "shuffle_buffer=8",
    "generation_max_length=24",
]
SETTINGS += ["train_batch_size=4", "gradient_accumulation_steps=1"]


def start(folder: Path, shards: Path) -> Search:
    given = [word for text in SETTINGS for word in ("--set", text)]
    return Search(folder, *WORDS, "--data", str(shards), *given)


def evaluations(folder: Path) -> dict[str, list[Any]]:
    return {
        name: [trial["evaluations"], trial["losses"]]
        for name, trial in state(folder / "experiments" / "x").items()
    }


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards")
    whole = start(tmp_path / "whole", shards)
    assert whole.end() == 0, whole.log
    expected = evaluations(tmp_path / "whole")
    assert len(expected) == 2 and all(map(all, expected.values()))
    killed = start(tmp_path / "killed", shards)
    killed.wait_for(
        lambda: any(
            trial["checkpoint"] for trial in state(tmp_path / "killed" / "experiments" / "x").values()
        )
    )
    killed.kill()
    resumed = Search(tmp_path / "killed", "--resume", "x")
    assert resumed.end() == 0, resumed.log
    assert evaluations(tmp_path / "killed") == expected
