"""The experiment that this process runs: nobody else writes to it meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import ExperimentLog
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.object_stores.owner import Owner
from tune.util.errors import ExperimentError
from tune.util.files import LockedError, is_locked, own_lock

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder

LOCK_FILE = ".running"


class OpenExperiment:
    """An experiment's folder and its log, open for appending."""

    def __init__(self, folder: ExperimentFolder, *, take_over: bool = False) -> None:
        """Open it, new or not; what the store has newer must be here already.

        Args:
            folder: of the experiment; it is there.
            take_over: of an object store: also while another machine holds it.

        Raises:
            ExperimentError: another process runs it, or its log cannot be used.
            StorageError: the object store cannot be read or written.
        """
        self.folder = folder
        self._owner: Owner | None = None
        self._lock = lock(folder.path)
        try:
            if folder.store is not None:
                self._owner = Owner.take(folder.store, folder.name, take_over)
                folder.download()  # once more, now that nobody else writes
            self.log = ExperimentLog(folder.path / EVENTS_FILE)
        except BaseException:
            self._let_go()
            raise

    @property
    def problem(self) -> ExperimentError | None:
        """Why nothing can be written any more."""
        return (self._owner.lost if self._owner else None) or self.log.problem

    def upload(self, *, log_only: bool = False) -> None:
        """Bring what has changed to the object store, if the experiment is in one, the log before all else.

        Raises:
            ExperimentError: another session has taken the experiment over.
            StorageError: it cannot be written now; what is missing goes with a later call.
        """
        if self._owner is not None:
            self.folder.upload_log(self._owner.check)
            if not log_only:
                self.folder.upload(check=self._owner.check)

    def before_deletion(self) -> None:
        """To be called before anything of the experiment is removed: what allows that is safe, and we still own it.

        Raises:
            ExperimentError: another session has taken the experiment over.
            StorageError: the object store cannot be read or written now.
        """
        if self._owner is not None:
            self.upload(log_only=True)
            self._owner.check()

    def close(self) -> None:
        """Let others have it."""
        self.log.close()
        self._let_go()

    def _let_go(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            with contextlib.suppress(StorageError):  # its marker expires by itself
                owner.release()
        self._lock.close()


def is_running(folder: ExperimentFolder) -> bool:
    """Whether a process of this machine, or of one that shares the folder, writes to it now."""
    return bool(is_locked(folder.path / LOCK_FILE))


def lock(folder: Path) -> IO[str]:
    """Keep other processes from writing to an experiment, until the file that is returned is closed.

    Raises:
        ExperimentError: one writes to it now, or the folder cannot be written.
    """
    try:
        return own_lock(folder / LOCK_FILE)
    except OSError as error:
        raise ExperimentError(f"{folder / LOCK_FILE}: cannot be written: {error.strerror}") from error
    except LockedError as owner:
        raise ExperimentError(
            f"experiment {folder.name!r}: is being run by process {owner}; stop that one first"
        ) from owner
