"""Runs of Weights & Biases, as its own reader finds them in the files of an offline run."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from made_experiments import MadeLog
from mlflow_server import wait_for
from wandb.proto.wandb_internal_pb2 import Record

from tune.experiments.events import Baseline
from tune.tracking.sync import Log
from tune.tracking.wandb import WandbStore


@pytest.fixture(autouse=True)
def forget_settings() -> Iterator[None]:
    """W&B keeps for the process what the environment said first."""
    yield
    wandb.teardown()


def records(path: Path) -> Iterator[Record]:
    """What W&B wrote: a header of 7 bytes, then blocks of 32 KiB with pieces of records (LevelDB's log format)."""
    content, position, whole = path.read_bytes(), 7, b""
    while position < len(content):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", content[position + 4 : position + 7])
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield Record.FromString(whole)
            whole = b""


def offline_runs(folder: Path) -> dict[str, tuple[dict[str, Any], dict[int, dict[str, Any]]]]:
    """Of each run by its name, in its last folder: the last summary, and what was logged by step."""
    found = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        name, summary, history = "", dict[str, Any](), dict[int, dict[str, Any]]()
        for record in records(path):
            name = record.run.display_name or name
            summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
            if record.HasField("history"):
                items = record.history.item
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}
                history[record.history.step.num] = row
        found[name] = summary, history
    return found


def test_a_run_for_each_trial_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(sys, "argv", ["tune-whisper", "--notify", "https://host/hidden"])
    rates = {"rates": {"wer": 60.0}, "trial_rates": {"wer": 30.0}}
    made = MadeLog(tmp_path / "exp", baseline=Baseline(**rates))
    (made.folder / "tracking").mkdir()
    store, log = WandbStore(made.target()), Log(made.experiment)
    made.four()
    store.sync(log)
    made.begin("001-r1", seed=43)
    made.measure("001-r1", 3200, 10.5)
    store.sync(log)
    made.end("001-r1", "completed")
    store.sync(log)
    before = set((made.folder / "wandb").iterdir())
    again = WandbStore(made.target())
    again.sync(log)
    assert set((made.folder / "wandb").iterdir()) == before, "what was delivered is not sent again"
    ends = {f"exp {run.trial_id}": run.outcome for run in made.saved.state.runs}
    # W&B's own process writes the last run's file behind `finish`.
    wait_for(
        lambda: {name: run[0].get("status") for name, run in offline_runs(made.folder).items()} == ends, 30
    )
    files = [path for path in (made.folder / "wandb").rglob("*") if path.is_file()]
    assert not [path.name for path in files if b"hidden" in path.read_bytes()], "words may hold secrets"
    runs = offline_runs(made.folder)
    for run in made.saved.state.runs:
        summary, history = runs[f"exp {run.trial_id}"]
        assert [(step, row["wer"]) for step, row in history.items() if "wer" in row] == run.evaluations
        assert summary.get("best_wer") == run.best_value
        as_measured = made.saved.state.base_rates_for(run)["wer"]
        assert summary["baseline_wer"] == as_measured == (60.0 if run.trial_id == "001-r1" else 30.0)


def test_the_last_folder_of_a_resumed_offline_run_has_all_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wandb sync` replaces what earlier folders of a run had."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = MadeLog(tmp_path / "exp")
    (made.folder / "tracking").mkdir()
    made.session()
    made.begin("001")
    for samples, wer in ((384, 40.0), (1088, 30.0)):
        made.measure("001", samples, wer)
        WandbStore(made.target()).sync(Log(made.experiment))
        wandb.teardown()
        time.sleep(1.1)  # the second is in the folder's name
    assert len(list(made.folder.glob("wandb/offline-run-*"))) == 2
    [(_, history)] = offline_runs(made.folder).values()
    assert [(step, row["wer"]) for step, row in history.items()] == [(384, 40.0), (1088, 30.0)]


def test_a_search_without_an_account_ends_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for words in (["--space", "lr_batch", "--dry-run"], ["--space", "lr_batch"], ["train", "--data", "demo"]):
        assert "--track wandb: no account; set WANDB_API_KEY, run `wandb login`" in refused(
            *words, "--track", "wandb"
        )
