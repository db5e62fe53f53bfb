"""An experiment's log as MLflow runs: what is written, and that delivering it again changes nothing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_experiments import BEGAN, TRAINING, MadeLog
from mlflow_server import children, client_of, only_parent, steps

from tune.experiments.events import (
    CutShort,
    ExportChosen,
    FinalistsCompared,
    HeldOutMeasured,
    TrialProposed,
    TrialStarted,
)
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, default_tracking_uri
from tune.experiments.results import run_ids
from tune.search.finalists import FinalistScore, Verdict
from tune.tracking.mlflow import POSITION, MlflowStore
from tune.tracking.mlflow_connection import open_store
from tune.tracking.mlflow_runs import PARENT
from tune.util.errors import TrackingError


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
    view = client.get_experiment(runs[""].info.experiment_id).tags[TRIALS_VIEW_TAG]
    found: dict[str, Any] = {"view": view.replace(parent, "the search's run")}
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
    made.session(trials=3, finalists=2, repeats=1, gpus_per_trial=0.5)
    yield
    made.begin("001")
    made.begin("002", learning_rate=2e-4)
    made.evaluate("001", 50.0)
    made.progress("001", 10)
    made.progress("001", 20, **{"system/gpu_0_utilization_percentage": 90.0})
    made.progress("001", 25, loss=float("nan"))
    yield
    made.evaluate("002", 45.0, 44.0, stop=True)  # killed before its end is said
    made.evaluate("001", 30.0, first=1)
    made.progress("001", 10)  # trained again
    made.append(TrialStarted(trial_id="001", folder="001"))
    made.append(TrialProposed(trial_id="004", config={}))  # never started: no run
    yield
    made.finish("interrupted")
    yield
    made.again()
    made.session(trials=4, finalists=2, repeats=1, gpus_per_trial=0.5)
    made.append(TrialStarted(trial_id="001", folder="001-2"))
    yield
    made.evaluate("001", 12.0, first=2)
    made.begin("003")
    made.end("001")
    yield
    made.evaluate("003", 40.0)
    made.end("003", "failed", error="Failure #1\nTraceback\nValueError: no such column\n")
    made.trial("001-r1", 49.0, 29.0, 11.0, seed=1)
    yield
    score = FinalistScore("001", ["001-r1"], [11.0], 11.0, None, 3.0, mean_interval=(10.0, 12.0))
    verdict = Verdict([score], "001", tie=False)
    made.append(FinalistsCompared(verdict=verdict), ExportChosen(run="001-r1"))
    made.append(HeldOutMeasured(run="001-r1", rates={"wer": 14.0}, baseline={"wer": 62.0}))
    (made.folder / "report").mkdir()
    (made.folder / "report" / "report.html").write_text("the report")
    made.finish()
    yield


@pytest.fixture(scope="module")
def in_steps(tmp_path_factory: pytest.TempPathFactory, database: str) -> MadeLog:
    """The long search, delivered twice at each of its steps."""
    made = MadeLog(tmp_path_factory.mktemp("steps") / "long", database)
    states = []
    for _ in long_search(made):
        made.deliver()
        made.deliver()
        shown = told(database, made.name)
        states.append({key: (run[1], run[4]["status"]) for key, run in shown.items() if key != "view"})
    running, stopped, interrupted = (
        ("RUNNING", "running"),
        ("KILLED", "early_stopped"),
        ("KILLED", "interrupted"),
    )
    assert states[1:5] == [
        {"": running, "001": running, "002": running},
        {"": running, "001": running, "002": running},
        {"": interrupted, "001": interrupted, "002": interrupted},
        {"": running, "001": running, "002": stopped},
    ]
    return made


def same_log(made: MadeLog, folder: Path, uri: str) -> MadeLog:
    """The same experiment, to be told to another store."""
    folder = folder / made.name
    (folder / "report").mkdir(parents=True)
    names = ("events.jsonl", "progress.jsonl", "experiment.yaml", "space.yaml", "results.json")
    for file in (*names, "report/report.html"):
        (folder / file).write_bytes((made.folder / file).read_bytes())
    return MadeLog(folder, uri)


def test_the_run_of_a_search(in_steps: MadeLog, database: str) -> None:
    client = client_of(database)
    parent = client.get_run(only_parent(client, in_steps.name))
    assert (parent.info.run_name, parent.info.status) == ("long", "FINISHED")
    assert parent.info.start_time == int((BEGAN + 1) * 1000)
    tags = {
        "role": "experiment",
        "status": "completed",
        "best_trial": "001-r1",
        "winner": "001",
        "tie": "false",
    }
    assert parent.data.tags.items() >= {**tags, "model": "demo"}.items()
    assert parent.data.tags["trials"] == "4", "what was asked for last"
    assert parent.data.params.items() >= {"space": "space.yaml", "model": "demo"}.items()
    assert parent.data.params["search.train_batch_size"] == "one of 4, 8, 16"
    assert "train_batch_size" not in parent.data.params and len(parent.data.params) < 30
    (data,) = parent.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest, data.tags[0].value) == ("demo", "0a1b", "train")
    assert "Units: " in parent.data.tags["mlflow.note.content"]
    metrics = {"baseline_wer": 60.0, "baseline_cer": 20.0, "winner_mean_wer": 11.0, "wer_gain": 49.0}
    assert parent.data.metrics.items() >= {**metrics, "test_wer": 14.0, "baseline_test_wer": 62.0}.items()
    best = client.get_metric_history(parent.info.run_id, "best_wer")
    assert [(point.step, point.value) for point in best][:3] == [(2, 50.0), (2, 45.0), (2, 44.0)]
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"experiment.yaml", "results.json", "space.yaml", "report"}
    note = parent.data.tags["mlflow.note.content"]
    assert "\n**WER 11.00 %**, 60.00 % before fine-tuning: 49.00 points, 82 % fewer errors" in note
    assert "On the held-out test split: 14.00 %, 62.00 % before fine-tuning." in note


def test_the_runs_of_its_trials(in_steps: MadeLog, database: str) -> None:
    client = client_of(database)
    parent = only_parent(client, in_steps.name)
    runs = children(client, parent)
    assert run_ids(in_steps.folder) == {key: run.info.run_id for key, run in runs.items()}
    ends = {
        key: (run.info.status, run.data.tags["status"], run.data.tags["role"]) for key, run in runs.items()
    }
    assert ends == {
        "001": ("FINISHED", "completed", "trial"),
        "001-r1": ("FINISHED", "completed", "repeat"),
        "002": ("KILLED", "early_stopped", "trial"),
        "003": ("FAILED", "failed", "trial"),
    }
    first = runs["001"]
    assert first.info.run_name == "001 lr=0.0001 warmup=0.1 batch=8 accum=1"
    found = client.search_runs(
        [first.info.experiment_id],
        "params.weight_decay = '0.0' and params.learning_rate = '0.0001' and metrics.wer < 20",
    )
    assert {run.data.tags["trial_id"] for run in found} == {"001", "001-r1"}
    assert "dropout" not in first.data.params, "as by default"
    assert steps(client, first.info.run_id) == [384, 1088, 3200]
    assert steps(client, first.info.run_id, "loss") == [10, 20]
    assert steps(client, first.info.run_id, "system/gpu_0_utilization_percentage") == [20]
    found = {"wer": 12.0, "best_wer": 12.0, "wer_gain": 48.0, "samples_seen": 3200.0}
    assert first.data.metrics.items() >= found.items()
    assert first.data.metrics["gpu_hours"] == pytest.approx(first.data.metrics["seconds"] / 7200, abs=1e-4)
    assert runs["001-r1"].data.params["seed"] == "1"
    assert [key for key, run in runs.items() if run.data.tags.get("best") == "true"] == ["001-r1"]
    assert [key for key, run in runs.items() if run.data.tags.get("winner") == "true"] == ["001"]
    assert runs["002"].data.tags["stop_reason"] == "asha"
    assert runs["002"].data.tags["mlflow.note.content"].startswith("Stopped early: WER 44.00 % at 1,088")
    assert runs["003"].data.tags["mlflow.note.content"] == "Failed: ValueError: no such column"
    experiment = client.get_experiment(first.info.experiment_id)
    columns = json.loads(experiment.tags[TRIALS_VIEW_TAG])["selectedColumns"]
    assert {"metrics.`best_wer`", "metrics.`gpu_hours`", "params.`learning_rate`", "tags.`winner`"} < set(
        columns
    )


def test_delivered_at_once_is_the_same(in_steps: MadeLog, tmp_path: Path) -> None:
    """But for what the interrupted session had come to, which a store that was away never has."""
    at_once = same_log(in_steps, tmp_path, default_tracking_uri(tmp_path))
    at_once.deliver()
    steps, whole = told(in_steps.uri, in_steps.name), told(at_once.uri, in_steps.name)
    assert steps[""][5]["wer_gain"][1:] == whole[""][5]["wer_gain"]
    assert steps["001"][4].pop("best") == "false"
    for found in (steps, whole):
        for name, points in found[""][5].items():
            found[""][5][name] = points[-1]
    assert steps == whole


class Killed(BaseException):
    """The process is gone."""


class DyingClient:
    """MLflow's client; the process ends when a call got through, before it hears so: after so many calls."""

    def __init__(self, client: Any, calls: int) -> None:
        self._client, self._calls = client, calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            found = getattr(self._client, name)(*arguments, **more)
            self._calls -= 1
            if self._calls == 0:
                raise Killed
            return found

        return call


