"""One experiment: its folder, and what its log folds to; read, or opened by the one process that writes to it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeAlias

import yaml

from trainer.bounds import WEIGHT_OF
from trainer.config import TrainConfig
from trainer.model.adapters import with_base
from tune.experiments.events import Prepared
from tune.experiments.folder import EVENTS_FILE, SPACE_FILE, SPLITS_FILE, ExperimentFolder, feature_cache
from tune.experiments.log import ExperimentLog, fold
from tune.experiments.mlflow_store import default_tracking_uri, sqlite_path, with_password
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.object_stores.owner import Owner
from tune.experiments.state import SearchState
from tune.search.records import Trial
from tune.space.space import SearchSpace, parse_space
from tune.util.errors import ExperimentError, SpaceError
from tune.util.files import LockedError, own_lock

if TYPE_CHECKING:
    from tune.experiments.storage import Storage

Find: TypeAlias = "Callable[[str | None, Storage], ExperimentFolder]"
"""Finds an experiment as `find_experiment` does, or in its end where a killed process had left only that."""
LOCK_FILE = ".running"
"""Locked while a process of this machine, or of one that shares the folder, writes to it."""


@dataclasses.dataclass
class Experiment:
    """A search, or a single training, as it was read."""

    folder: ExperimentFolder
    state: SearchState
    _space: tuple[dict[str, Any], SearchSpace] | None = dataclasses.field(
        default=None, init=False, repr=False
    )
    """What is searched, as the log has it and as it was read."""

    @classmethod
    def read(cls, folder: ExperimentFolder) -> Experiment:
        """An experiment whose small files can be read, also while it runs.

        Raises:
            ExperimentError: its search has not begun, or its log is damaged.
        """
        log = folder.read(EVENTS_FILE)
        if log is None:
            raise no_log(folder)
        return cls(folder, fold(log, folder.path / EVENTS_FILE))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_training(self) -> bool:
        """Whether it is a single training of `tune-whisper train`."""
        return self.state.options.kind == "training"

    @property
    def created(self) -> str:
        """When its first session began, ISO 8601 in local time."""
        return datetime.datetime.fromtimestamp(self.state.created).astimezone().isoformat(timespec="seconds")

    @property
    def tracking_uri(self) -> str:
        """Its MLflow store; with the password that MLFLOW_TRACKING_URI has for it, as the log keeps none.

        Raises:
            ExperimentError: the file that --tracking-uri named is gone.
            TrackingError: the folder's path holds `?` or `%`.
        """
        uri = self.state.options.tracking_uri or default_tracking_uri(self.folder.mlflow_home)
        database = sqlite_path(uri)
        if database is None:
            return with_password(uri)
        if self.state.options.tracking_uri and not database.exists():
            raise ExperimentError(f"experiment {self.name!r}: its MLflow store {database} is gone")
        return uri

    @property
    def settings(self) -> Prepared:
        """What was resolved, once, before the first trial.

        Raises:
            ExperimentError: it was killed before that.
        """
        if self.state.prepared is None:
            raise no_log(self.folder)
        return self.state.prepared

    @property
    def base(self) -> TrainConfig:
        """The settings that all trials share, with its splits and a feature cache that is here: it may have begun
        elsewhere.
        """
        base, splits = self.settings.base, self.folder.path / SPLITS_FILE
        if splits.is_file():  # not before the data was read
            # What is trained on is train there, whatever it was made of.
            base = base.replace(splits=str(splits), train_on="train")
        if not Path(base.cache_dir).is_dir():
            here = feature_cache(None if self.folder.remote else self.folder.path.parent)
            base = base.replace(cache_dir=str(here))
        return base

    @property
    def shared(self) -> dict[str, Any]:
        """Settings by name as a trial has them that searches none, the weights of the data's sources among them."""
        weights = {f"{WEIGHT_OF}{name}": facts["weight"] for name, facts in self.state.data.sources.items()}
        return {**self.settings.base.to_dict(), **weights}

    @property
    def space(self) -> SearchSpace | None:
        """What is searched, its bounds as numbers, under the name and text of the user's own file; None for a training.

        Raises:
            ExperimentError: it cannot be used.
        """
        if self.is_training:
            return None
        plain = self.state.space
        if self._space is None or self._space[0] is not plain:
            self._space = plain, self._read_space(plain)
        return self._space[1]

    def _read_space(self, plain: dict[str, Any]) -> SearchSpace:
        own = self.folder.path / SPACE_FILE
        try:
            space = parse_space(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), own)
        except SpaceError as error:
            reason = str(error).splitlines()[0].removeprefix(f"{own}:").partition(": ")[2]
            log = self.folder.path / EVENTS_FILE
            raise ExperimentError(f"{log}: its space cannot be used: {reason}") from error
        return (
            dataclasses.replace(space, source_text=own.read_text(encoding="utf-8"))
            if own.is_file()
            else space
        )

    def config(self, run: Trial) -> TrainConfig:
        """All settings of a run, with a feature cache that is here."""
        return self.base.replace(**run.config)

    @property
    def best(self) -> Trial:
        """The run that is exported.

        Raises:
            ExperimentError: no trial was evaluated, or the weights of the best one are gone.
        """
        best = self.state.best()
        if best is not None:
            return best
        if self.state.records.best() is None:
            raise ExperimentError(
                f"experiment {self.name!r}: no trial reached an evaluation, so there is no model yet"
            )
        raise ExperimentError(f"experiment {self.name!r}: the weights of its best trial are gone")

    @contextlib.contextmanager
    def checkpoint(self, run: Trial) -> Iterator[Path]:
        """The best checkpoint of a run that has weights, as a local folder; see `ExperimentFolder.checkpoint`.

        Adapters in it name the experiment's own base model.
        """
        with (
            self.folder.checkpoint(str(run.checkpoint)) as folder,
            with_base(folder, self.base.model) as found,
        ):
            yield found


