"""MLflow databases in tests: MLflow makes the tables of one, which takes two seconds, and others are copies of it."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def shared_folder() -> Path:
    """What the processes of this run of the tests have in common."""
    run = os.environ["TEST_RUN"]
    folder = Path(tempfile.gettempdir()) / f"tune-whisper-tests-{os.getuid()}" / run
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy_tables() -> None:
    """Let MLflow's own store, in this process, begin new SQLite databases as such copies."""
    from mlflow.store.db import utils
    from mlflow.store.model_registry import sqlalchemy_store

    _as_ever()
    utils._initialize_tables = sqlalchemy_store._initialize_tables = _initialize


def empty_database() -> Path:
    """One with tables and no more."""
    import sqlalchemy

    empty = shared_folder() / "mlflow.db"
    if not empty.is_file():
        own = empty.with_name(f"mlflow-{os.getpid()}.db")
        engine = sqlalchemy.create_engine(f"sqlite:///{own}")
        _as_ever()(engine)
        engine.dispose()
        own.replace(empty)
    return empty


@functools.cache
def _as_ever() -> Callable[[Any], None]:
    from mlflow.store.db import utils

    done: Callable[[Any], None] = utils._initialize_tables
    return done


def _initialize(engine: Any) -> None:
    path = engine.url.database if engine.url.drivername == "sqlite" else None
    if path:
        with (
            contextlib.closing(sqlite3.connect(empty_database())) as empty,
            contextlib.closing(sqlite3.connect(path)) as new,
        ):
            if not new.execute("select count(*) from sqlite_master").fetchone()[0]:
                empty.backup(new)
                return
    _as_ever()(engine)
