"""Searches on a real Ray cluster: its nodes come and go; trials of several workers leave every CPU and GPU free."""

import fnmatch
import json
import os
import re
import time
from pathlib import Path

import psutil
import pytest
from processes import family, tune_whisper
from ray_nodes import Nodes
from search_process import NODES_QUICK, Search, results, state

SPACE = """\
learning_rate: {type: float, low: 1e-3, high: 2e-3, log: true}
train_batch_size: 8
scheduler: {min_trials_per_rung: 9, rising_rungs: 0}
"""
"""Nothing is stopped early: two trials run side by side for as long as one takes, whatever else happens."""


@pytest.mark.slow
@pytest.mark.occasional
def test_a_node_is_killed_and_another_joins(tmp_path: Path) -> None:
    """The head has no CPUs; of two nodes one is lost in mid-search, and a third one comes."""
    experiment = tmp_path / "experiments" / "nodes"
    (tmp_path / "space.yaml").write_text(SPACE)

    def running() -> list[str | None]:
        """The last checkpoints of the trials that a process trains."""
        known = state(experiment).values()
        return [each["last_checkpoint"] for each in known if each["status"] == "running" and each["folder"]]

    with Nodes(cpus=0) as nodes:
        first = nodes.add(cpus=1)
        plan = "--space lr_batch --trials 2 --storage planned --dry-run --measure --address"
        planned = tune_whisper(*plan.split(), nodes.address, cwd=tmp_path)
        assert re.search(r"time: about .* with one trial at a time.* measured on a worker", planned.stdout)
        assert not any((tmp_path / "planned").rglob("*")), "the sample went to the worker alone"
        words = ["--space", "space.yaml", "--trials", "2", "--epochs", "5", "--experiment", "nodes"]
        search = Search(tmp_path, *words, "--address", nodes.address, *NODES_QUICK)
        search.wait_for(lambda: any(running()))
        nodes.suspend(first)  # however long the other node takes: the trial does not end before
        assert len(running()) == 1, "one CPU runs one trial"
        nodes.add(cpus=1)
        search.wait_for(lambda: len(running()) == 2)  # the node that joined is used
        nodes.kill(first)
        assert search.end() == 0, search.log
        ended = results(experiment)["trials"]
        assert [trial["status"] for trial in ended] == ["completed"] * 2
        assert re.search(r"trial 00\d failed and goes on from its checkpoint at epoch", search.log)
        seen = [evaluation["samples_seen"] for evaluation in ended[0]["evaluations"]]
        assert seen == sorted(set(seen)), "a rung was trained twice"


TRIALS = int(os.environ.get("TRIALS", "6"))
"""Of two workers each; `TRIALS=12 pytest tests/tune/cluster/test_ray_nodes.py` runs more."""


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
        words = f"--trials {TRIALS} --epochs 1.5 --set train_batch_size=2"  # rungs at 48 and 96
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
