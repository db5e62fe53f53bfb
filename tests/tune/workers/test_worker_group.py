"""Several workers in each trial of a search: trials are stopped, fail and end, and every CPU and GPU is free again."""

import fnmatch
import json
import os
import re
import time
from pathlib import Path

import psutil
import pytest
from processes import family
from ray_nodes import Nodes
from search_process import NODES_QUICK, Search, results, state

TRIALS = int(os.environ.get("TRIALS", "6"))
"""Of two workers each; `TRIALS=12 pytest tests/tune/workers/test_worker_group.py` runs more."""


def begin(folder: Path, nodes: Nodes, words: str) -> Search:
    """A search of trials of two workers each."""
    always = "--space lr_batch --experiment x --finalists 0 --workers-per-trial 2 --address"
    return Search(folder, *always.split(), nodes.address, *words.split(), *NODES_QUICK)


def wait_until_free(nodes: Nodes) -> None:
    """Every CPU and GPU is free within 15 seconds."""
    deadline = time.monotonic() + 15
    total, free = nodes.resources()
    while free != total and time.monotonic() < deadline:
        total, free = nodes.resources()
    assert free == total


@pytest.mark.slow
@pytest.mark.occasional
def test_trials_of_two_workers_leave_everything_free(tmp_path: Path) -> None:
    with Nodes(cpus=2, gpus=4) as nodes:
        words = f"--trials {TRIALS} --epochs 1.5 --set train_batch_size=2"  # rungs at 32 and 96
        search = begin(tmp_path, nodes, words)
        assert search.end() == 0, search.log
        assert "2 at a time with 2 GPU and 1 CPU each for 2 workers" in search.log
        ended = results(tmp_path / "experiments" / "x")["trials"]
        assert len(ended) == TRIALS
        assert {trial["status"] for trial in ended} == {"early_stopped", "completed"}
        for trial in ended:
            batch = 2 * trial["config"]["gradient_accumulation_steps"] * 2  # of two clips, by two workers
            assert trial["effective_batch_size"] == batch
        assert " effective " in search.log
        wait_until_free(nodes)


@pytest.mark.slow
@pytest.mark.occasional
def test_a_worker_on_another_node_is_killed_and_its_trial_goes_on_with_deepspeed(tmp_path: Path) -> None:
    """One worker on each node, and each writes its part of a checkpoint."""
    words = "--trials 1 --deepspeed --epochs 9 --set train_batch_size=4 --set gradient_accumulation_steps=1"
    experiment = tmp_path / "experiments" / "x"
    with Nodes(cpus=1, gpus=1) as nodes:
        second = nodes.add(cpus=1, gpus=1)
        search = begin(tmp_path, nodes, words)
        search.wait_for(lambda: any(trial["last_checkpoint"] for trial in state(experiment).values()))
        (manifest, *_) = experiment.glob("trials/001/checkpoint_*/manifest.json")
        files = json.loads(manifest.read_text())["files"]
        worker = [
            each for each in family(psutil.Process(second.pid)) if each.name().startswith("ray::Worker")
        ]
        worker[-1].kill()
        assert search.end() == 0, search.log
        parts = [name for name in files if fnmatch.fnmatch(name, "global_step*/*optim_states.pt")]
        assert len({Path(name).name for name in parts}) == 2, "the engine was not live, or a part is missing"
        assert len([name for name in files if fnmatch.fnmatch(name, "rng_state_*.pth")]) == 2
        assert re.search(r"1 at a time with 2 GPU and \d CPU each for 2 workers", search.log)
        assert "trial 001 failed and goes on from its checkpoint" in search.log
        (trial,) = results(experiment)["trials"]
        assert (trial["status"], trial["effective_batch_size"]) == ("completed", 8)
        seen = [evaluation["samples_seen"] for evaluation in trial["evaluations"]]
        assert seen == sorted(set(seen)), "a rung was trained twice"
        assert (Path(trial["checkpoint"]) / "model.safetensors").is_file()
        wait_until_free(nodes)