def test_killed_at_every_call_and_started_again(in_steps: MadeLog, tmp_path: Path) -> None:
    at_once = same_log(in_steps, tmp_path / "at_once", default_tracking_uri(tmp_path))
    at_once.deliver()
    (tmp_path / "broken").mkdir()
    broken = same_log(in_steps, tmp_path / "broken", default_tracking_uri(tmp_path / "broken"))
    for calls in range(1, 1000):
        client, experiment_id = open_store(broken.uri, broken.name)
        dying = DyingClient(client, calls)
        store = MlflowStore(broken.target(), connect=lambda *_, found=(dying, experiment_id): found)
        with contextlib.suppress(Killed):
            store.sync(broken.log_at())
            break
    assert calls > 10
    assert told(broken.uri, broken.name) == told(at_once.uri, at_once.name)


def test_a_single_training_is_one_run(tmp_path: Path, database: str) -> None:
    made = MadeLog(tmp_path / tmp_path.name, database, **TRAINING)
    made.session(kind="training", trials=1)
    made.trial("001", 50.0, 30.0, 12.0)
    made.progress("001", 100, 200)
    made.finish()
    made.deliver()
    client = client_of(database)
    experiment = client.get_experiment_by_name(made.name)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", made.name)
    assert run.data.tags.items() >= {"role": "trial", "trial_id": "001"}.items()
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("One training of `demo` on `demo`, language `en`, outside a search.\n")
    assert (
        "\n**WER 12.00 %**, 60.00 % before fine-tuning" in note
        and "\nCompleted: WER 12.00 % at 3,200 samples.\n" in note
    )
    assert run.data.params["effective_batch_size"] == "8"
    assert run.data.metrics.items() >= {"baseline_wer": 60.0, "best_wer": 12.0, "wer_gain": 48.0}.items()
    assert steps(client, run.info.run_id) == [384, 1088, 3200]
    assert steps(client, run.info.run_id, "loss") == [100, 200]
    assert run_ids(made.folder) == {"001": run.info.run_id}
    assert TRIALS_VIEW_TAG in experiment.tags


