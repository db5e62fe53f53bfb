"""`--resume`: a search whose process was killed goes on in another one, also without any local file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from s3_server import KEYS, S3Server

from tune.cli import main
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import fold
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.storage import Storage

ROOT = Path(__file__).resolve().parents[3]
WORDS = "--space lr_batch.yaml --experiment killed --trials 3 --epochs 6 --keep-checkpoints all"
QUICK = "--set max_train_clips=64 --set max_eval_clips=12 --set generation_max_length=24"


def start(home: Path, words: list[str], **environment: str) -> subprocess.Popen[str]:
    """A search with nothing in its home but what it makes."""
    home.mkdir()
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "XDG_CACHE_HOME")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tune", *words],
        cwd=home,
        env={**inherited, **environment, "HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> str:
    """SIGKILL the search and all of its Ray; what it printed."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for each in family:
        if each.is_running():
            each.kill()
    return process.communicate()[0]


def state(folder: ExperimentFolder) -> dict[str, dict[str, Any]]:
    """What the log says of the trials where the experiment is kept."""
    try:
        assert folder.store is not None
        known = fold(folder.store.read(f"{folder.name}/{EVENTS_FILE}"), Path(EVENTS_FILE))
    except StorageError:
        return {}
    return {record.trial_id: vars(record) for record in known.records.all()}


def half_done(known: dict[str, dict[str, Any]]) -> bool:
    """Whether a trial has ended, and another has a checkpoint to go on from."""
    running = [trial for trial in known.values() if trial["status"] == "running"]
    return len(running) < len(known) and any(trial["last_checkpoint"] for trial in running)


def check(before: dict[str, dict[str, Any]], results: dict[str, Any], output: str) -> None:
    after = {trial["trial_id"]: trial for trial in results["trials"]}
    assert list(after) == ["001", "002", "003"]
    failed = [trial for trial in after.values() if trial["status"] not in ("completed", "early_stopped")]
    assert not failed, output
    configs = [json.dumps(trial["config"], sort_keys=True) for trial in after.values()]
    assert len(set(configs)) == 3, "a config was repeated"
    # A trial whose last decision was written down has ended, also where the search was killed right then.
    over = [
        key
        for key, known in before.items()
        if known["status"] != "running" or known["finished"] or known["stop"]
    ]
    for trial_id, known in before.items():
        assert after[trial_id]["config"] == known["config"]
        kept = [[e["samples_seen"], e["wer"]] for e in after[trial_id]["evaluations"]]
        assert kept[: len(known["evaluations"])] == [[seen, wer] for seen, wer in known["evaluations"]]
        seen = [samples for samples, _ in kept]
        assert seen == sorted(set(seen)), "a rung was trained twice"
        if trial_id in over:
            assert after[trial_id]["wer"] == known["wer"], "an ended trial was run again"
        elif known["last_checkpoint"]:
            assert f"trial {trial_id} goes on at epoch {known['checkpoint_epoch']:.2f}" in output
    assert f"{len(over)} of 3 trials have ended" in output
    for trial in after.values():
        assert trial["checkpoint"], "the checkpoint of an ended trial was forgotten"
        assert trial["best_wer"] == min(evaluation["wer"] for evaluation in trial["evaluations"])
    assert len({trial["mlflow_run_id"] for trial in after.values()} - {None}) == 3


@pytest.mark.slow
def test_a_search_on_s3_goes_on_without_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = S3Server("experiments")
    server.start()
    try:
        environment = {**KEYS, "AWS_ENDPOINT_URL": server.endpoint}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        storage = Storage.parse("s3://experiments/resumed")
        folder, place = storage.experiment("killed"), ["--storage", storage.address]
        process = start(tmp_path / "first", [*WORDS.split(), *QUICK.split(), *place], **environment)
        deadline = time.monotonic() + 500
        while not half_done(before := state(folder)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, kill(process)
            time.sleep(0.3)
        before = state(folder)
        kill(process)
        (tmp_path / "first").rename(tmp_path / "gone")
        refused = start(tmp_path / "other", ["--resume", "killed", *place], **environment)
        told, _ = refused.communicate(timeout=200)
        assert refused.returncode == 2, told
        assert "runs it (last heartbeat" in told
        again = ["--resume", "killed", "--take-over", "--finalists", "1", "--repeats", "2", *place]
        process = start(tmp_path / "second", again, **environment)
        output, _ = process.communicate(timeout=560)
        assert process.returncode == 0, output
        results = json.loads(folder.store.read("killed/results.json"))
        check(before, results, output)
        folder.download()
        runs = mlflow.MlflowClient(f"sqlite:///{folder.path}/mlflow.db").search_runs(["1"])
        assert len(runs) == 7, "a search, three trials, two repeats, an average; or runs were made twice"
        assert {run.info.status for run in runs} <= {"FINISHED", "KILLED"}
        models = {run["trial_id"]: run["best_wer"] for run in [*results["repeats"], *results["averages"]]}
        assert [average["error"] for average in results["averages"]] == [None]
        assert results["best"]["wer"] == models[results["best"]["run"]]
        words = ["export", "killed", "--output", str(tmp_path / "model"), "--storage", storage.address]
        assert main(words) == 0
        other = next(t["trial_id"] for t in results["trials"] if t["trial_id"] != results["best"]["trial_id"])
        words[3:4] = [str(tmp_path / "second-model"), "--trial", other]
        assert main(words) == 0
        assert json.loads((tmp_path / "second-model" / "evaluation.json").read_text())["trial_id"] == other
        assert main([*WORDS.split(), "--storage", storage.address]) == 2, "the experiment exists already"
        store = folder.store
        names = store.files("killed")
        assert not [name for name in names if name.endswith(".f16")], "features do not belong there"
        contents = [
            store.read(f"killed/{name}") for name in names if not name.endswith((".safetensors", ".pt"))
        ]
        contents += [path.read_bytes() for path in (tmp_path / "gone").rglob("*") if path.is_file()]
        for content in contents:
            assert not [key for key in KEYS.values() if key.encode() in content]
    finally:
        server.stop()


def test_what_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--storage", str(tmp_path)]
    for words, expected in [
        (["--resume", "nothing"], "no experiment 'nothing'"),
        (["--resume", "nothing", "--space", "lr_batch"], "--space: cannot be given with --resume"),
        (["--resume", "nothing", "--model=tiny"], "--model: cannot be given with --resume"),
        (["--trials", "3"], "--space: is missing; give a search space, or --resume EXPERIMENT"),
    ]:
        assert main([*words, *place]) == 2
        assert expected in capsys.readouterr().err
