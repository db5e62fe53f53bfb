"""What a follower of an experiment's log writes to: the stores, as all of them are spoken to."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tune.util.errors import TrackingError
from tune.util.files import LockedError, own_lock, write_whole

if TYPE_CHECKING:
    from tune.experiments.events import Entry
    from tune.experiments.saved import SavedExperiment

TRACKING_FOLDER = "tracking"
"""In the experiment's folder: the lock and the status of each store's follower."""
TRACKERS = {
    "mlflow": "tune.tracking.mlflow",
    "optuna": "tune.tracking.optuna_study",
    "tensorboard": "tune.tracking.tensorboard",
}
"""Their modules; each has `make_tracker(orders)`, and imports what is heavy when it is imported itself."""
DEFAULT_TRACKERS = ("mlflow",)


class BusyError(TrackingError):
    """Another process delivers to the store."""


@dataclasses.dataclass(frozen=True)
class Position:
    """How far delivery is."""

    events: int = 0
    """Number of the last event delivered."""
    progress: int = 0
    """Bytes of `progress.jsonl` delivered."""
    mark: str = ""
    """Check sum of that event's line, by which a log is told from one that was brought back from a copy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orders:
    """What a follower is told. Never on disk nor on a command line: addresses may hold passwords."""

    folder: str
    """The experiment's, where this machine reads and writes it."""
    name: str
    storage: str
    """What `--storage` must be given to find the experiment."""
    trackers: Sequence[str] = DEFAULT_TRACKERS
    tracking_uri: str = ""
    """MLflow's store."""
    optuna_url: str | None = None
    """Database of the Optuna study; None is a journal in the experiment's folder."""
    patience: float = 30.0
    """Seconds that a store may be away once the log has come to its end."""
    lenient: bool = False
    """Whether a store that is away is waited for from the beginning on."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Orders:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


class Tracker(abc.ABC):
    """One store. Any method may raise `TrackingError`: the store is away, and all begins with `open` again later."""

    name = ""
    """As in `TRACKERS`."""
    problem: str | None = None
    """What the store does not take although it takes all else."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        """Why records will never be taken, one reason each, since the follower counted them last."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the status is to say besides, as the ids of MLflow's runs."""
        return {}

    @abc.abstractmethod
    def open(self, saved: SavedExperiment) -> Position:
        """Connect; also again, after a failure. Leaves nothing behind for a log without events.

        Args:
            saved: with what the log folds to now.

        Returns:
            Where delivery stands, by what the store itself says; zeros where it knows nothing of the experiment.

        Raises:
            TrackingError: it cannot be reached or refuses, in one line that shows no password.
            ExperimentError: it holds something else of this experiment's name.
        """

    @abc.abstractmethod
    def deliver(self, entries: Sequence[Entry], saved: SavedExperiment) -> None:
        """Tell the store of events. Twice is as good as once.

        Args:
            entries: the next ones; none follows the end of a session.
            saved: with the state folded up to the last of them.

        Raises:
            TrackingError: the store is away; some of it may be delivered.
        """

    def progress(self, rows: Sequence[dict[str, Any]]) -> None:  # noqa: B027 - a store may have no place for it
        """Tell the store of rows of `progress.jsonl` (`trial_id`, `time`, `metrics`); raises as `deliver` does."""

    def delivered(self, position: Position) -> None:  # noqa: B027 - the same
        """Remember in the store where delivery stands; raises as `deliver` does."""


def make_tracker(name: str, orders: Orders) -> Tracker:
    """The tracker of one store, not connected.

    Raises:
        TrackingError: there is none of this name, or what it needs is not installed.
    """
    if name not in TRACKERS:
        raise TrackingError(f"--track {name}: must be one of {', '.join(TRACKERS)}")
    try:
        tracker: Tracker = importlib.import_module(TRACKERS[name]).make_tracker(orders)
    except ImportError as error:
        raise TrackingError(f"--track {name}: cannot be used here: {error}") from error
    return tracker


@dataclasses.dataclass
class Status:
    """What a follower says of itself: `tracking/NAME.json`."""

    delivered: int = 0
    """Number of the last event delivered."""
    progress: int = 0
    """Bytes of `progress.jsonl` delivered."""
    problem: str | None = None
    """Why the store takes nothing just now."""
    refused: int = 0
    """Records that the store will never take."""
    reason: str = ""
    """Why it refused the last of them."""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What the tracker adds, as the ids of MLflow's runs."""

    @classmethod
    def read(cls, folder: Path, tracker: str) -> Status:
        """What the follower of an experiment's folder wrote last; a new one where there is nothing to be read."""
        try:
            return cls(**json.loads(_status_file(folder, tracker).read_bytes()))
        except (OSError, ValueError, TypeError):  # it is made anew with the next round
            return cls()

    def write(self, folder: Path, tracker: str) -> None:
        """Replace the file; whoever reads it meanwhile sees the old one or the new one."""
        path = _status_file(folder, tracker)
        # A disk that takes nothing, or a folder that was removed, holds up no delivery: it is only what is shown.
        with contextlib.suppress(OSError):
            write_whole(path, json.dumps(vars(self)) + "\n")


def _status_file(folder: Path, tracker: str) -> Path:
    return folder / TRACKING_FOLDER / f"{tracker}.json"


def log_file(folder: Path) -> Path:
    """Where the followers of an experiment's folder tell of mistakes of their own."""
    return folder / TRACKING_FOLDER / "follower.log"


def store_lock(folder: Path, tracker: str, wait: float = 0.0) -> IO[str]:
    """Keep other processes from delivering to the same store, until the file that is returned is closed.

    Args:
        folder: the experiment's.
        tracker: the store's.
        wait: seconds to wait for another process.

    Raises:
        BusyError: another process does.
        TrackingError: the folder cannot be written.
    """
    path = folder / TRACKING_FOLDER / f"{tracker}.lock"
    try:
        path.parent.mkdir(exist_ok=True)
        return own_lock(path, wait)
    except OSError as error:
        raise TrackingError(f"{path}: cannot be written: {error.strerror}") from error
    except LockedError as owner:
        raise BusyError(
            f"experiment {folder.name!r}: process {owner} delivers to {tracker} now; "
            "it ends by itself once all is delivered"
        ) from owner
