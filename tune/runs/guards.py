"""What could be exported is measured on guards, data that is not trained on, by which it is chosen."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tune.experiments.events import GuardMeasured, GuardsJudged
from tune.runs.averages import measuring_failures
from tune.runs.session import finite
from tune.search.guards import choose
from tune.util.errors import error_line

if TYPE_CHECKING:
    from trainer.train import Evaluation
    from tune.experiments.experiment import OpenExperiment
    from tune.search.guards import Guard
    from tune.search.records import TrialRecord

MeasureOnGuard: TypeAlias = "Callable[[Guard, TrialRecord | None], tuple[Evaluation, str]]"
"""The base model (no run) or a run on a guard; and what tells its clips from others."""


def judge_guards(
    experiment: OpenExperiment,
    measure: MeasureOnGuard,
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
) -> None:
    """Measure the base model and all that could be exported on the session's guards, and choose what is exported.

    No budget ends this: without it nothing that keeps the guards is known.

    Args:
        experiment: whose repeats and their mean are measured.
        measure: does it.
        say: told what comes of it.
        show: told what is done now, and how many of how many measurements are.
    """
    state = experiment.log.state
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
                f"warning: {name or 'the base model'} is not measured on the guard {guard.data}: {event.text}"
            )
        experiment.log.append(dataclasses.replace(event, seconds=time.time() - began))
    models = {run.trial_id: state.traded(run.trial_id) for run in runs}
    experiment.log.append(GuardsJudged(run=choose(models), models=models))
    say(state.guards_text)
