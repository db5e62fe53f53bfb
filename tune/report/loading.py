"""Read what an experiment has left so far: settings, state, results."""

from __future__ import annotations

import fcntl
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tune.comparison import Standing, Verdict
from tune.decisions import Stop
from tune.errors import ExperimentError
from tune.experiment_folder import EXPERIMENT_FILE
from tune.experiment_list import how_it_ended
from tune.records import TrialRecord
from tune.report.known import Experiment, ExperimentState
from tune.results import RESULTS_FILE
from tune.search_state import LOCK_FILE, STATE_FILE

if TYPE_CHECKING:
    from tune.experiment_folder import ExperimentFolder

DROPPED_FILE = "dropped_clips.jsonl"


def load_experiment(folder: ExperimentFolder, storage_option: str = "", *, ended: bool = False) -> Experiment:
    """Read what an experiment has left so far; its small files are on this machine.

    Args:
        folder: of the experiment.
        storage_option: see `Experiment`.
        ended: it is the calling process that ran it, and it runs no more.

    Raises:
        ExperimentError: one of its files is missing or cannot be read.
    """
    settings = read_settings(folder.path)
    saved = _read_json(folder.path / STATE_FILE)
    results = _read_json(folder.path / RESULTS_FILE) or {}
    source = saved or results
    make = TrialRecord.from_dict if saved else functools.partial(_from_entry, settings)
    try:
        trials, repeats = ([make(entry) for entry in source.get(key, [])] for key in ("trials", "repeats"))
    except (KeyError, TypeError) as error:
        raise ExperimentError(
            f"experiment {folder.name!r}: its trials are of another version: {error}"
        ) from error
    current = bool(results) and _statuses(results) == [run.status for run in (*trials, *repeats)]
    state = _find_state(folder, settings, results if current else {}, ended=ended)
    if state not in ("running", "unfinished"):
        for run in (*trials, *repeats):
            _close(run)
    verdict = results.get("finalists") if current else None
    written = [path for name in (STATE_FILE, RESULTS_FILE) if (path := folder.path / name).is_file()]
    experiment = Experiment(
        name=folder.name,
        folder=folder,
        settings=settings,
        trials=sorted(trials, key=lambda trial: trial.trial_id),
        repeats=repeats,
        state=state,
        heard=max((path.stat().st_mtime for path in written), default=None),
        seconds=float(source.get("seconds", 0.0)),
        end=(results.get("ended_by") or {}).get("text") if current else None,
        verdict=_verdict(verdict) if verdict else None,
        dropped=_read_dropped(folder.path / DROPPED_FILE),
        storage_option=storage_option,
    )
    _check_settings(experiment)
    return experiment


def _check_settings(experiment: Experiment) -> None:
    """Raise `ExperimentError` where a trial has settings that the space does not hold."""
    for trial in experiment.trials:
        for name, parameter in experiment.parameters.items():
            if name not in trial.config or not parameter.contains(trial.config[name]):
                raise ExperimentError(
                    f"{experiment.folder.path / STATE_FILE}: trial {trial.trial_id} has {name} "
                    f"{trial.config.get(name)!r}, which the space of {EXPERIMENT_FILE} does not hold"
                )


def read_settings(folder: Path) -> dict[str, Any]:
    """`experiment.yaml`.

    Raises:
        ExperimentError: it cannot be read, or is not the file of an experiment.
    """
    path = folder / EXPERIMENT_FILE
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ExperimentError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    needed = ("trials", "space", "train_config", "rungs", "resources", "clips", "baseline")
    missing = [key for key in needed if not isinstance(settings, dict) or key not in settings]
    if missing:
        raise ExperimentError(f"{path}: is not the file of an experiment, it has no {', '.join(missing)}")
    return dict(settings)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ExperimentError(f"{path}: is not the file of an experiment")
    return found


def _read_dropped(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error


def _statuses(results: Mapping[str, Any]) -> list[str]:
    """How the runs stood when the results were written; those that were broken off stay open in the state."""
    runs = [*results.get("trials", []), *results.get("repeats", [])]
    return ["running" if run["status"] == "interrupted" else run["status"] for run in runs]


def _find_state(
    folder: ExperimentFolder, settings: Mapping[str, Any], results: Mapping[str, Any], *, ended: bool
) -> ExperimentState:
    """Args:
    results: of the state as it is; empty where they are older.
    """
    outcome = how_it_ended(settings, results) if results else None
    if outcome is not None:
        return outcome
    if ended:
        return "interrupted"
    running = None if folder.remote else _is_locked(folder.path / LOCK_FILE)
    if running is None and not results:
        return "unfinished"
    return "running" if running else "interrupted"


def _is_locked(path: Path) -> bool | None:
    """Whether a process on this machine, or on one that shares the folder, runs the experiment now."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:  # a disk that knows no locks, or a file of somebody else's
        return None
    return False


def _close(run: TrialRecord) -> None:
    """Name the end of a run that nobody goes on with: what was decided of it, else that it was broken off."""
    if run.status == "running":
        elapsed = run.elapsed
        outcome = run.outcome
        run.status = "interrupted" if outcome == "running" else outcome
        run.seconds = elapsed


def _from_entry(settings: Mapping[str, Any], entry: Mapping[str, Any]) -> TrialRecord:
    """A trial from `results.json`, where its state is gone; losses are not told there."""
    stop = entry.get("stop")
    evaluations = [(row["samples_seen"], row["wer"]) for row in entry["evaluations"]]
    seen, clips = int(entry["samples_seen"]), int(settings["clips"]["train"])
    return TrialRecord(
        trial_id=entry["trial_id"],
        config=entry["config"],
        effective_batch=entry.get("effective_batch_size", 0),
        status="running" if entry["status"] == "interrupted" else entry["status"],
        wer=entry["wer"],
        best_wer=entry["best_wer"],
        best_cer=entry["best_cer"],
        best_samples_seen=entry.get("best_samples_seen", 0),
        samples_seen=seen,
        epoch=seen / clips if clips else 0.0,
        evaluations=evaluations,
        losses=[0.0] * len(evaluations),
        wer_errors={
            row["samples_seen"]: row["wer_error"] for row in entry["evaluations"] if "wer_error" in row
        },
        finished=entry["status"] == "completed",
        stop=Stop(**stop) if stop else None,
        seconds=entry["seconds"],
        error=entry.get("error"),
    )


def _verdict(saved: Mapping[str, Any]) -> Verdict:
    standings = [
        Standing(**{**standing, "interval": tuple(standing["interval"])}) for standing in saved["standings"]
    ]
    return Verdict(standings, saved["winner"], bool(saved["tie"]))
