"""All experiments of a storage: what each says of itself, read in a moment and never with a traceback."""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from tune.experiments.folder import EXPERIMENT_FILE, RESULTS_FILE
from tune.experiments.log import EVENTS_FILE, fold
from tune.experiments.old_form import STATE_FILE, old_state
from tune.experiments.opened import LOCK_FILE
from tune.experiments.results import how_it_ended
from tune.util.errors import ExperimentError
from tune.util.files import is_locked

if TYPE_CHECKING:
    from tune.experiments.state import SearchState
    from tune.experiments.storage import Storage

_FILES = (EXPERIMENT_FILE, STATE_FILE, RESULTS_FILE)
_ALIVE_SECONDS = 600.0
"""An experiment whose lock cannot be seen and whose files changed no longer ago is taken to run, wherever that is."""
_READERS = 16
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML has it: ten times as fast."""

State = Literal["starting", "running", "interrupted", "finished", "failed", "damaged"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentLine:
    """One experiment. Error rates in percent, times in seconds."""

    name: str
    state: State
    kind: Literal["search", "training"] | None = None
    trials_ended: int | None = None
    trials_asked: int | None = None
    baseline_wer: float | None = None
    best_wer: float | None = None
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
    def wer_gain(self) -> float | None:
        """Points of WER below the untouched base model; negative where nothing beat it."""
        if self.baseline_wer is None or self.best_wer is None:
            return None
        return self.baseline_wer - self.best_wer

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "wer_gain": self.wer_gain}


@dataclasses.dataclass(frozen=True)
class _Found:
    """What lies in one folder."""

    name: str
    settings: Mapping[str, Any] | None
    """None where there are none, or they cannot be read."""
    state: SearchState | None
    problem: str | None
    """Why a file cannot be read."""
    locked: bool | None
    """Whether a process holds the experiment's lock; None where the disk does not tell."""
    changed: float
    """When the newest file was written, in seconds since the epoch."""
    remote: bool = False
    """Whether locks of other machines cannot be seen."""


def list_experiments(storage: Storage) -> list[ExperimentLine]:
    """Every experiment of the storage, the newest first; folders that hold none are left out.

    In a folder an experiment runs while a process holds its lock. In an object store the locks of other machines
    cannot be seen, on some disks none: there it also runs if its files changed within ten minutes and do not say
    that it has ended.

    Raises:
        StorageError: the object store cannot be read.
    """
    found = _in_store(storage) if storage.folder is None else _in_folder(storage.folder)
    lines = sorted(((_line(each), each.changed) for each in found), key=_began, reverse=True)
    return [line for line, _ in lines]


def _began(pair: tuple[ExperimentLine, float]) -> tuple[float, str]:
    line, changed = pair
    try:
        return datetime.datetime.fromisoformat(line.started or "").timestamp(), line.name
    except ValueError:
        return changed, line.name


def _in_folder(folder: Path) -> list[_Found]:
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        present = {name for name in (*_FILES, EVENTS_FILE, LOCK_FILE) if (path / name).is_file()}
        if path.name.startswith(".") or not present:
            continue
        changed = max((path / name).stat().st_mtime for name in present)
        read = _reader(path)
        content = read(EVENTS_FILE) if EVENTS_FILE in present else None
        found.append(_find(path, present, content, read, is_locked(path / LOCK_FILE), changed))
    return found


def _reader(path: Path) -> Callable[[str], bytes]:
    return lambda name: (path / name).read_bytes()


def _in_store(storage: Storage) -> list[_Found]:
    from tune.experiments.object_stores.object_store import ObjectStore
    from tune.experiments.object_stores.segments import read_segments

    store = ObjectStore(storage.text)
    names = [name for name in store.folders() if not name.startswith(".")]
    objects = [f"{name}/{file}" for name in names for file in _FILES]
    marks = dict(zip(objects, store.marks(objects), strict=True)) if objects else {}

    def find(name: str) -> _Found | None:
        times = {file: mark[1] for file in _FILES if (mark := marks[f"{name}/{file}"]) is not None}
        place = Path(f"{store.address}/{name}")
        try:
            content = b"".join(line + b"\n" for line in read_segments(store, name)) or None
        except ExperimentError as error:
            return _Found(name, None, None, str(error), None, max([0.0, *times.values()]), remote=True)
        if content is None and not times:
            return None
        locked = is_locked(storage.experiment(name).path / LOCK_FILE)
        found = _find(
            place,
            times.keys(),
            content,
            lambda file: store.read(f"{name}/{file}"),
            locked,
            max([0.0, *times.values()]),
        )
        heard = found.state.heard if found.state else 0.0
        return dataclasses.replace(found, remote=True, changed=max(found.changed, heard))

    with ThreadPoolExecutor(_READERS) as readers:
        return [found for found in readers.map(find, names) if found is not None]


