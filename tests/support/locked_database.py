"""A SQLite database that another connection holds."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(database: Path) -> Iterator[threading.Event]:
    """Another connection holds the database exclusively, until the event is set."""
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            held.set()
            release.wait()
            connection.rollback()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    try:
        yield release
    finally:
        release.set()
        thread.join()
