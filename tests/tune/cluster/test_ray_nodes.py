"""Searches on a real Ray cluster whose nodes come and go."""

import re
from pathlib import Path

import pytest
from processes import tune_whisper
from ray_nodes import Nodes
from search_process import NODES_QUICK, Search, results, state

SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 2e-3, log: true}
train_batch_size: 8
scheduler: {min_trials_per_rung: 9}
"""
"""Nothing is stopped early: two trials run side by side for as long as one takes, whatever else happens."""


@pytest.mark.slow
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
