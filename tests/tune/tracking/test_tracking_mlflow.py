"""An experiment's log as MLflow runs: what is written, and that delivering it again changes nothing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_logs import BEGAN, MadeLog, training_settings, whole_search
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR
from mlflow_server import Server, children, client_of, only_parent, steps

from tune.experiments.events import (
    BaselineMeasured,
    Evaluated,
    ExportChosen,
    FinalistsCompared,
    FinalRoundPlanned,
    HeldOutMeasured,
    TrialProposed,
    TrialRecovered,
    TrialStarted,
)
from tune.experiments.folder import ExperimentFolder
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, default_artifact_root, default_tracking_uri
from tune.experiments.results import run_ids
from tune.search.finalists import Standing, Verdict
from tune.tracking.mlflow import POSITION, attach_folder
from tune.tracking.mlflow_connection import TrackingStore
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


def verdict(made: MadeLog) -> Verdict:
    """That of a final round with one finalist."""
    standing = Standing("001", ["001-r1"], [11.0], 11.0, None, 3.0, mean_interval=(10.0, 12.0))
    return Verdict([standing], "001", tie=False)


def test_a_search_as_runs(made: MadeLog, database: str) -> None:
    whole_search(made)
    made.progress("001", 100, 200)
    delivered = made.deliver()
    assert delivered.refused == []
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
    made.deliver()
    client = client_of(server.url)
    parent = only_parent(client, made.name)
    assert set(children(client, parent)) == {"001", "002"}
    assert "versions.json" in {file.path for file in client.list_artifacts(parent)}


def test_params_that_take_more_than_one_request_are_not_lost(
    made: MadeLog, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow takes a hundred at a time; the store goes away after the first hundred and comes back."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    write, asked = SqlAlchemyStore.log_batch, []

    def goes_away(self: Any, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        of_parent = any(param.key in many for param in params)
        asked.extend([True] if of_parent else [])
        if of_parent and len(asked) == 2:
            raise MlflowException("away", INTERNAL_ERROR)
        write(self, run_id, metrics, params, tags)

    many = {f"search.p{number}": "1" for number in range(150)}
    monkeypatch.setattr("tune.tracking.mlflow_runs.parent_params", lambda saved: many)
    monkeypatch.setattr(SqlAlchemyStore, "log_batch", goes_away)
    for _ in long_search(made):
        pass
    with pytest.raises(TrackingError, match="away"):
        made.deliver()
    made.deliver()
    client = client_of(database)
    assert client.get_run(only_parent(client, made.name)).data.params == many


def test_two_sessions_a_final_round_and_failures(made: MadeLog, database: str) -> None:
    for _ in long_search(made):
        pass
    assert made.deliver().refused == []
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
    """But for what the interrupted session had come to, which a store that was away never has."""
    for _ in long_search(made):
        made.deliver()
        made.deliver()
    at_once = same_log(made, default_tracking_uri(tmp_path))
    at_once.deliver()
    in_steps, whole = told(made.uri, made.name), told(at_once.uri, made.name)
    assert in_steps[""][5]["wer_gain"][1:] == whole[""][5]["wer_gain"]
    assert in_steps["001"][4].pop("best") == "false"
    for found in (in_steps, whole):
        for name, points in found[""][5].items():
            found[""][5][name] = points[-1]
    assert in_steps == whole


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


def test_killed_at_every_call_and_started_again(
    made: MadeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call got through, and the process ended before it heard so: the first one, the second one, ..."""
    for _ in long_search(made):
        pass
    made.deliver()
    broken = same_log(made, default_tracking_uri(tmp_path))
    left = [0]
    for name in ("create_run", "log_batch", "set_status", "upload", "tag_experiment"):
        monkeypatch.setattr(TrackingStore, name, dying(getattr(TrackingStore, name), left))
    for calls in range(1, 1000):
        left[0] = calls
        with contextlib.suppress(Killed):
            broken.deliver()
            break
    assert calls > 10
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


