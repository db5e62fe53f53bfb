"""All experiments of a storage: what each says of itself, read in a moment and never with a traceback."""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from tune.errors import ExperimentError
from tune.experiment_folder import EXPERIMENT_FILE
from tune.experiments.log import EVENTS_FILE, fold, read_log
from tune.experiments.old_form import STATE_FILE, how_it_had_ended
from tune.experiments.opened import LOCK_FILE
from tune.experiments.results import RESULTS_FILE, how_it_ended
from tune.util.files import is_locked

if TYPE_CHECKING:
    from tune.experiments.state import SearchState
    from tune.storage import Storage

_SETTINGS, _STATE, _RESULTS, _LOCK = EXPERIMENT_FILE, STATE_FILE, RESULTS_FILE, LOCK_FILE
_FILES = (_SETTINGS, _STATE, _RESULTS)
"""What is read of each, beside its log."""
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
    files: Mapping[str, Mapping[str, Any]]
    """Content of those of `_FILES` that are there."""
    problem: str | None
    """Why one of them cannot be read."""
    locked: bool | None
    """Whether a process holds the experiment's lock; None where the disk does not tell."""
    changed: float
    """When the newest file was written, in seconds since the epoch."""
    remote: bool = False
    """Whether locks of other machines cannot be seen."""
    state: SearchState | None = None
    """What its log folds to; None for an experiment of an earlier version."""

    @property
    def runs(self) -> Sequence[Mapping[str, Any]]:
        """Trials and repeats as they stand, from the state, or from the results where that is gone."""
        source = self.files.get(_STATE) or self.files.get(_RESULTS) or {}
        return [*source.get("trials", []), *source.get("repeats", [])]


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
        present = [path / name for name in (*_FILES, EVENTS_FILE, _LOCK) if (path / name).is_file()]
        if path.name.startswith(".") or not present:
            continue
        log = path / EVENTS_FILE
        names = (_SETTINGS,) if log.is_file() else _FILES
        files, problem = _parse(lambda name, path=path: (path / name).read_bytes(), names)  # type: ignore[misc]
        state, broken = _fold(lambda log=log: read_log(log)) if log.is_file() else (None, None)  # type: ignore[misc]
        changed = max(file.stat().st_mtime for file in present)
        locked = is_locked(path / _LOCK)
        found.append(_Found(path.name, files, problem or broken, locked, changed, state=state))
    return found


def _in_store(storage: Storage) -> list[_Found]:
    from tune.experiments.segments import read_segments
    from tune.object_store import ObjectStore

    store = ObjectStore(storage.text)
    names = [name for name in store.folders() if not name.startswith(".")]
    objects = [f"{name}/{file}" for name in names for file in _FILES]
    marks = dict(zip(objects, store.marks(objects), strict=True)) if objects else {}
    times = {name: mark[1] for name, mark in marks.items() if mark is not None}

    def find(name: str) -> _Found | None:
        present = [file for file in _FILES if f"{name}/{file}" in times]
        place = Path(f"{store.address}/{name}/{EVENTS_FILE}")
        found, broken = _fold(
            lambda: fold(b"".join(line + b"\n" for line in read_segments(store, name)), place)
        )
        state = found if found is not None and found.events else None
        old_form = state is None and broken is None
        if old_form and not present:
            return None
        wanted = [file for file in present if old_form or file == _SETTINGS]
        files, problem = _parse(lambda file: store.read(f"{name}/{file}"), wanted)
        changed = max([0.0, *(times[f"{name}/{file}"] for file in present), state.heard if state else 0.0])
        locked = is_locked(storage.experiment(name).path / _LOCK)
        return _Found(name, files, problem or broken, locked, changed, remote=True, state=state)

    with ThreadPoolExecutor(_READERS) as readers:
        return [found for found in readers.map(find, names) if found is not None]


def _fold(read: Callable[[], SearchState]) -> tuple[SearchState | None, str | None]:
    """What a log folds to, or what is wrong with it."""
    try:
        return read(), None
    except ExperimentError as error:
        return None, str(error)


