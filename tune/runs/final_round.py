"""What comes after the trials: the best of them again with other seeds, the run that is exported, and what may go.

The best weights of a run go only behind `ExportChosen`: never those that it names, never while repeats or averages are
open, never where failures ended the search. So something can be exported at any moment after the first evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.training.checkpoints import CONFIG_FILE, UTTERANCES_FILE
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import ExportChosen, FinalistsCompared
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.results import clips_of
from tune.search.finalists import Repeat, judge_finalists
from tune.search.records import Trial, trial_of
from tune.util.cloud_errors import cloud_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tune.experiments.experiment import OpenExperiment
    from tune.experiments.state import SearchState

_KEPT_FILES = (UTTERANCES_FILE, CONFIG_FILE)
"""What stays of a checkpoint without its weights: finalists of a search that goes on are compared by it."""


def choose_export(experiment: OpenExperiment, say: Callable[[str], None]) -> None:
    """Compare the finalists, choose the run that is exported, and drop the weights of the others; again as often.

    Nothing is chosen while trials, repeats, their mean or guards are left, or where failures ended the trials.

    Args:
        experiment: its trials are over.
    """
    state = experiment.state
    if not compare(experiment) or state.open_repeats or state.something_is_measured:
        return
    best = state.best()
    if best is None:
        return
    chosen = _choice(state, best)
    if chosen != state.chosen or state.superfluous(chosen):
        experiment.log.append(chosen)
    remove_dropped(experiment, say)


def compare(experiment: OpenExperiment) -> bool:
    """Compare the finalists where there were any; whether the trials are over, and not by failures."""
    state = experiment.state
    if not state.trials_over or (state.end is not None and state.end.reason == "failures"):
        return False
    if state.options.n_finalists and state.verdict is None:
        found = compare_finalists(state, CheckpointFiles(experiment.folder))
        if found != state.compared:
            experiment.log.append(found)
    return True


def _choice(state: SearchState, best: Trial) -> ExportChosen:
    verdict = state.verdict
    if verdict is not None:
        losers = {score.trial_id for score in verdict.scores} - {verdict.winner}
        return ExportChosen(run=best.trial_id, losers=sorted(state.losers | losers))
    # Finalists that could not be compared all keep their weights.
    uncompared = state.finalists(state.options.n_finalists) if state.compared.text else []
    finalists = [trial.trial_id for trial in uncompared]
    if state.chosen is not None and finalists:  # nor does the winner of an earlier round lose them so
        finalists.append(trial_of(state.chosen.run))
    keep = [
        run.trial_id
        for run in state.runs
        if trial_of(run.trial_id) in finalists and run.trial_id != best.trial_id
    ]
    return ExportChosen(run=best.trial_id, keep=keep, losers=sorted(state.losers))


def remove_dropped(experiment: OpenExperiment, say: Callable[[str], None]) -> None:
    """Remove the weights that the log says to be dropped, also what a killed process had left of that."""
    files = CheckpointFiles(experiment.folder)
    dropped = [run for run in experiment.state.runs if run.weights_dropped and run.checkpoint]
    try:
        if dropped:
            experiment.before_deletion()
        for run in dropped:
            files.strip(str(run.checkpoint), lambda name: name not in _KEPT_FILES)
    except cloud_errors(StorageError) as error:
        say(f"warning: the weights of other trials were not deleted: {error}")


def compare_finalists(state: SearchState, files: CheckpointFiles) -> FinalistsCompared:
    """What the repeats that came to an end say. There is no verdict while a finalist has none."""
    names = [trial.trial_id for trial in state.finalists(state.options.n_finalists)]
    # The one that was chosen before defends its place. Others of earlier rounds may have no weights any more.
    contenders = {*names, trial_of(state.chosen.run) if state.chosen else None}
    found: dict[str, list[Repeat]] = {}
    for run in state.repeats.all():
        trial = trial_of(run.trial_id)
        if trial in contenders and run.status == "completed" and run.best_value is not None:
            # Where the clips' errors cannot be read, the interval comes from the seeds alone.
            repeat = Repeat(run.trial_id, run.best_value, run.seconds, clips_of(files, run.checkpoint))
            found.setdefault(trial, []).append(repeat)
    without = [name for name in names if name not in found]
    if without:
        who = f"trial {without[0]} has" if len(without) == 1 else f"trials {', '.join(without)} have"
        return FinalistsCompared(verdict=None, text=f"{who} no repeat that was completed")
    return FinalistsCompared(verdict=judge_finalists(found) if found else None)


def remove_unnamed_checkpoints(
    experiment: OpenExperiment, say: Callable[[str], None], *, ended: bool = False
) -> None:
    """Checkpoints that no event names, such as those that a killed process had written: of a folder they go.

    In an object store, where another machine may still write, they are kept aside unless all has `ended`.
    """
    known = {path for run in experiment.state.runs for path in run.checkpoints}
    try:
        experiment.before_deletion()
        CheckpointFiles(experiment.folder).remove_unnamed(known, remove=ended or not experiment.folder.remote)
    except cloud_errors(StorageError) as error:
        say(f"warning: checkpoints that are no longer needed were not deleted: {error}")
