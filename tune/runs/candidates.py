"""What could be exported is measured: the mean of the winner's repeats, and all of it on guards.

The mean is one more candidate of the final round, with a score of its own; it is measured once. What is exported is
chosen by `SearchState.best`: the mean where its WER is no higher than theirs. Guards are data that is not trained on.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import ray.exceptions

from trainer.errors import UserError
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.objectives import objective_value
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import (
    CheckpointSaved,
    Evaluated,
    GuardMeasured,
    GuardsJudged,
    TrialEnded,
    TrialProposed,
    TrialStarted,
)
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.results import average_line, guards_line
from tune.runs.session import finite
from tune.runs.trials import folder_suffix
from tune.search.guards import Guard, GuardLoss, MeasuredOnGuard, choose, guard_loss
from tune.search.records import Trial, listed, trial_of
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import error_line

if TYPE_CHECKING:
    from trainer.train import Evaluation
    from tune.experiments.experiment import OpenExperiment
    from tune.experiments.state import SearchState
    from tune.workers.averages import Measured

MeasureMean: TypeAlias = "Callable[[dict[str, Any], Sequence[str], str, float], Measured]"
"""See `tune.workers.averages.measure_mean`, with settings in place of inputs and files."""
MeasureOnGuard: TypeAlias = "Callable[[Guard, Trial | None], tuple[Evaluation, str]]"
"""The base model (no run) or a run on a guard; and what tells its clips from others."""


def measuring_failures() -> tuple[type[BaseException], ...]:
    """What measuring a model may raise; the search goes on without it."""
    return cloud_errors(UserError, StorageError, ray.exceptions.RayError)


def measure_average(experiment: OpenExperiment, measure: MeasureMean, say: Callable[[str], None]) -> None:
    """Write and measure the mean of the winner's repeats, where that is left. The finalists are compared.

    No budget ends this: it is one evaluation.
    """
    log, state = experiment.log, experiment.state
    if not state.open_average:
        return
    runs = state.averaged
    record = _proposed(experiment, runs)
    name, seen, members = record.trial_id, runs[0].best_samples_seen, listed(record.members)
    epoch = runs[0].best_epoch
    log.append(TrialStarted(trial_id=name, folder=f"{name}{folder_suffix(experiment)}"))
    path = CheckpointFiles(experiment.folder).name(f"{TRIALS_FOLDER}/{record.folder}", seen)
    try:
        checkpoints = [str(run.checkpoint) for run in runs]
        found = measure(record.config, checkpoints, path, runs[0].best_value or 0.0)
        if not math.isfinite(objective_value(found.rates)):
            raise UserError("its WER is not a finite number")
    except measuring_failures() as error:
        log.append(TrialEnded(trial_id=name, status="failed", error=str(error)))
        reason = error_line(str(error)).rstrip(".")
        say(f"warning: {name}, the mean of {members}, is left out: {reason}")
        return
    metrics: dict[str, float | None] = {
        key: rate for key, rate in finite(found.rates).items() if key != "clips"
    }
    metrics["eval_loss"] = metrics.pop("loss", None)
    log.append(
        Evaluated(
            trial_id=name,
            samples_seen=seen,
            epoch=epoch,
            metrics=metrics,
            finished=True,
            keep="weights" if found.kept else None,
            sources=found.sources,
        ),
        *(
            [CheckpointSaved(trial_id=name, samples_seen=seen, epoch=epoch, checkpoint=path, keep="weights")]
            if found.kept
            else []
        ),
        TrialEnded(trial_id=name, status="completed", samples_seen=seen, epoch=epoch),
    )
    say(average_line(state))


def _proposed(experiment: OpenExperiment, runs: Sequence[Trial]) -> Trial:
    """The mean of these runs: one that a killed process had begun, or a new one."""
    state, members = experiment.state, [run.trial_id for run in runs]
    if (begun := state.average_of(members)) is not None:
        return begun
    trial = trial_of(members[0])
    name = f"{trial}-a{1 + sum(trial_of(run.trial_id) == trial for run in state.averages.all())}"
    winner = state.records[trial]
    experiment.log.append(
        TrialProposed(
            trial_id=name,
            config=winner.config,
            effective_batch=winner.effective_batch,
            members=members,
        )
    )
    return state.run(name)


def judge_guards(
    experiment: OpenExperiment,
    measure: MeasureOnGuard,
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
) -> None:
    """Measure the base model and all that could be exported on the session's guards, and choose what is exported.

    No budget ends this: without it nothing that keeps the guards is known.

    Args:
        show: told what is done now, and how many of how many measurements are.
    """
    state = experiment.state
    if not state.open_guards:
        return
    runs = state.guard_runs
    wanted = [(guard, run) for guard in state.options.guard for run in (None, *runs)]
    for done, (guard, run) in enumerate(wanted):
        name, began = run.trial_id if run else None, time.time()
        show(f"{name or 'the base model'} on the guard {guard.data}", done, len(wanted))
        if (name, guard.data) in state.guards:
            continue
        event = GuardMeasured(guard=guard.data, run=name, rates={})
        try:
            found, digest = measure(guard, run)
            event = dataclasses.replace(event, rates=finite(found.rates), clips_digest=digest)
            if (clips := found.utterances) is not None:
                event = dataclasses.replace(
                    event, errors=clips.word_errors.tolist(), words=clips.words.tolist()
                )
        except measuring_failures() as error:  # it keeps no guard
            event = dataclasses.replace(event, text=error_line(str(error)))
            say(
                f"warning: {name or 'the base model'} could not be measured on the guard {guard.data}: {event.text}"
            )
        experiment.log.append(dataclasses.replace(event, seconds=time.time() - began))
    models = {run.trial_id: _guard_losses(state, run.trial_id) for run in runs}
    experiment.log.append(GuardsJudged(run=choose(models), models=models))
    say(guards_line(state))


def _guard_losses(state: SearchState, run: str) -> list[GuardLoss]:
    """What a run has lost on the session's guards."""

    def measured(guard: Guard, name: str | None) -> MeasuredOnGuard | None:
        found = state.guards[name, guard.data]
        clips = ClipErrors(np.asarray(found.errors, float), np.asarray(found.words, float))
        return MeasuredOnGuard(objective_value(found.rates), clips) if found.rates else None

    return [guard_loss(guard, measured(guard, None), measured(guard, run)) for guard in state.options.guard]
