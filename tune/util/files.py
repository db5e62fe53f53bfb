"""JSON objects of model folders; places of output; and, from the training, files that are whole at any time, locks."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from trainer.errors import ConfigError, ModelError
from trainer.files import FULL, check_room, try_lock
from tune.util.errors import first_line


def check_folder(option: str, folder: Path) -> None:
    """Raise `ConfigError` where files cannot be written to an option's folder, which is not made yet."""
    path = folder.expanduser()
    if path.is_file():
        raise ConfigError(f"{option}: is a file; give a folder")
    with writing(option):
        check_room(path)


@contextlib.contextmanager
def writing(option: str, *, full: bool = False) -> Iterator[None]:
    """Raise `ConfigError` where a file of an option cannot be written; with `full` only where its disk is full."""
    try:
        yield
    except OSError as error:
        if full and error.errno not in FULL:
            raise
        where = f" ({error.filename})" if isinstance(error.filename, str) else ""
        raise ConfigError(f"{option}: cannot be written: {error.strerror}{where}") from error


class LockedError(Exception):
    """Another process has the lock; its text is that process's number."""


def own_lock(path: Path, wait: float = 0.0) -> IO[str]:
    """Take the lock of a file and write this process's number into it; others may once what is returned is closed.

    Raises:
        LockedError: another process has it, also after so many seconds.
        OSError: the file cannot be written.
    """
    file, deadline = path.open("a+", encoding="utf-8"), time.monotonic() + wait
    while try_lock(file) is False:
        if time.monotonic() >= deadline:
            file.seek(0)
            with file:
                raise LockedError(file.read().strip() or "?")
        time.sleep(0.1)
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model's folder; empty where there is no such file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must hold a JSON object")
    return content