def test_decided_on_before_a_kill_and_never_said(made: MadeLog, database: str) -> None:
    made.session(trials=2)
    made.begin("001")
    made.evaluate("001", 50.0, stop=True)
    made.begin("002")
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    assert {run.info.status for run in children(client, parent).values()} == {"RUNNING"}
    heard = made.now
    made.again()
    made.session(2, trials=2)
    made.deliver()
    runs = children(client, parent)
    assert (runs["001"].info.status, runs["001"].data.tags["status"]) == ("KILLED", "early_stopped")
    assert runs["001"].info.end_time == heard * 1000
    assert (runs["002"].info.status, runs["002"].data.tags["status"]) == ("RUNNING", "running")


def test_an_interrupted_search_goes_on(made: MadeLog, database: str) -> None:
    made.session(trials=3)
    made.trial("001", 50.0, 30.0, 20.0)
    made.begin("002")
    made.append(TrialProposed(trial_id="003", config={}))  # never started: no run
    made.finish("interrupted")
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    runs = children(client, parent)
    assert set(runs) == {"001", "002"}
    assert (runs["002"].info.status, runs["002"].data.tags["status"]) == ("KILLED", "interrupted")
    assert client.get_run(parent).info.status == "KILLED"
    assert "**It was interrupted**" in client.get_run(parent).data.tags["mlflow.note.content"]
    made.again()
    made.session(2, trials=3)
    made.deliver()
    assert client.get_run(parent).info.status == "RUNNING"
    assert "still running" in client.get_run(parent).data.tags["mlflow.note.content"]
    runs = children(client, parent)
    assert (runs["002"].info.status, runs["002"].data.tags["status"]) == ("RUNNING", "running")
    assert runs["001"].info.status == "FINISHED"
    made.append(TrialStarted(trial_id="002", folder="002-2"))
    made.evaluate("002", 45.0, 25.0, 15.0)
    made.end("002")
    made.finish()
    made.deliver()
    runs = children(client, parent)
    assert [runs[key].data.tags.get("best") for key in ("001", "002")] == ["false", "true"]
    assert client.get_run(parent).data.tags["best_trial"] == "002"


def test_ended_after_an_interruption_and_killed_before_that_was_said(made: MadeLog, database: str) -> None:
    """MLflow's run counts as ended since the interruption; what came of the trial is told all the same."""
    made.session(trials=3)
    made.begin("001")
    made.finish("interrupted")
    made.deliver()
    made.again()
    made.session(2, trials=3)
    made.append(TrialStarted(trial_id="001", folder="001-2"))
    made.evaluate("001", 50.0, 30.0, 20.0)  # killed right behind its last rung
    made.again()
    made.session(3, trials=3)
    made.deliver()
    client = client_of(database)
    run = children(client, only_parent(client, made.name))["001"]
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "completed")
    assert run.data.metrics["wer"] == 20.0


def test_a_single_training_is_one_run(tmp_path: Path, database: str) -> None:
    made = MadeLog(tmp_path / tmp_path.name, database, **training_settings())
    made.session(kind="training", trials=1)
    made.trial("001", 50.0, 30.0, 12.0)
    made.progress("001", 100, 200)
    made.finish()
    made.deliver()
    client = client_of(database)
    experiment = client.get_experiment_by_name(made.name)
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", made.name)
    assert run.data.tags.items() >= {"role": "trial", "trial_id": "001", "outcome": "completed"}.items()
    assert run.data.tags["mlflow.note.content"].startswith("One training of `demo` on `demo`")
    assert "| **after 3,200 samples** | **12.00** |" in run.data.tags["mlflow.note.content"]
    assert run.data.params["effective_batch_size"] == "8"
    assert run.data.metrics.items() >= {"baseline_wer": 60.0, "best_wer": 12.0, "wer_gain": 48.0}.items()
    assert steps(client, run.info.run_id) == [384, 1088, 3200]
    assert {100, 200} < set(steps(client, run.info.run_id, "loss"))
    assert run_ids(made.folder) == {"001": run.info.run_id}
    assert TRIALS_VIEW_TAG in experiment.tags


def test_one_bad_record_takes_no_other_with_it(made: MadeLog, database: str) -> None:
    made.session(trials=1)
    made.begin("001")
    for rung in range(40):
        name = "baseline" if rung != 17 else "bad *"
        made.append(BaselineMeasured(rates={name: float(rung)}))
    made.trial("002", 50.0, 30.0, 12.0)
    delivered = made.deliver()
    assert len(delivered.refused) == 1
    assert "bad *" in delivered.refused[0]
    client = client_of(database)
    parent = client.get_run(only_parent(client, made.name))
    assert parent.data.metrics["baseline_baseline"] == 39.0
    assert children(client, parent.info.run_id)["002"].info.status == "FINISHED"
    assert made.deliver().refused == []  # all else is there


