"""The end of an experiment: a function of its log, run by whoever finds it undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from trainer.files import is_locked
from tune.experiments.events import ResultsWritten, SearchEnded, SearchStatus
from tune.experiments.experiment import LOCK_FILE, Experiment, OpenExperiment, find_experiment
from tune.experiments.folder import EVENTS_FILE, RESULTS_FILE, ExperimentFolder
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.results import how_it_ended, write_results
from tune.experiments.state import SearchState
from tune.experiments.storage import Storage
from tune.runs.final_round import choose_export, remove_unnamed_checkpoints
from tune.util.errors import ExperimentError


def finish(experiment: OpenExperiment, say: Callable[[str], None], *, storage_option: str = "") -> None:
    """Choose what is exported, write results and report, and end the session in the log; again as often as one likes.

    Args:
        experiment: nothing of it runs any more.
        storage_option: what commands that name the experiment end with.

    Raises:
        ExperimentError: the log or the results cannot be written.
    """
    log, state = experiment.log, experiment.state
    choose_export(experiment, say)
    if not state.something_is_left:
        remove_unnamed_checkpoints(experiment, say, ended=True)
    words: dict[str | None, SearchStatus] = {None: "interrupted", "finished": "completed", "failed": "failed"}
    ended = SearchEnded(status=words[how_it_ended(state)])
    if state.ended != ended:
        log.append(ended)
    try:
        write_results(experiment.folder, state)
    except OSError as error:
        raise ExperimentError(
            f"{experiment.folder.path / RESULTS_FILE}: cannot be written: {error.strerror}"
        ) from error
    write_report(experiment.folder, say, storage_option)
    if not state.written:
        log.append(ResultsWritten())


_DRAWING = (ExperimentError, ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError)
"""What drawing a page may raise, by a mistake of ours too; results and export do not depend on it."""


def write_report(folder: ExperimentFolder, say: Callable[[str], None], storage_option: str) -> None:
    """Write the page of the experiment; where that cannot be done, say why."""
    from tune.report.analysis import analyse
    from tune.report.writer import save_page

    try:
        save_page(analyse(folder, storage_option, ended=True))
    except _DRAWING as error:
        reason = str(error) if isinstance(error, ExperimentError) else f"{type(error).__name__}: {error}"
        say(f"warning: there is no new report: {reason}")


def only_end_is_left(state: SearchState) -> bool:
    """Whether all that was asked for has been done, but for the end of it: the process was killed before."""
    return state.session is not None and not state.written and not state.something_is_left


def finish_if_left(folder: ExperimentFolder, say: Callable[[str], None], storage_option: str = "") -> bool:
    """Finish an experiment whose process was killed when nothing was left but the end; whether it was so.

    Raises:
        ExperimentError: its log is damaged, or cannot be written.
    """
    if not _is_left(folder):
        return False
    experiment = OpenExperiment(folder)
    experiment.log.stand_still()
    try:
        finish(experiment, say, storage_option=storage_option)
        experiment.upload()
    finally:
        experiment.close()
    return True


def _is_left(folder: ExperimentFolder) -> bool:
    """Whether the end is owed, and no process comes to it, as far as the disk knows locks; raises `ExperimentError` for
    a damaged log.
    """
    begun, runs = (folder.path / EVENTS_FILE).is_file(), is_locked(folder.path / LOCK_FILE)
    return begun and runs is False and only_end_is_left(Experiment.read(folder).state)


def find_finished(name: str | None, storage: Storage) -> ExperimentFolder:
    """An experiment as `find_experiment` finds it, finished first where a killed process had left only that.

    Where it cannot be finished from here, its log is read as it stands.

    Raises:
        ExperimentError: there is no such experiment, or its log is damaged.
        StorageError: the object store cannot be read.
    """
    folder = find_experiment(name, storage)
    if not _is_left(folder):
        return folder
    notes: list[str] = []
    try:
        if finish_if_left(folder, notes.append, storage.option):
            notes.insert(0, f"note: the last steps of {folder.name} were missing and are done now")
    except (ExperimentError, StorageError, OSError) as error:
        notes.append(f"note: the last steps of {folder.name} are missing and cannot be done here: {error}")
    for note in notes:
        print(note, file=sys.stderr)
    return folder
