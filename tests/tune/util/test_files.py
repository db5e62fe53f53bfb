"""Locks on files, also where the disk knows none, as some network disks do."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from made_experiments import made_trial, write_experiment

from tune.experiments.experiment import LOCK_FILE
from tune.experiments.listing import list_experiments
from tune.experiments.storage import Storage
from tune.report.analysis import analyse
from tune.tracking.mlflow_connection import open_store


def fail(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_an_mlflow_database_is_made_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.ENOLCK)
    client, _ = open_store(f"sqlite:///{tmp_path}/mlflow.db", "x")
    assert client.create_experiment("x")


def test_without_locks_a_search_that_has_written_just_now_is_taken_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store: nobody can see whether a process still runs it."""
    folder = write_experiment(tmp_path, [made_trial(1, [40.0])], asked=4, state="killed")
    (folder.path / LOCK_FILE).touch()
    storage = Storage.parse(tmp_path)

    def seen() -> tuple[str, str]:
        return list_experiments(storage)[0].state, analyse(folder).stage

    assert seen() == ("interrupted", "interrupted")
    fail(monkeypatch, errno.ENOLCK)
    assert seen() == ("running", "unfinished")
    for path in folder.path.iterdir():
        os.utime(path, (0, path.stat().st_mtime - 86400))
    assert seen() == ("interrupted", "unfinished")