def test_the_run_of_a_trial_was_deleted(made: MadeLog, database: str) -> None:
    made.session(trials=2)
    made.begin("001")
    made.begin("002")
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    client.delete_run(children(client, parent)["001"].info.run_id)
    for trial in ("001", "002"):
        made.evaluate(trial, 50.0, 30.0, 12.0)
        made.end(trial)
    made.finish()
    delivered = made.deliver()
    assert len(delivered.refused) > 10
    assert "must be in the 'active' state" in delivered.refused[-1]
    runs = children(client, parent)
    assert set(runs) == {"002"}  # and no other in the place of the one that somebody did not want
    assert runs["002"].info.status == client.get_run(parent).info.status == "FINISHED"


def test_the_run_of_the_search_was_deleted(made: MadeLog, database: str) -> None:
    made.session(trials=1)
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    client.delete_run(parent)
    made.trial("001", 50.0, 30.0, 12.0)
    made.finish()
    for _ in range(2):
        assert len(made.deliver().refused) > 5
    assert children(client, parent)["001"].info.status == "FINISHED"
    assert client.search_runs([client.get_run(parent).info.experiment_id], "tags.role = 'experiment'") == []


def test_a_log_whose_end_was_lost(made: MadeLog, database: str) -> None:
    """A search goes on elsewhere from what had come to the bucket: what MLflow knows beyond it never happened."""
    made.session(trials=3)
    made.trial("001", 50.0, 30.0, 12.0)
    made.deliver()
    kept = (made.folder / "events.jsonl").read_bytes()
    made.trial("002", 10.0, 9.0, 8.0, learning_rate=5e-3)
    made.begin("003")
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    lost = children(client, parent)
    made.close()
    (made.folder / "events.jsonl").write_bytes(kept)
    made.now += 100
    made.again()
    made.session(2, trials=2)
    made.trial("002", 45.0, 40.0, 35.0)
    for number in range(20):  # beyond the number of the last event that was delivered
        made.append(BaselineMeasured(rates={"wer": 60.0, "number": float(number)}))
    made.finish()
    made.deliver()
    runs = children(client, parent)
    assert set(runs) == {"001", "002"}
    assert runs["001"].info.run_id == lost["001"].info.run_id
    assert runs["002"].data.params["learning_rate"] == "0.001"
    assert runs["002"].data.metrics["best_wer"] == 35.0
    assert runs["001"].data.tags["best"] == "true"


def test_long_values_are_shortened_and_what_is_no_number_is_left_out(made: MadeLog, database: str) -> None:
    made.session(trials=1)
    made.begin("001", data="x" * 7000)
    made.append(
        Evaluated(
            trial_id="001",
            samples_seen=384,
            epoch=0.5,
            metrics={"wer": 50.0, "eval_loss": None},
            finished=False,
        )
    )
    made.progress("001", 10, loss=float("nan"))
    made.end("001", "failed", error="Failure #1\nValueError: " + "y" * 9000)
    assert made.deliver().refused == []
    client = client_of(database)
    run = children(client, only_parent(client, made.name))["001"]
    assert (len(run.data.params["data"]), len(run.data.tags["mlflow.note.content"])) == (6000, 8000)
    assert "loss" not in run.data.metrics
    assert "eval_loss" not in run.data.metrics


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
    made.deliver()
    made.finish()
    with pytest.raises(TrackingError, match=r"cannot store versions\.json in it: Invalid endpoint: nonsense"):
        made.deliver()
    parent = client.get_run(only_parent(client, made.name))
    assert parent.info.status == "FINISHED"  # all but the files
    assert children(client, parent.info.run_id)["001"].info.status == "FINISHED"


