"""`--resume`: a plan from what an interrupted search or training left in its experiment's folder, and its log, open."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from tune.experiments.experiment import Experiment, OpenExperiment, find_experiment
from tune.experiments.options import TRIAL
from tune.experiments.paths import absolute_guards
from tune.experiments.warm_start import WarmStart
from tune.runs.finish import only_end_is_left
from tune.runs.plan import Plan
from tune.space.space import space_of_one
from tune.util.errors import ExperimentError

if TYPE_CHECKING:
    from tune.experiments.options import SearchOptions
    from tune.experiments.storage import Storage


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What is known of a search or a training that goes on."""

    plan: Plan
    experiment: OpenExperiment
    """Nobody else runs it meanwhile."""
    only_finish: bool
    """Whether nothing is left but the end of it."""


def resume(
    name: str,
    storage: Storage,
    given: Mapping[str, Any],
    kind: Literal["search", "training"] = "search",
    *,
    address: str | None = None,
    take_over: bool = False,
) -> Resumed:
    """Open an experiment to go on with it.

    Args:
        given: options that were given, as `SearchOptions.changed` takes them; the others are those of the session
            before. `trials` is their number in all.
        kind: what it has to be.
        take_over: of an object store: also where another machine seems to run it.

    Raises:
        ExperimentError: there is no such experiment, it never began, it runs now, or nothing is left to do.
        ConfigError: an option that was given cannot be used.
    """
    folder = find_experiment(name, storage)
    name = folder.name
    if Experiment.read(folder).state.options.kind != kind:
        raise ExperimentError(
            f"--resume {name}: is a training; use tune-whisper train --resume {name}"
            if kind == "search"
            else f"--resume {name}: is a search, not a training; tune-whisper --resume {name} goes on with it"
        )
    with contextlib.ExitStack() as stack:
        experiment = stack.enter_context(OpenExperiment(folder, take_over=take_over))
        state = experiment.state
        if state.prepared is None or (kind == "training" and TRIAL not in state.records):
            raise ExperimentError(
                f"--resume {name}: its {kind} never started a trial; remove {folder.address} and start again"
            )
        options = state.options.changed(given)
        options = dataclasses.replace(options, guard=absolute_guards(options.guard, experiment.base.data))
        base, session = experiment.base, state.session
        if base.precision == "auto" and session is not None:  # as it was decided when the experiment began
            base = base.replace(precision=session.precision)
        plan = Plan(
            options=options,
            name=name,
            experiment_folder=folder,
            storage=storage,
            address=address,
            space=experiment.space or space_of_one({}),
            base=base if kind == "training" else base.replace(evaluate_at=None),
            warm_start=WarmStart.load(folder.path),
        )
        only_finish = kind == "search" and _only_finish(experiment, options)
        record = state.records[TRIAL] if kind == "training" else None
        # One that has ended may lack its test split and results.
        if record and record.outcome not in ("running", "failed") and not record.unsaved and state.written:
            raise ExperimentError(
                f"--resume {name}: has {record.outcome}; tune-whisper train --from {name} trains again "
                "with its settings"
            )
        options.check(resumed=True)
        plan.check_settings()
        stack.pop_all()
        return Resumed(plan, experiment, only_finish)


def _only_finish(experiment: OpenExperiment, options: SearchOptions) -> bool:
    """Whether only the end of a search is left; raises `ExperimentError` where the options leave nothing to do."""
    name, state = experiment.name, experiment.state
    begun = len(state.records)
    if options.trials < begun:
        raise ExperimentError(f"--trials {options.trials}: {begun} trials of {name!r} have begun already")
    asked = copy.copy(state)
    asked.options = options
    left = not asked.all_ended or bool(asked.open_repeats) or asked.something_is_measured
    if not left and state.written and not state.something_is_left:
        raise ExperimentError(
            f"--resume {name}: all its {begun} trials have ended; --trials {begun + 8} adds 8 more"
        )
    # The test split is measured by workers, which takes a whole session.
    chosen = state.chosen.run if state.chosen else None
    measured = "test" not in experiment.settings.data.clips or (
        state.held_out is not None and state.held_out.run == chosen
    )
    return not left and measured and only_end_is_left(state)
