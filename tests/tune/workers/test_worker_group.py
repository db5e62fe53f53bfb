"""Several workers in each trial of a search: trials are stopped, fail and end, and every CPU and GPU is free again."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import time
from pathlib import Path

import psutil
import pytest
from processes import family
from ray_nodes import Nodes
from search_process import finish, search_nodes, state, trials

TRIALS = int(os.environ.get("TRIALS", "6"))
"""Of two workers each; `TRIALS=12 pytest tests/tune/workers/test_worker_group.py` runs more."""


def wait_until_free(nodes: Nodes) -> None:
    """Every CPU and GPU is free within 15 seconds."""
    deadline = time.monotonic() + 15
    total, free = nodes.resources()
    while free != total and time.monotonic() < deadline:
        total, free = nodes.resources()
    assert free == total


@pytest.mark.slow
def test_trials_of_two_workers_leave_everything_free(tmp_path: Path) -> None:
    with Nodes(cpus=2, gpus=4) as nodes:
        output = finish(
            search_nodes(
                tmp_path,
                "many",
                nodes.address,
                "--trials",
                str(TRIALS),
                "--workers-per-trial",
                "2",
                "--epochs",
                "1.5",
                "--set",
                "train_batch_size=2",  # rungs at 32 and 96
                "--finalists",
                "0",
            )
        )
        assert "2 at a time with 2 GPU and 1 CPU each for 2 workers" in output
        ended = trials(tmp_path, "many")
        assert len(ended) == TRIALS
        assert {trial["status"] for trial in ended} == {"early_stopped", "completed"}
        for trial in ended:
            batch = 2 * trial["config"]["gradient_accumulation_steps"] * 2  # of two clips, by two workers
            assert trial["effective_batch_size"] == batch
        assert " effective " in output
        wait_until_free(nodes)


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_trial_which_goes_on(tmp_path: Path) -> None:
    words = ["--trials", "1", "--workers-per-trial", "2", "--epochs", "9", "--set", "train_batch_size=4"]
    with Nodes(cpus=2, gpus=2) as nodes:
        process = search_nodes(tmp_path, "killed", nodes.address, *words)
        deadline = time.monotonic() + 500
        while not any(trial["last_checkpoint"] for trial in state(tmp_path / "killed").values()):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.2)
        processes = family(psutil.Process(nodes.nodes[0].pid))
        second = [each for each in processes if each.name().startswith("ray::Worker")][-1]
        second.kill()
        output = finish(process)
        assert "trial 001 failed and goes on from its checkpoint" in output
        (trial,) = trials(tmp_path, "killed")
        assert trial["status"] == "completed"
        seen = [evaluation["samples_seen"] for evaluation in trial["evaluations"]]
        assert seen == sorted(set(seen)), "a rung was trained twice"
        wait_until_free(nodes)


@pytest.mark.slow
def test_deepspeed_in_a_trial_on_two_nodes(tmp_path: Path) -> None:
    words = ["--trials", "1", "--workers-per-trial", "2", "--deepspeed", "--epochs", "2"]
    words += ["--set", "train_batch_size=4", "--set", "gradient_accumulation_steps=1"]  # for several rungs
    with Nodes(cpus=1, gpus=1) as nodes:
        nodes.add(cpus=1, gpus=1)  # a worker on each node, and each writes its part of a checkpoint
        process = search_nodes(tmp_path, "zero", nodes.address, *words)
        files: set[str] = set()
        while process.poll() is None:  # what only going on needs is removed in the end
            for manifest in (tmp_path / "zero").glob("trials/001/checkpoint_*/manifest.json"):
                with contextlib.suppress(FileNotFoundError):
                    files |= json.loads(manifest.read_text())["files"].keys()
            time.sleep(0.05)
        output = finish(process)
        assert "failed" not in output
        (trial,) = trials(tmp_path, "zero")
        assert (Path(trial["checkpoint"]) / "model.safetensors").is_file()
        parts = [name for name in files if fnmatch.fnmatch(name, "global_step*/*optim_states.pt")]
        assert len({Path(name).name for name in parts}) == 2, (
            "the engine was not live, or a node's part is missing"
        )
        assert len([name for name in files if fnmatch.fnmatch(name, "rng_state_*.pth")]) == 2
        wait_until_free(nodes)