def _find(
    place: Path,
    present: Set[str],
    log: bytes | None,
    read: Callable[[str], bytes],
    locked: bool | None,
    changed: float,
) -> _Found:
    """Read one experiment.

    Args:
        place: its folder, or where it is in the store.
        present: files that are there.
        log: content of its log; None where there is none, as of one that an earlier version made.
        read: reads a file.
        locked: see `_Found`.
        changed: see `_Found`.
    """
    wanted = _FILES if log is None else (EXPERIMENT_FILE,)
    files, problem = _parse(read, [name for name in wanted if name in present])
    settings, state = files.get(EXPERIMENT_FILE), None
    try:
        if log is not None:
            state = fold(log, place / EVENTS_FILE)
        elif settings is not None and problem is None:
            state = old_state(place.name, settings, files.get(STATE_FILE), files.get(RESULTS_FILE), changed)
    except ExperimentError as error:
        problem = problem or str(error)
    return _Found(place.name, settings, state, problem, locked, changed)


def _parse(
    read: Callable[[str], bytes], names: Sequence[str]
) -> tuple[dict[str, Mapping[str, Any]], str | None]:
    """Content of the files, and what is wrong with the first that cannot be read."""
    files: dict[str, Mapping[str, Any]] = {}
    problem = None
    for name in names:
        try:
            content = read(name)
            found = json.loads(content) if name.endswith(".json") else yaml.load(content, _LOADER)
            if not isinstance(found, dict):
                raise ValueError("is not the file of an experiment")
            files[name] = found
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError) as error:
            problem = problem or f"{name} cannot be read: {_reason(error)}"
    return files, problem


def _reason(error: Exception) -> str:
    """What is wrong in one line; YAML's errors tell first what they were about to do."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None)}"
    return str(getattr(error, "strerror", "") or error).splitlines()[0]


def _line(found: _Found) -> ExperimentLine:
    problem = found.problem
    if problem is None and found.settings is None:
        if found.locked:
            return ExperimentLine(name=found.name, state="starting")
        problem = f"has no {EXPERIMENT_FILE}"
        if found.state is None:
            problem += ": it was killed before its first trial, and can be removed"
    if problem is None and found.settings is not None and found.state is not None:
        try:
            return _whole_line(found, found.settings, found.state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"a file of it does not say what it should ({type(error).__name__}: {error})"
    return ExperimentLine(name=found.name, state="damaged", note=problem)


def _whole_line(found: _Found, settings: Mapping[str, Any], state: SearchState) -> ExperimentLine:
    asked, train = state.session, settings["train_config"]
    ended, best, verdict = how_it_ended(state), state.best(), state.verdict
    unseen = found.remote or found.locked is None
    alive = unseen and state.ended is None and time.time() - found.changed < _ALIVE_SECONDS
    running = bool(found.locked) or (alive and ended is None)
    means = {each["trial_id"]: each["mean"] for each in verdict["standings"]} if verdict else {}
    return ExperimentLine(
        name=found.name,
        state="running" if running else ended or "interrupted",
        kind="training" if settings.get("kind") == "training" else "search",
        trials_ended=sum(trial.status != "running" for trial in state.records.all()),
        trials_asked=asked.trials if asked else None,
        baseline_wer=state.baseline.rates["wer"] if state.baseline else None,
        best_wer=means[verdict["winner"]] if verdict else best.best_wer if best else None,
        seconds=state.seconds_at(time.time()) if running else state.seconds,
        started=str(settings["created"]),
        model=_short(str(train["model"])),
        data=_short(str(train["data"])),
        language=train.get("language"),
        note=state.end.text if state.end else None,
    )


def _short(source: str) -> str:
    """A folder or file by its name only, all else as it is."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith("/") else source
