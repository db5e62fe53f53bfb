"""Locks on files, also where the disk knows none, as some network disks do."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest
from made_experiments import made_trial, write_experiment

from trainer.files import is_locked, take_lock, try_lock
from tune.experiments.experiment import LOCK_FILE
from tune.experiments.listing import list_experiments
from tune.experiments.storage import Storage
from tune.report.analysis import analyse
from tune.tracking.mlflow_connection import open_store

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


def fail(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert is_locked(path) is False, "it is not there"
    with path.open("a") as owner, path.open("a") as other:
        assert take_lock(owner) is True
        assert is_locked(path) is True
        assert try_lock(other) is False
        assert try_lock(other, shared=True) is False
        taken: list[bool] = []
        waiting = threading.Thread(target=lambda: taken.append(take_lock(other)))
        waiting.start()
        waiting.join(0.2)
        assert not taken
        owner.close()
        waiting.join(10)
        assert taken == [True]
    assert is_locked(path) is False
    with path.open("a") as one, path.open("a") as two:
        assert try_lock(one, shared=True) and try_lock(two, shared=True)
        assert is_locked(path) is False, "those who look take it from nobody"


@pytest.mark.parametrize("number", NO_LOCKS)
def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fail(monkeypatch, number)
    with (tmp_path / "lock").open("a") as file:
        assert take_lock(file) is False
        assert try_lock(file) is None
        assert is_locked(tmp_path / "lock") is None


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