def _parse(
    read: Callable[[str], bytes], names: Sequence[str] = _FILES
) -> tuple[dict[str, Mapping[str, Any]], str | None]:
    """Content of the files that are there, and what is wrong with the first that cannot be read."""
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
    if found.locked and _SETTINGS not in found.files and found.problem is None:
        return ExperimentLine(name=found.name, state="starting")
    problem = found.problem
    if problem is None and _SETTINGS not in found.files:
        problem = f"has no {_SETTINGS}"
        if not found.files:
            problem += ": it was killed before its first trial, and can be removed"
    if problem is None:
        try:
            if found.state is not None:
                return _line_of_log(found, found.state)
            return _whole_line(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"a file of it does not say what it should ({type(error).__name__}: {error})"
    return ExperimentLine(name=found.name, state="damaged", note=problem)


def _whole_line(found: _Found) -> ExperimentLine:
    settings, results = found.files[_SETTINGS], found.files.get(_RESULTS, {})
    current = bool(results) and _is_current(found)
    state = _state(found, results if current else {})
    ended = (results.get("ended_by") or {}) if current else {}
    train = settings["train_config"]
    seconds = (found.files.get(_STATE) or results).get("seconds")
    if seconds is not None and state == "running":
        seconds += max(0.0, time.time() - found.changed)
    trials = [run for run in found.runs if "-r" not in run["trial_id"]]
    return ExperimentLine(
        name=found.name,
        state=state,
        kind="training" if settings.get("kind") == "training" else "search",
        trials_ended=sum(run["status"] not in ("running", "interrupted") for run in trials),
        trials_asked=int(settings["trials"]),
        baseline_wer=float(settings["baseline"]["wer"]),
        best_wer=_best_wer(found, results if current else {}),
        seconds=seconds,
        started=str(settings["created"]),
        model=_short(str(train["model"])),
        data=_short(str(train["data"])),
        language=train.get("language"),
        note=ended.get("text"),
    )


def _line_of_log(found: _Found, state: SearchState) -> ExperimentLine:
    settings, asked = found.files[_SETTINGS], state.session
    train, trials = settings["train_config"], state.records.all()
    ended = how_it_ended(state)
    unseen = found.remote or found.locked is None
    alive = unseen and state.ended is None and time.time() - found.changed < _ALIVE_SECONDS
    running = bool(found.locked) or (alive and ended is None)
    best = state.best()
    verdict = state.verdict
    mean = (
        next((each["mean"] for each in verdict["standings"] if each["trial_id"] == verdict["winner"]), None)
        if verdict
        else None
    )
    return ExperimentLine(
        name=found.name,
        state="running" if running else ended or "interrupted",
        kind="training" if settings.get("kind") == "training" else "search",
        trials_ended=sum(trial.status != "running" for trial in trials),
        trials_asked=asked.trials if asked else None,
        baseline_wer=state.baseline.rates["wer"] if state.baseline else None,
        best_wer=mean if mean is not None else best.best_wer if best else None,
        seconds=state.seconds_at(time.time()) if running else state.seconds,
        started=str(settings["created"]),
        model=_short(str(train["model"])),
        data=_short(str(train["data"])),
        language=train.get("language"),
        note=state.end.text if state.end else None,
    )


def _is_current(found: _Found) -> bool:
    """Whether nothing happened after the results were written, as when an ended search got more trials."""
    if _STATE not in found.files:
        return True
    results = found.files[_RESULTS]
    written = [run["status"] for run in (*results["trials"], *results.get("repeats", []))]
    now = [run["status"] for run in found.runs]
    # Runs that were broken off stay open in the state, so that they can go on.
    return [status.replace("interrupted", "running") for status in written] == now


def _state(found: _Found, results: Mapping[str, Any]) -> State:
    """`results` are those of the state as it is; empty where they are older or there are none."""
    if found.locked:
        return "running"
    ended = how_it_had_ended(found.files[_SETTINGS], results) if results else None
    if ended is not None:
        return ended
    interrupted = bool(results)
    unseen = found.remote or found.locked is None
    alive = unseen and not interrupted and time.time() - found.changed < _ALIVE_SECONDS
    return "running" if alive else "interrupted"


def _best_wer(found: _Found, results: Mapping[str, Any]) -> float | None:
    """The mean of the winner's repeats, else the lowest WER of a trial."""
    finalists = results.get("finalists")
    if finalists:
        (won,) = [each for each in finalists["standings"] if each["trial_id"] == finalists["winner"]]
        return float(won["mean"])
    if results.get("best"):
        return float(results["best"]["wer"])
    rates = [(_is_partial(run), float(run["best_wer"])) for run in found.runs if run["best_wer"] is not None]
    return min(rates, default=(False, None))[1]


def _is_partial(run: Mapping[str, Any]) -> bool:
    """Whether a run's best WER is that of a part of the clips, in `state.json` or `results.json`."""
    measured = run.get("wer_errors") or [
        row["samples_seen"] for row in run["evaluations"] if "wer_error" in row
    ]
    return str(run.get("best_samples_seen")) in map(str, measured)


def _short(source: str) -> str:
    """A folder or file by its name only, all else as it is."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith("/") else source
