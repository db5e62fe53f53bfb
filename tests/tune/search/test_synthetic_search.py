"""Hundreds of trials with made-up curves through the real Ray Tune: all are told to their end, and nothing piles up."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from search_process import Search, results

STATES = {
    **{"completed": TrialState.COMPLETE, "early_stopped": TrialState.PRUNED},
    **{"failed": TrialState.FAIL, "diverged": TrialState.FAIL},
}
TRIALS = int(os.environ.get("SYNTHETIC_TRIALS", "36"))
"""300 take two minutes and more, of which most is Ray's own."""


def ended(search: Search) -> int:
    """Trials that have."""
    return search.log.count(f"/{TRIALS} trials ended")


@pytest.mark.slow
@pytest.mark.occasional
@pytest.mark.timeout(1500)
def test_many_trials(tmp_path: Path) -> None:
    words = ["--space", "lr_batch", "--trials", str(TRIALS), "--experiment", "x", "--epochs", "32"]
    words += ["--set", "max_train_clips=32", "--set", "max_eval_clips=2", "--set", "generation_max_length=8"]
    search = Search(
        tmp_path,
        *words,
        "--finalists",
        "0",
        "--max-failures",
        "0",
        "--keep-checkpoints",
        "all",
        curve="mixed",
    )
    memory = []
    for number in (TRIALS // 6, TRIALS // 3, TRIALS // 2, 2 * TRIALS // 3, 5 * TRIALS // 6, TRIALS - 1):
        search.wait_for(lambda number=number: ended(search) >= number, 1200)
        memory.append(psutil.Process(search.process.pid).memory_info().rss)
    assert search.end(600) == 0, search.log
    assert max(memory) <= 1.2 * memory[0], [f"{rss / 1e6:.0f} MB" for rss in memory]

    trials = results(tmp_path / "experiments" / "x")["trials"]
    kept = [trial["checkpoint"] for trial in trials if trial["checkpoint"]]
    pids = {
        json.loads((tmp_path / "experiments" / "x" / path / "config.json").read_text())["pid"]
        for path in kept
    }
    failed = sum(trial["status"] == "failed" for trial in trials)
    assert len(pids) <= failed + os.cpu_count(), "trials wait for processes that could have been kept"
    backend = JournalFileBackend(str(tmp_path / "experiments" / "x" / "optuna_journal.log"))
    study = optuna.load_study(study_name="x", storage=JournalStorage(backend))
    assert len(trials) == len(study.trials) == TRIALS
    assert set(Counter(trial["status"] for trial in trials)) == set(STATES)
    for trial, told in zip(trials, study.trials, strict=True):
        assert told.user_attrs["trial_id"] == trial["trial_id"]
        assert told.state == STATES[trial["status"]]
        assert told.params == trial["config"]
        assert told.intermediate_values == {
            each["samples_seen"]: each["wer"] for each in trial["evaluations"]
        }
        if trial["status"] == "completed":
            assert told.value == trial["best_wer"]
