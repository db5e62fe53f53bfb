"""Read what an experiment has left so far: settings, state, results."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tune.experiments.folder import EXPERIMENT_FILE
from tune.experiments.log import EVENTS_FILE
from tune.experiments.opened import LOCK_FILE
from tune.experiments.results import how_it_ended
from tune.experiments.saved import full_settings, load_saved
from tune.experiments.settings_file import DROPPED_FILE
from tune.report.known import Experiment, ExperimentState
from tune.search.finalists import Verdict
from tune.search.records import TrialRecord
from tune.util.errors import ExperimentError
from tune.util.files import is_locked

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.saved import SavedExperiment


def load_experiment(folder: ExperimentFolder, storage_option: str = "", *, ended: bool = False) -> Experiment:
    """Read what an experiment has left so far; its small files are on this machine.

    Args:
        folder: of the experiment.
        storage_option: see `Experiment`.
        ended: it is the calling process that ran it, and it runs no more.

    Raises:
        ExperimentError: one of its files is missing or cannot be read.
    """
    experiment = _from_saved(load_saved(folder), storage_option, ended=ended)
    if experiment.state not in ("running", "unfinished"):
        for run in (*experiment.trials, *experiment.repeats):
            _close(run)
    _check_settings(experiment)
    return experiment


def _from_saved(saved: SavedExperiment, storage_option: str, *, ended: bool) -> Experiment:
    state, folder = saved.state, saved.folder
    held, best = state.held_out, state.best()
    settings = full_settings(saved)
    _check_complete(settings, folder.path / EXPERIMENT_FILE)
    return Experiment(
        name=folder.name,
        folder=folder,
        settings=settings,
        trials=list(state.records.all()),
        repeats=list(state.repeats.all()),
        state=_find_state(folder, how_it_ended(state), told=state.ended is not None, ended=ended),
        heard=state.heard or None,
        seconds=state.seconds,
        end=state.end.text if state.end else None,
        verdict=Verdict.from_dict(state.verdict) if state.verdict else None,
        dropped=_read_dropped(folder.path / DROPPED_FILE),
        storage_option=storage_option,
        has_log=(folder.path / EVENTS_FILE).is_file(),
        held_out=held if held is not None and best is not None and held.run == best.trial_id else None,
    )


def _check_complete(settings: dict[str, Any], path: Path) -> None:
    missing = [key for key in ("trials", "rungs", "resources", "clips", "baseline") if not settings.get(key)]
    missing += ["space"] if "space" not in settings else []  # empty in a training
    if missing:
        raise ExperimentError(f"{path}: is not the file of an experiment, it has no {', '.join(missing)}")


def _check_settings(experiment: Experiment) -> None:
    """Raise `ExperimentError` where a trial has settings that the space does not hold."""
    for trial in experiment.trials:
        for name, parameter in experiment.parameters.items():
            if name not in trial.config or not parameter.contains(trial.config[name]):
                raise ExperimentError(
                    f"{experiment.folder.path}: trial {trial.trial_id} has {name} "
                    f"{trial.config.get(name)!r}, which the space of {EXPERIMENT_FILE} does not hold"
                )


def _read_dropped(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error


def _find_state(
    folder: ExperimentFolder, outcome: Literal["finished", "failed"] | None, *, told: bool, ended: bool
) -> ExperimentState:
    """Args:
    folder: of the experiment.
    outcome: how it ended; None where something is left.
    told: whether its last session said that it is over.
    ended: whether it is this process that ran it.
    """
    if outcome is not None:
        return outcome
    if ended:
        return "interrupted"
    running = None if folder.remote else is_locked(folder.path / LOCK_FILE)
    if running is None and not told:
        return "unfinished"
    return "running" if running else "interrupted"


def _close(run: TrialRecord) -> None:
    """Name the end of a run that nobody goes on with: what was decided of it, else that it was broken off."""
    if run.status == "running":
        run.pause(time.time())
        run.status = "interrupted" if run.outcome == "running" else run.outcome
