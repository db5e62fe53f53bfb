"""The database of an Optuna study: opened, and whatever goes wrong with it told as one kind of error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tune.cloud_errors import cloud_errors
from tune.mlflow_store import without_password

if TYPE_CHECKING:
    import optuna

_BUSY_SECONDS = 60
"""How long to wait for a SQLite file that another process, such as the dashboard, has locked."""


class StudyDatabaseError(Exception):
    """The database is away, refuses, or no longer holds what was written to it; its text is one line."""


@contextlib.contextmanager
def database_calls(*others: type[Exception]) -> Iterator[None]:
    """Around calls of Optuna that reach the database; nothing else belongs in it.

    Raises:
        StudyDatabaseError: instead of what says that it cannot be used, and of `others`.
    """
    import optuna

    try:
        yield
    except cloud_errors(optuna.exceptions.OptunaError, KeyError, *others) as error:
        # KeyError: so Optuna says that it does not find the study or a trial, which somebody has deleted.
        raise StudyDatabaseError(_first_line(error)) from error


def connect(url: str) -> optuna.storages.RDBStorage:
    """Open a database, with its tables made where there are none.

    Raises:
        StudyDatabaseError: it cannot be used.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = {"timeout": _BUSY_SECONDS} if url.startswith("sqlite") else {}
    # A driver that is not installed, a port that is no number, tables of another version of Optuna.
    with database_calls(ImportError, ValueError, RuntimeError):
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": options})


def shown_place(url: str) -> str:
    """The database in words, without its password."""
    return f"the Optuna study in {without_password(url)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
