"""`--resume`: a plan from what an interrupted search or training left in its experiment's folder, and its log, open."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from trainer.scoring.objectives import objective_value
from tune.experiments.experiment import Experiment, OpenExperiment, find_experiment
from tune.experiments.mlflow_store import with_password
from tune.experiments.options import TRIAL, Kind, SearchOptions, resume_command
from tune.experiments.paths import absolute_guards, settled
from tune.experiments.storage import Storage
from tune.runs.finish import only_end_is_left
from tune.runs.plan import Plan
from tune.search.more_trials import MORE
from tune.space.conditions import not_always_searched
from tune.space.parameters import NOT_SEARCHABLE, SET_BY_SEARCH, ChoiceParameter, show, usual_value
from tune.space.space import load_space, space_of_one
from tune.util.errors import ExperimentError, SpaceError


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
    kind: Kind = "search",
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
    if (found := Experiment.read(folder).state.options.kind) != kind:
        raise ExperimentError(
            f"--resume {name}: is a {found}; use {resume_command(name, found, storage.option)}"
        )
    with contextlib.ExitStack() as stack:
        experiment = stack.enter_context(OpenExperiment(folder, take_over=take_over))
        state = experiment.state
        if state.prepared is None or (kind == "training" and TRIAL not in state.records):
            raise ExperimentError(
                f"--resume {name}: its {kind} never started a trial; remove {folder.address} and start again"
            )
        kept = state.options.tracking_uri
        options = state.options.changed({"tracking_uri": kept and with_password(kept), **given})
        options = dataclasses.replace(options, guard=absolute_guards(options.guard, experiment.base.data))
        base, session = experiment.base, state.session
        if base.precision == "auto" and session is not None:  # as it was decided when the experiment began
            base = base.replace(precision=session.precision)
        space = experiment.space or space_of_one({})
        plan = Plan(
            options=options,
            name=name,
            experiment_folder=folder,
            storage=storage,
            address=address,
            space=space,
            base=base if kind == "training" else base.replace(evaluate_at=None),
            warm_starts=tuple(state.prepared.warm_starts),
        )
        # Another session may have changed the space, too.
        plan = _with_another_space(plan, experiment) if "space" in given else plan.with_space(space)
        only_finish = kind == "search" and _only_finish(experiment, options)
        record = state.records[TRIAL] if kind == "training" else None
        # One that has ended may lack its test split and results.
        if record and record.outcome not in ("running", "failed") and not record.unsaved and state.written:
            raise ExperimentError(
                f"--resume {name}: has {record.outcome}; tune-whisper train --from {name}{storage.option} trains again "
                "with its settings"
            )
        options.check(resumed=True)
        plan.check_settings()
        stack.pop_all()
        return Resumed(plan, experiment, only_finish)


def _with_another_space(plan: Plan, experiment: OpenExperiment) -> Plan:
    """The plan with the space that is named now, for trials that can be compared with those that there are.

    A setting that it fixes to another value than the trials shared until now becomes a choice of that one value. What
    neither it nor an option names is at its default, as in a new search. A window stays as it was decided.

    Raises:
        SpaceError: it cannot be read, or its trials could not be compared.
    """
    before, shared, options = experiment.space, experiment.shared, plan.options
    assert before is not None
    window = "audio_window"
    given = {name: shared[name] for name in options.settings}
    unsearchable = {name: value for name, value in given.items() if name in NOT_SEARCHABLE}
    kept = {*NOT_SEARCHABLE, *SET_BY_SEARCH, "seed", window}
    usual = {
        name: usual_value(name)
        for name, value in experiment.settings.train_config.items()
        if name not in kept and value != usual_value(name)
    }
    read = load_space(options.space, unsearchable, usual | given)
    notes = plan.notes
    if read.fixed.get(window, shared[window]) != shared[window]:
        notes = (*notes, f"{window} stays as it was: the search has decided it")
    asked = dataclasses.replace(plan, space=read, space_as_read=read)
    asked = asked.after_baseline(objective_value(experiment.state.base_rates))
    space, named = asked.space, {name: value for name, value in asked.space.fixed.items() if name != window}
    settings = settled(experiment.settings.base.replace(**named)).to_dict()
    ranges, fixed, points, problems = dict(space.ranges), dict[str, Any](), space.try_first, list[str]()

    def where(name: str) -> str:
        return f"{space.path}:{space.lines.get(name, 1)}: {name}"

    def refuse(name: str, here: Any, there: Any, why: str) -> None:
        mend = "remove it" if there is None else f"write {show(there)}"
        problems.append(
            f"{where(name)}={show(here)}: is {show(there)} in {experiment.name}, and {why}; {mend}"
        )

    for name, value in named.items():
        here = settings.get(name, value)
        if here == shared.get(name):
            fixed[name] = value
        elif name in NOT_SEARCHABLE:
            refuse(name, here, shared[name], "all its trials share that")
        else:
            ranges[name] = (ChoiceParameter((here,)),)
            points = [{**point, name: here} for point in points]
    for name in ("rungs", "reduction_factor"):
        here, there = (getattr(each.scheduler, name) for each in (space, before))
        if here != there:
            refuse(f"scheduler: {name}", here, there, "its trials were measured there")
    if window in ranges and not experiment.settings.trials_full_window:
        problems.append(
            f"{where(window)}: its trials were measured in the window that they train with; remove it"
        )
    for name in experiment.settings.train_config.keys() & not_always_searched(ranges, fixed):
        wanted = asked.base.learning_rate if name == "learning_rate" else usual_value(name)
        if shared[name] != wanted:
            left = f"trials in which it is not searched would have {show(shared[name])}, that of"
            problems.append(f"{where(name)}: {left} {experiment.name}; search it in all")
    found = dataclasses.replace(space, ranges=ranges, fixed=fixed, try_first=points)
    largest = dataclasses.replace(plan, space=found).batch_sizes[-1]
    steps, budget = plan.base.max_steps, experiment.settings.rungs[-1]
    if steps is not None and largest * steps > budget:
        why = "with max_steps no effective batch may be larger"
        refuse("train_batch_size", largest, budget // steps, why)
    if problems:
        raise SpaceError("\n".join(problems))
    return dataclasses.replace(plan.with_space(found), notes=notes)


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
            f"--resume {name}: all its {begun} trials have ended; --trials {begun + MORE} adds {MORE} more"
        )
    # The test split is measured by workers, which takes a whole session.
    chosen = state.chosen.run if state.chosen else None
    measured = "test" not in experiment.settings.data.clips or (
        state.held_out is not None and state.held_out.run == chosen
    )
    return not left and measured and only_end_is_left(state)
