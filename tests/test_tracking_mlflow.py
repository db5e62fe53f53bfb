"""An experiment's log as MLflow runs: what is written, and that delivering it again changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_logs import BEGAN, MadeLog, whole_search
from mlflow_server import Server, children, client_of, only_parent, steps

from tune.experiments.events import (
    ExportChosen,
    FinalistsCompared,
    FinalRoundPlanned,
    HeldOutMeasured,
    TrialStarted,
)
from tune.mlflow_store import TRIALS_VIEW_TAG, default_tracking_uri
from tune.tracking import follower
from tune.tracking.mlflow import POSITION
from tune.tracking.mlflow_connection import TrackingStore
from tune.tracking.mlflow_events import PARENT


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One SQLite store for many tests: making its tables takes a second and more."""
    return default_tracking_uri(tmp_path_factory.mktemp("one store"))


@pytest.fixture
def made(tmp_path: Path, database: str) -> MadeLog:
    """An experiment whose name is that of the test."""
    return MadeLog(tmp_path / "experiments" / tmp_path.name, database)


def told(uri: str, name: str) -> dict[str, Any]:
    """Everything that a store says of an experiment but the ids of its runs, and how far delivery is."""
    client = client_of(uri)
    parent = only_parent(client, name)
    runs = {"": client.get_run(parent), **children(client, parent)}
    found: dict[str, Any] = {"view": client.get_experiment(runs[""].info.experiment_id).tags[TRIALS_VIEW_TAG]}
    for key, run in runs.items():
        tags = {name: tag for name, tag in run.data.tags.items() if name not in (POSITION, PARENT)}
        tags = {name: re.sub(r" --storage \S+", "", tag) for name, tag in tags.items()}
        points = {
            name: [(p.step, p.timestamp, p.value) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
        times = (run.info.start_time, run.info.end_time)
        found[key] = (run.info.run_name, run.info.status, times, run.data.params, tags, points, files)
    return found


def long_search(made: MadeLog) -> Iterator[None]:
    """Two sessions, failures, a final round, in steps."""
    made.session(trials=3, finalists=2, repeats=1)
    yield
    made.begin("001")
    made.begin("002", learning_rate=2e-3)
    made.evaluate("001", 50.0)
    made.progress("001", 10, 20)
    yield
    made.evaluate("002", 45.0, 44.0, stop=True)
    made.end("002", "early_stopped")
    made.evaluate("001", 30.0, first=1)
    made.append(TrialStarted(trial_id="001", folder="001"))
    yield
    made.finish("interrupted")
    yield
    made.again()
    made.session(2, trials=3, finalists=2, repeats=1)
    made.append(TrialStarted(trial_id="001", folder="001-2"))
    yield
    made.evaluate("001", 12.0, first=2)
    made.begin("003")
    made.end("001")
    yield
    made.evaluate("003", 40.0)
    made.end("003", "failed", error="Failure #1\nTraceback\nValueError: no such column\n")
    planned = {"001-r1": {"learning_rate": 1e-3, "seed": 1}}
    made.append(FinalRoundPlanned(finalists=["001"], repeats=planned))
    made.trial("001-r1", 49.0, 29.0, 11.0, seed=1)
    yield
    made.append(FinalistsCompared(verdict=verdict(made)), ExportChosen(run="001-r1"))
    made.append(HeldOutMeasured(run="001-r1", rates={"wer": 14.0}, baseline={"wer": 62.0}))
    made.finish()
    yield


def verdict(made: MadeLog) -> dict[str, Any]:
    """That of a final round with one finalist."""
    standing = {
        "trial_id": "001",
        "runs": ["001-r1"],
        "wers": [11.0],
        "mean": 11.0,
        "sd": None,
        "seconds": 3.0,
    }
    standing |= {"difference": 0.0, "interval": [0.0, 0.0], "tied": False, "mean_interval": [10.0, 12.0]}
    return {"standings": [standing], "winner": "001", "tie": False}


def test_a_search_as_runs(made: MadeLog, database: str) -> None:
    whole_search(made)
    made.progress("001", 100, 200)
    delivered = made.deliver()
    assert delivered.complete
    assert delivered.status.refused == 0
    client = client_of(database)
    parent = client.get_run(only_parent(client, made.name))
    assert (parent.info.run_name, parent.info.status) == (made.name, "FINISHED")
    assert parent.info.start_time == int((BEGAN + 1) * 1000)
    tags = {
        "role": "experiment",
        "status": "completed",
        "best_trial": "001",
        "winner": "001",
        "model": "demo",
    }
    assert parent.data.tags.items() >= tags.items()
    assert parent.data.tags["mlflow.note.content"].startswith("**WER 12.00 %**, 60.00 % before")
    assert parent.data.params.items() >= {"trials": "2", "space": "space.yaml", "model": "demo"}.items()
    assert parent.data.params["search.train_batch_size"] == "one of 4, 8, 16"
    metrics = {"baseline_wer": 60.0, "baseline_cer": 20.0, "best_wer": 12.0, "wer_gain": 48.0}
    assert parent.data.metrics.items() >= metrics.items()
    best = client.get_metric_history(parent.info.run_id, "best_wer")
    assert [(point.step, point.value) for point in best][:3] == [(1, 50.0), (1, 30.0), (1, 12.0)]
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"experiment.yaml", "results.json", "space.yaml", "versions.json"}
    runs = children(client, parent.info.run_id)
    assert {key: (run.info.status, run.data.tags["status"]) for key, run in runs.items()} == {
        "001": ("FINISHED", "completed"),
        "002": ("KILLED", "early_stopped"),
    }
    first = runs["001"]
    assert first.info.run_name == "001 lr=0.001 warmup=0.1 batch=8 accum=1"
    assert set(first.data.params) == {
        *("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps"),
        "effective_batch_size",
    }
    assert steps(client, first.info.run_id) == [384, 1088, 3200]
    assert sorted(set(steps(client, first.info.run_id, "loss"))) == [100, 200, 384, 1088, 3200]
    found = {"wer": 12.0, "best_wer": 12.0, "wer_gain": 48.0, "samples_seen": 3200.0, "seconds": 4.0}
    assert first.data.metrics.items() >= {**found, "optimizer_step": 400.0, "eval_loss": 0.5}.items()
    (wer,) = [p for p in client.get_metric_history(first.info.run_id, "wer") if p.step == 384]
    assert wer.timestamp == (BEGAN + 5) * 1000
    assert first.data.tags["best"] == first.data.tags["winner"] == "true"
    assert runs["002"].data.tags["stop_reason"] == "asha"
    assert (
        runs["002"].data.tags["mlflow.note.content"].startswith("Stopped early: WER 55.00 % at 384 samples")
    )
    view = json.loads(client.get_experiment(parent.info.experiment_id).tags[TRIALS_VIEW_TAG])
    assert {"metrics.`best_wer`", "params.`learning_rate`"} < set(view["selectedColumns"])


def test_a_search_on_a_server(tmp_path: Path, server: Server) -> None:
    made = MadeLog(tmp_path / tmp_path.name, server.url)
    whole_search(made)
    assert made.deliver().complete
    client = client_of(server.url)
    parent = only_parent(client, made.name)
    assert set(children(client, parent)) == {"001", "002"}
    assert "versions.json" in {file.path for file in client.list_artifacts(parent)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


def test_two_sessions_a_final_round_and_failures(made: MadeLog, database: str) -> None:
    for _ in long_search(made):
        pass
    assert made.deliver().status.refused == 0
    client = client_of(database)
    parent = client.get_run(only_parent(client, made.name))
    runs = children(client, parent.info.run_id)
    assert {key: (run.info.status, run.data.tags["role"]) for key, run in runs.items()} == {
        "001": ("FINISHED", "trial"),
        "001-r1": ("FINISHED", "repeat"),
        "002": ("KILLED", "trial"),
        "003": ("FAILED", "trial"),
    }
    assert runs["003"].data.tags["mlflow.note.content"] == "Failed: ValueError: no such column"
    assert runs["001-r1"].data.params["seed"] == "1"
    assert [key for key, run in runs.items() if run.data.tags.get("best") == "true"] == ["001-r1"]
    assert [key for key, run in runs.items() if run.data.tags.get("winner") == "true"] == ["001"]
    metrics = {"winner_mean_wer": 11.0, "wer_gain": 49.0, "test_wer": 14.0, "baseline_test_wer": 62.0}
    assert parent.data.metrics.items() >= metrics.items()
    assert (parent.data.tags["tie"], parent.data.tags["best_trial"]) == ("false", "001-r1")
    note = parent.data.tags["mlflow.note.content"]
    assert (
        "**WER 11.00 %**, 60.00 % before: 49.00 points, 82 % fewer errors (1 seed, 95 % interval 10.00"
        in note
    )
    assert "On the test split, which chose nothing: 14.00 %, 62.00 % before." in note


def test_delivered_step_by_step_twice_or_at_once_is_the_same(made: MadeLog, tmp_path: Path) -> None:
    for _ in long_search(made):
        made.deliver()
        made.deliver()
    at_once = same_log(made, default_tracking_uri(tmp_path))
    at_once.deliver()
    assert told(made.uri, made.name) == told(at_once.uri, made.name)


def same_log(made: MadeLog, uri: str) -> MadeLog:
    """The same experiment, to be told to another store."""
    folder = made.folder.parent / "copy" / made.name
    folder.mkdir(parents=True)
    for file in ("events.jsonl", "progress.jsonl", "experiment.yaml", "space.yaml", "results.json"):
        if (made.folder / file).exists():
            (folder / file).write_bytes((made.folder / file).read_bytes())
    return MadeLog(folder, uri)


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("at_once", [1, 5, 200])
def test_killed_at_every_call_and_started_again(
    made: MadeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A call got through, and the process ended before it heard so: the first one, the second one, ..."""
    for _ in long_search(made):
        pass
    made.deliver()
    broken = same_log(made, default_tracking_uri(tmp_path))
    monkeypatch.setattr(follower, "_MOST_EVENTS", at_once)
    left = [0]
    for name in ("create_run", "log_batch", "end_run", "reopen_run", "upload", "tag_experiment"):
        monkeypatch.setattr(TrackingStore, name, dying(getattr(TrackingStore, name), left))
    for calls in range(1, 1000):
        left[0] = calls
        teller = broken.follower()
        try:
            teller.follow()
            break
        except Killed:
            teller.close()
    assert calls > 10
    assert teller.complete
    assert told(made.uri, made.name) == told(broken.uri, made.name)


def dying(method: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The process dies right after so many calls."""

    def call(*arguments: Any, **more: Any) -> Any:
        found = method(*arguments, **more)
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return found

    return call