def test_a_folder_of_pictures_and_a_report_that_is_written_later(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "later")
    report = made.folder / "report"
    (report / "pictures").mkdir(parents=True)
    (report / ".partial").touch()
    for name in ("report.html", "pictures/curves.png"):
        (report / name).write_text("first")
    folder = ExperimentFolder(made.name, made.folder)
    made.session(trials=1)
    TrackingStore(made.uri, made.name, default_artifact_root(made.folder)).connect()
    with pytest.raises(TrackingError, match="the run of experiment 'later' is not known"):
        attach_folder(folder, report)
    made.finish()
    made.deliver()
    parent = only_parent(client_of(made.uri), made.name)
    stored = default_artifact_root(made.folder) / parent / "artifacts" / "report"
    assert {str(path.relative_to(stored)) for path in stored.rglob("*") if path.is_file()} == {
        "report.html",
        "pictures/curves.png",
    }
    (report / "report.html").write_text("second")
    attach_folder(folder, report)
    assert (stored / "report.html").read_text() == "second"
    shutil.rmtree(default_artifact_root(made.folder))
    with pytest.raises(TrackingError, match="is gone, as when an experiment was moved"):
        attach_folder(folder, report)


def test_gpu_hours_where_trials_take_gpus(made: MadeLog, database: str) -> None:
    made.session(trials=1, gpus_per_trial=0.5)
    made.begin("001")
    made.now += 7200
    made.evaluate("001", 50.0, 30.0, 12.0)
    made.end("001")
    made.deliver()
    client = client_of(database)
    parent = client.get_run(only_parent(client, made.name))
    (run,) = children(client, parent.info.run_id).values()
    assert run.data.metrics["gpu_hours"] == pytest.approx(1.0, abs=0.01)
    assert "metrics.`gpu_hours`" in client.get_experiment(parent.info.experiment_id).tags[TRIALS_VIEW_TAG]


def test_a_deleted_experiment_is_told(made: MadeLog, database: str) -> None:
    made.session(trials=1)
    made.deliver()
    client = client_of(database)
    client.delete_experiment(client.get_experiment_by_name(made.name).experiment_id)
    with pytest.raises(TrackingError, match="was deleted; choose another name"):
        made.deliver()


def test_a_first_session_of_a_higher_number(made: MadeLog, database: str) -> None:
    """As in a bucket, where another process had begun the experiment and left no event."""
    made.session(2, trials=1)
    made.trial("001", 50.0, 30.0, 12.0)
    made.deliver()
    client = client_of(database)
    parent = client.get_run(only_parent(client, made.name))
    assert parent.data.params["model"] == "demo"
    assert set(children(client, parent.info.run_id)) == {"001"}


def test_what_is_measured_again_is_one_point(made: MadeLog, database: str) -> None:
    """The process failed before the weights of its last evaluation were saved, so that it is made again."""
    made.session(trials=1)
    made.begin("001")
    made.evaluate("001", 50.0, 40.0)
    made.deliver()
    made.append(TrialRecovered(trial_id="001", reason="killed"))
    made.evaluate("001", 40.0, first=1)
    made.end("001")
    made.finish()
    made.deliver()
    client = client_of(database)
    parent = only_parent(client, made.name)
    wers = client.get_metric_history(children(client, parent)["001"].info.run_id, "wer")
    assert [(point.step, point.value) for point in wers] == [(384, 50.0), (1088, 40.0)]
    best = client.get_metric_history(parent, "best_wer")
    assert [point.value for point in best][:2] == [50.0, 40.0]
    assert len({point.timestamp for point in best if point.value == 40.0}) <= 2  # and that of the end


def test_sources_of_a_translation_have_their_chrf(made: MadeLog, database: str) -> None:
    made.session()
    made.append(BaselineMeasured(rates={"chrf_error": 60.0, "chrf": 40.0, "bleu": 5.0}))
    made.begin("001")
    rates = {"chrf_error": 50.0, "chrf": 50.0, "bleu": 9.0}
    made.append(
        Evaluated(
            trial_id="001",
            samples_seen=100,
            epoch=0.1,
            metrics=dict(rates),
            finished=False,
            sources={"fleurs": {**rates, "chrf_error": 48.0}},
        )
    )
    made.finish("interrupted")
    made.again()
    made.deliver()
    client = client_of(database)
    metrics = children(client, only_parent(client, made.name))["001"].data.metrics
    assert (metrics["chrf_error"], metrics["chrf_error/fleurs"]) == (50.0, 48.0)
    assert not [name for name in metrics if "wer" in name]
