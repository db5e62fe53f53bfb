"""The experiment that this process runs: nobody else writes to it meanwhile."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import ExperimentLog
from tune.experiments.object_stores.lease import Lease
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.object_stores.segments import SegmentUploader, download
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
        self.owner = secrets.token_hex(8)
        """Names this process in the log."""
        self._lease: Lease | None = None
        self._segments: SegmentUploader | None = None
        self._lock = lock(folder.path)
        path = folder.path / EVENTS_FILE
        try:
            if folder.store is not None:
                self._lease = Lease.take(folder.store, folder.name, self.owner, take_over)
                folder.download()  # once more, now that nobody else writes
                start = download(folder.store, folder.name, path)
                self._segments = SegmentUploader(folder.store, folder.name, self.owner, path, start)
            self.log = ExperimentLog(path)
        except BaseException:
            self._let_go()
            raise
        self.log.guard = self._check_lease

    @property
    def next_session(self) -> int:
        """The number of a session that begins now; no two share one, where the object store minds conditions."""
        last = self.log.state.session
        return max(self._lease.term if self._lease else 0, (last.session if last else 0) + 1)

    @property
    def best_effort(self) -> bool:
        """Whether an object store cannot keep a second machine out for sure."""
        return self._lease is not None and not self._lease.conditional

    @property
    def problem(self) -> ExperimentError | None:
        """Why nothing can be written any more."""
        return (self._lease.lost if self._lease else None) or self.log.problem

    def publish(self) -> None:
        """Bring what was appended to the object store, if the experiment is in one.

        Raises:
            ExperimentError: another machine has taken the experiment over.
            StorageError: it cannot be written now; what is missing goes with a later call.
        """
        if self._segments is None or self._lease is None:
            return
        self._check_lease()
        if not self._lease.held():
            raise StorageError(
                f"{self.folder.address}: its lease could not be renewed; what is new goes up once it can be"
            )
        self._segments.publish()

    def before_deletion(self) -> None:
        """To be called before anything of the experiment is removed: what allows that is safe, and we still own it.

        Raises:
            ExperimentError: another machine has taken the experiment over.
            StorageError: the object store cannot be read or written now.
        """
        if self._lease is not None:
            self.publish()
            self._lease.check()

    def close(self) -> None:
        """Let others have it."""
        self.log.close()
        self._let_go()

    def _check_lease(self) -> None:
        if self._lease is not None and self._lease.lost is not None:
            raise self._lease.lost

    def _let_go(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(StorageError):  # it expires by itself
                lease.release()
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