@pytest.mark.parametrize("which", ["of a trial", "of the search"])
def test_a_run_that_was_deleted_is_left_alone(which: str, made: MadeLog, database: str) -> None:
    made.session(trials=2)
    made.begin("001")
    made.begin("002")
    store = MlflowStore(made.target())
    store.sync(made.log_at())
    client = client_of(database)
    parent = only_parent(client, made.name)
    client.delete_run(parent if which == "of the search" else store.run_ids["001"])
    for trial in ("001", "002"):
        made.evaluate(trial, 50.0, 30.0, 12.0)
        made.end(trial)
    made.finish()
    with pytest.raises(TrackingError, match="must be in the 'active' state"):
        store.sync(made.log_at())
    made.deliver()
    runs = children(client, parent)
    assert set(runs) == ({"001", "002"} if which == "of the search" else {"002"})
    assert runs["002"].info.status == "FINISHED"
    experiment = client.get_run(parent).info.experiment_id
    searches = client.search_runs([experiment], "tags.role = 'experiment'")
    assert [run.info.status for run in searches] == ([] if which == "of the search" else ["FINISHED"])


def test_a_new_search_with_the_name_of_a_deleted_one_is_shown_alone(made: MadeLog, database: str) -> None:
    made.whole()
    made.deliver()
    client = client_of(database)
    before = only_parent(client, made.name)
    made.close()
    shutil.rmtree(made.folder)
    again = MadeLog(made.folder, database)
    again.now += 1000
    again.whole()
    again.deliver()
    experiment = client.get_experiment_by_name(made.name)
    shown = json.loads(experiment.tags[TRIALS_VIEW_TAG])["searchFilter"]
    runs = client.search_runs([experiment.experiment_id], shown)
    assert {run.data.tags["trial_id"] for run in runs} == {"001", "002"} and len(runs) == 2
    assert before not in {run.data.tags[PARENT] for run in runs}


