"""Guards: what could be exported, measured on data that is not trained on, and which of it is exported then."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import ray.exceptions

from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import GuardMeasured, GuardsJudged
from tune.experiments.object_stores.object_store import StorageError
from tune.runs.baseline import in_worker, measure_untouched
from tune.runs.data import guard_config
from tune.runs.session import finite
from tune.search.guards import choose, describe_choice, guard_names
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import UserError, error_line
from tune.workers.averages import measure_guard

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import SearchPlan
    from tune.runs.session import Session
    from tune.search.guards import Guard
    from tune.search.records import TrialRecord


class MeasureGuard(Protocol):
    """Measures the base model (no run), a run, or a point between them, on a guard."""

    def __call__(self, guard: Guard, run: TrialRecord | None, point: float) -> tuple[Evaluation, str]:
        """The rates, and what tells the guard's clips from others."""


def guard_in_worker(session: Session[SearchPlan], base: TrainConfig) -> MeasureGuard:
    """Guards are measured on the cluster, as repeats are: `base` are the settings of the final round."""
    files = CheckpointFiles(session.experiment.folder)

    def measure(guard: Guard, run: TrialRecord | None, point: float) -> tuple[Evaluation, str]:
        config, data = guard_config(base, guard), session.guards[guard.data]
        digest = data.splits["validation"].digest()
        if run is None:
            inputs = session.inputs(config, guard=guard.data)
            return measure_untouched(session, inputs, data, "validation", f"on {guard.data}")[0], digest
        inputs = session.inputs(config.replace(**run.config), guard=guard.data)
        return in_worker(session, measure_guard, inputs, files, str(run.checkpoint), point), digest

    return measure


def judge_guards(
    experiment: OpenExperiment,
    measure: MeasureGuard,
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
) -> None:
    """Measure the base model and all that could be exported on the session's guards, and choose what is exported.

    As far as the log says that it is left. No budget ends this: without it nothing that keeps the guards is known.

    Args:
        experiment: nothing is left to train or to average.
        measure: see `MeasureGuard`.
        say: told what comes of it.
        show: told what is done now, and how many of how many measurements are.
    """
    log, state = experiment.log, experiment.log.state
    if not state.open_guards:
        return
    runs = state.guard_runs
    wanted = [(guard, run) for guard in state.asked_guards for run in (None, *runs)]
    for done, (guard, run) in enumerate(wanted):
        show(f"{run.trial_id if run else 'the base model'} on the guard {guard.data}", done, len(wanted))
        measure_on_guard(experiment, measure, guard, run, 1.0, say)
    models = {run.trial_id: state.traded(run.trial_id) for run in runs}
    chosen, names = choose(models), guard_names(state.asked_guards)
    traded = {name: [each.to_dict() for each in found] for name, found in models.items()}
    log.append(GuardsJudged(run=chosen, models=traded))
    say(describe_choice(chosen, models, names))


def measure_on_guard(
    experiment: OpenExperiment,
    measure: MeasureGuard,
    guard: Guard,
    run: TrialRecord | None,
    point: float,
    say: Callable[[str], None],
) -> None:
    """Measure a model on a guard, unless the log knows it; what cannot be measured is told, and keeps no guard."""
    log, name, began = experiment.log, run.trial_id if run else None, time.time()
    if (name, point, guard.data) in log.state.guards:
        return
    empty = GuardMeasured(guard=guard.data, run=name, point=point, rates={})
    try:
        found, digest = measure(guard, run, point)
        event = dataclasses.replace(empty, rates=finite(found.rates()), clips_digest=digest)
        if found.utterances is not None:
            clips = found.utterances
            event = dataclasses.replace(event, errors=list(clips.word_errors), words=list(clips.words))
    except cloud_errors(UserError, StorageError, ray.exceptions.RayError) as error:
        event = dataclasses.replace(empty, text=error_line(str(error)))
        say(f"warning: {name or 'the base model'} is not measured on the guard {guard.data}: {event.text}")
    log.append(dataclasses.replace(event, seconds=time.time() - began))