class OpenExperiment(Experiment):
    """An experiment to which this process alone writes, until it is closed."""

    def __init__(self, folder: ExperimentFolder, *, take_over: bool = False) -> None:
        """Open it, new or not; what the store has newer must be here already.

        Args:
            folder: of the experiment; it is there.
            take_over: of an object store: also while another machine holds it.

        Raises:
            ExperimentError: another process runs it, or its log cannot be used.
            StorageError: the object store cannot be read or written.
        """
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
        super().__init__(folder, self.log.state)

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

    def discard(self) -> None:
        """Remove all of it from the object store.

        Raises:
            ExperimentError: another session has taken the experiment over.
            StorageError: the object store cannot be read or written now.
        """
        if self._owner is not None and self.folder.store is not None:
            self._owner.check()
            self.folder.store.delete(self.name)

    def close(self) -> None:
        self.log.close()
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _let_go(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            with contextlib.suppress(StorageError):  # its marker expires by itself
                owner.release()
        self._lock.close()


def no_log(folder: ExperimentFolder) -> ExperimentError:
    return ExperimentError(
        f"experiment {folder.name!r}: has no {EVENTS_FILE}: its search has not started a trial; wait until it does, "
        f"or remove {folder.address} and start again"
    )


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


def find_experiment(name: str | None, storage: Storage) -> ExperimentFolder:
    """An experiment by its name or the beginning of it, or the newest one; small files are fetched from a bucket.

    Raises:
        ExperimentError: there is none, or several begin so; the nearest names are given.
        StorageError: the object store cannot be read.
    """
    names = storage.names()
    chosen = next(reversed(names), None) if name is None else full_name(name, names)
    if chosen is not None:
        folder = storage.experiment(chosen)
        folder.download()
        return folder
    if not names:
        what = "no experiment" if name is None else f"no experiment {name!r}"
        raise ExperimentError(
            f"{what} in {storage.text}, nor any other; give the folder of your experiments by --storage"
        )
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4) or names[-3:]
    raise ExperimentError(f"no experiment {name!r} in {storage.text}; there is {', '.join(near)}")


def full_name(name: str, names: Sequence[str]) -> str | None:
    """The one of the experiments' names that is this, or alone begins with it.

    Raises:
        ExperimentError: several begin with it.
    """
    if name in names:
        return name
    begin = [each for each in names if name and each.startswith(name)]
    if len(begin) > 1:
        raise ExperimentError(
            f"experiment {name!r}: {', '.join(begin[-3:])} begin with it; give more of the name"
        )
    return begin[0] if begin else None