def test_what_ended_an_earlier_session_does_not_stand_beside_the_last_one(
    made: MadeLog, database: str
) -> None:
    made.session(trials=1)
    made.trial("001", 50.0, 30.0, 20.0)
    made.append(CutShort(reason="gpu_hours", text="4 GPU-hours are spent"))
    made.finish()
    made.deliver()
    assert told(database, made.name)[""][4]["ended_by"] == "gpu_hours"
    made.again()
    made.session(trials=2)
    made.trial("002", 50.0, 30.0, 25.0)
    made.finish()
    made.deliver()
    tags = told(database, made.name)[""][4]
    assert (tags["ended_by"], tags["winner"]) == ("", "001")


def test_a_log_whose_end_was_lost(made: MadeLog, database: str) -> None:
    """A search goes on elsewhere from what had come to the bucket: what MLflow knows beyond it never happened."""
    made.session(trials=3)
    made.trial("001", 50.0, 30.0, 12.0)
    made.deliver()
    kept = (made.folder / "events.jsonl").read_bytes()
    made.trial("002", 10.0, 9.0, 8.0, learning_rate=5e-4)
    made.begin("003")
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    lost = children(client, parent)
    made.close()
    (made.folder / "events.jsonl").write_bytes(kept)
    made.now += 100
    made.again()
    made.session(trials=2)
    made.trial("002", 45.0, 40.0, 35.0)
    for _ in range(20):  # beyond the number of the last event that was delivered
        made.session(trials=2)
    made.finish()
    made.deliver()
    runs = children(client, parent)
    assert set(runs) == {"001", "002"}
    assert runs["001"].info.run_id == lost["001"].info.run_id
    assert runs["002"].data.params["learning_rate"] == "0.0001"
    assert runs["002"].data.metrics["best_wer"] == 35.0
    assert runs["001"].data.tags["best"] == "true"


def test_artifacts_that_cannot_be_stored_hold_up_nothing_else(
    made: MadeLog, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an MLflow server that leaves artifacts to its clients has them: the location is the experiment's."""
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "nonsense")
    for name, value in (("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "nobody")):
        monkeypatch.setenv(name, value)
    client = client_of(database)
    client.create_experiment(made.name, "s3://bucket/x")
    made.session(trials=1)
    made.trial("001", 50.0, 30.0, 12.0)
    made.finish()
    with pytest.raises(TrackingError, match=r"Invalid endpoint: nonsense"):
        made.deliver()
    parent = client.get_run(only_parent(client, made.name))
    assert parent.info.status == "FINISHED"  # all but the files
    assert children(client, parent.info.run_id)["001"].info.status == "FINISHED"
