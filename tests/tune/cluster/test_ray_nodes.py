"""Searches on a real Ray cluster whose nodes come and go."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes
from search_process import finish, search_nodes, state, trials


def running(log: Path) -> list[dict[str, Any]]:
    """Trials that a process trains, as the log has it."""
    return [each for each in state(log.parent).values() if each["status"] == "running" and each["folder"]]


def wait_for(condition: Any, process: Any, seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0][-5000:]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 2e-3, log: true}
train_batch_size: 8
scheduler: {min_trials_per_rung: 9}
"""
"""Nothing is stopped early: two trials run side by side for as long as one takes, whatever else happens."""


@pytest.mark.slow
def test_a_node_is_killed_and_another_joins(tmp_path: Path) -> None:
    """The head has no CPUs; of two nodes one is lost in mid-search, and a third one comes."""
    log, space = tmp_path / "nodes" / "events.jsonl", tmp_path / "space.yaml"
    space.write_text(SPACE)
    with Nodes(cpus=0) as nodes:
        first = nodes.add(cpus=1)
        words = ["--space", str(space), "--trials", "2", "--epochs", "5"]
        process = search_nodes(tmp_path, "nodes", nodes.address, *words)
        wait_for(lambda: any(trial["last_checkpoint"] for trial in running(log)), process)
        nodes.suspend(first)  # however long the other node takes: the trial does not end before
        assert len(running(log)) == 1, "one CPU runs one trial"
        nodes.add(cpus=1)
        wait_for(lambda: len(running(log)) == 2, process)  # the node that joined is used
        nodes.kill(first)
        output = finish(process)
        ended = trials(tmp_path, "nodes")
        assert len(ended) == 2
        assert {trial["status"] for trial in ended} == {"completed"}
        assert re.search(r"trial 00\d failed and goes on from its checkpoint at epoch", output)
        seen = [evaluation["samples_seen"] for evaluation in ended[0]["evaluations"]]
        assert seen == sorted(set(seen)), "a rung was trained twice"
        one = {"CPU": 1.0, "GPU": 0.0}
        deadline = time.monotonic() + 200  # Ray's head notices after a while that a node says nothing
        while (found := nodes.resources()) != (one, one) and time.monotonic() < deadline:
            time.sleep(3)
        assert found == (one, one)
