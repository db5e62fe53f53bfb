"""All experiments of a storage: what each says of itself, read in a moment and never with a traceback."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from trainer.files import is_locked
from trainer.scoring.objectives import WER
from tune.experiments.experiment import LOCK_FILE, Experiment
from tune.experiments.folder import EVENTS_FILE, EXPERIMENT_FILE, RESULTS_FILE, ExperimentFolder
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.results import how_it_ended
from tune.experiments.storage import Storage
from tune.util.console import short_source
from tune.util.errors import ExperimentError

_FILES = (EXPERIMENT_FILE, EVENTS_FILE, RESULTS_FILE)
_ALIVE_SECONDS = 600.0
"""An experiment whose lock cannot be seen and whose files changed no longer ago is taken to run, wherever that is."""
_READERS = 16

State = Literal["starting", "running", "interrupted", "finished", "failed", "damaged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentLine:
    """One experiment. The objective in percent, times in seconds."""

    name: str
    state: State
    kind: Literal["search", "training"] | None = None
    trials_ended: int | None = None
    trials_asked: int | None = None
    objective: str = WER
    """Its name."""
    baseline: float | None = None
    best: float | None = None
    task: str = "transcribe"
    seconds: float | None = None
    """Wall time over all its sessions."""
    started: str | None = None
    """ISO 8601, after the base model was measured."""
    model: str | None = None
    data: str | None = None
    language: str | None = None
    note: str | None = None
    """What is damaged, or what ended it before all its trials."""

    @property
    def gain(self) -> float | None:
        """Points below the base model; negative where nothing beat it."""
        return None if self.baseline is None or self.best is None else self.baseline - self.best

    def to_dict(self) -> dict[str, Any]:
        found, name = dataclasses.asdict(self), self.objective
        del found["objective"]
        rates = {f"baseline_{name}": found.pop("baseline"), f"best_{name}": found.pop("best")}
        return {**found, **rates, f"{name}_gain": self.gain}


class _InStore(ExperimentFolder):
    """An experiment as it is in an object store: nothing of it is brought here."""

    def __init__(self, name: str, store: ObjectStore, present: Set[str]) -> None:
        super().__init__(name, Path(f"{store.address}/{name}"), store)
        self._present = present

    def read(self, name: str) -> bytes | None:
        return self.store.read(f"{self.name}/{name}") if self.store and name in self._present else None


def list_experiments(storage: Storage) -> list[ExperimentLine]:
    """Every experiment of the storage, the newest first; folders that hold none are left out.

    In a folder an experiment runs while a process holds its lock. In an object store the locks of other machines
    cannot be seen, on some disks none: there it also runs if its files changed within ten minutes and do not say
    that it has ended.

    Raises:
        StorageError: the object store cannot be read.
    """
    found = _in_store(storage) if storage.folder is None else _in_folder(storage.folder)
    return [
        line for line, _ in sorted(found, key=lambda pair: (pair[0].started or "", pair[1]), reverse=True)
    ]


def _in_folder(folder: Path) -> Iterator[tuple[ExperimentLine, float]]:
    """Each experiment, and when something of it was last written."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        try:
            present = {name for name in (*_FILES, LOCK_FILE) if (path / name).is_file()}
        except PermissionError as error:
            note = f"cannot be read: {error.strerror}"
            yield ExperimentLine(name=path.name, state="damaged", note=note), path.stat().st_mtime
            continue
        if not present:
            continue
        changed = max((path / name).stat().st_mtime for name in present)
        yield _line(ExperimentFolder(path.name, path), present, is_locked(path / LOCK_FILE), changed), changed


def _in_store(storage: Storage) -> list[tuple[ExperimentLine, float]]:
    store = ObjectStore(storage.text)
    names = [name for name in store.folders() if not name.startswith(".")]
    objects = [f"{name}/{file}" for name in names for file in _FILES]
    marks = dict(zip(objects, store.marks(objects), strict=True)) if objects else {}

    def find(name: str) -> tuple[ExperimentLine, float] | None:
        times = {file: mark[1] for file in _FILES if (mark := marks[f"{name}/{file}"]) is not None}
        if not times:
            return None
        changed, locked = max(times.values()), is_locked(storage.experiment(name).path / LOCK_FILE)
        return _line(_InStore(name, store, times.keys()), times.keys(), locked, changed), changed

    with ThreadPoolExecutor(_READERS) as readers:
        return [found for found in readers.map(find, names) if found is not None]


def _line(folder: ExperimentFolder, present: Set[str], locked: bool | None, changed: float) -> ExperimentLine:
    """What a folder with these files says; `locked` is None where the disk does not tell, `changed` is in seconds
    since the epoch.
    """
    name = folder.name
    if EXPERIMENT_FILE not in present:
        if locked:
            return ExperimentLine(name=name, state="starting")
        begun = present & {EVENTS_FILE, RESULTS_FILE}
        why = "" if begun else ": it was killed before its first trial, and can be removed"
        return ExperimentLine(name=name, state="damaged", note=f"has no {EXPERIMENT_FILE}{why}")
    try:
        unseen = locked is None or folder.remote  # the locks of other machines cannot be seen
        recent = unseen and time.time() - changed < _ALIVE_SECONDS
        return _whole_line(Experiment.read(folder), locked=bool(locked), recent=recent)
    except ExperimentError as error:
        if locked and not folder.read(EVENTS_FILE):
            return ExperimentLine(name=name, state="starting")
        return ExperimentLine(name=name, state="damaged", note=str(error))


def _whole_line(saved: Experiment, *, locked: bool, recent: bool) -> ExperimentLine:
    state, train = saved.state, saved.settings.train_config
    ended = how_it_ended(state)
    running = locked or (recent and state.ended is None and ended is None)
    return ExperimentLine(
        name=saved.name,
        state="running" if running else ended or "interrupted",
        kind=state.options.kind,
        trials_ended=sum(trial.status != "running" for trial in state.records.all()),
        trials_asked=state.options.trials,
        objective=state.objective,
        baseline=state.comparable_base if state.base_rates else None,
        best=state.value,
        task=state.task,
        seconds=state.seconds_at(time.time()) if running else state.seconds,
        started=saved.created,
        model=short_source(str(train["model"])),
        data=short_source(str(train["data"])),
        language=train.get("language"),
        note=state.end.text if state.end else None,
    )
