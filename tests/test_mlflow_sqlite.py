"""The experiment's own SQLite store while others hold it, and records that no store takes: nothing else is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from locked_database import locked
from mlflow_server import children, client_of, steps, wait_for
from tune.mlflow_journal import JOURNAL_FILE
from tune.mlflow_logging import MlflowRecorder

from tune.mlflow_store import default_artifact_root, default_tracking_uri


def recorder_of(folder: Path, **changes: Any) -> MlflowRecorder:
    root = default_artifact_root(folder)
    uri = default_tracking_uri(folder)
    return MlflowRecorder(uri, "x", root, journal=folder / JOURNAL_FILE, **{"flush_seconds": 0.1, **changes})


def begin(recorder: MlflowRecorder) -> str:
    return recorder.start(params={}, tags={}, description="", artifacts=[])


@pytest.mark.slow
def test_a_locked_database_is_waited_for(tmp_path: Path) -> None:
    """Longer than the 20 s after which SQLite itself gives up in MLflow."""
    folder, uri = tmp_path, default_tracking_uri(tmp_path)
    recorder = recorder_of(folder)
    parent = begin(recorder)
    recorder.trial_started("001", name="001", params={}, tags={})
    with locked(folder / "mlflow.db"):
        for step in range(100):
            recorder.log("001", {"wer": 100.0 - step}, step=step, timestamp=1_700_000_000 + step)
        wait_for(lambda: "locked by another process" in (recorder.problem or ""), 60)
        recorder.trial_ended("001", "completed")
    assert recorder.finish("completed") is None
    run = children(client_of(uri), parent)["001"]
    assert (steps(client_of(uri), run.info.run_id), run.info.status) == (list(range(100)), "FINISHED")
    with locked(folder / "mlflow.db") as release:
        threading.Timer(2, release.set).start()
        recorder = recorder_of(folder)
        recorder.resume(parent, {})
    assert recorder.finish("completed") is None


def test_one_bad_record_takes_no_other_with_it(tmp_path: Path) -> None:
    folder, uri = tmp_path, default_tracking_uri(tmp_path)
    recorder = recorder_of(folder, flush_seconds=60.0)
    parent = begin(recorder)
    recorder.trial_started("001", name="001", params={}, tags={})
    with recorder._writer.changed:  # so that all of it goes in one batch
        for step in range(40):
            recorder.log("001", {"bad *": 1.0} if step == 17 else {"wer": 1.0}, step=step)
    line = recorder.finish("completed", artifacts=[folder / "missing.json"])
    assert line is not None
    assert line.startswith("2 MLflow records could not be written.")
    run = children(client_of(uri), parent)["001"]
    assert steps(client_of(uri), run.info.run_id) == [step for step in range(40) if step != 17]
    assert client_of(uri).get_run(parent).info.status == "FINISHED"
    assert (folder / JOURNAL_FILE).read_bytes() == b""
