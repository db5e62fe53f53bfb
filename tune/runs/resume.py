"""`--resume`: a plan from what an interrupted search or training left in its experiment's folder, and its log, open."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.opened import OpenExperiment
from tune.experiments.plan import (
    ASKED_RESOURCES,
    Plan,
    SearchPlan,
    SearchRequest,
    absolute_guards,
)
from tune.experiments.saved import SavedExperiment, find_experiment, no_log
from tune.experiments.settings import read_settings
from tune.experiments.training_plan import TRIAL, TrainPlan, TrainRequest
from tune.experiments.warm_start import WarmStart
from tune.runs.finish import is_owed
from tune.util.errors import ExperimentError, option_name

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.events import SessionStarted
    from tune.experiments.settings import ExperimentSettings
    from tune.experiments.storage import Storage

PlanT = TypeVar("PlanT", bound=Plan)
_BUDGET_OPTIONS = {
    "seconds": "--time-budget",
    "gpu_hours": "--gpu-hours",
    "plateau_trials": "--plateau",
    "plateau_points": "--plateau-points",
}


@dataclasses.dataclass(frozen=True)
class Resumed(Generic[PlanT]):
    """What is known of a search or a training that goes on."""

    plan: PlanT
    experiment: OpenExperiment
    """Nobody else runs it meanwhile."""
    settings: ExperimentSettings
    """What was resolved when it began, which holds."""
    only_finish: bool = False
    """Whether nothing is left but the end of it."""


def load_search(
    request: SearchRequest, name: str, given: Collection[str], *, take_over: bool = False
) -> Resumed[SearchPlan]:
    """The search `name` of `request.storage`, to go on with the request's resources and MLflow store.

    Args:
        request: where and how to run; what is searched is the experiment's.
        name: the experiment.
        given: options that were given; of the others, those of the session before count. `--trials` is their number
            in all.
        take_over: of an object store: also where another machine seems to run it.

    Raises:
        ExperimentError: there is no such experiment, it never began, it runs now, or nothing is left to do.
    """
    with _opened(name, request.storage, SearchPlan.kind, take_over) as (saved, experiment):
        state, settings = saved.state, saved.settings
        asked = state.session
        if asked is None or state.baseline is None or saved.space is None:
            raise ExperimentError(
                f"--resume {name}: its search never began a trial; remove {saved.folder.address} and start it anew"
            )
        begun = len(state.records)
        wanted = request.trials if "--trials" in given else asked.trials
        if wanted < begun:
            raise ExperimentError(f"--trials {wanted}: {begun} trials of {name!r} have begun already")
        request = dataclasses.replace(
            request,
            trials=wanted,
            seed=settings.seed,
            experiment=name,
            workers_per_trial=settings.resources.workers,
            tracking_uri=request.tracking_uri or settings.asked_tracking_uri,
            **_as_before(asked, settings, request, given),
        )
        request = dataclasses.replace(request, guard=absolute_guards(request.guard, saved.base.data))
        request.resources.check_gpus(begun=True)
        base = _with_precision(saved.base, asked).replace(evaluate_at=None)
        plan = SearchPlan(
            request=request,
            name=name,
            experiment_folder=saved.folder,
            space=saved.space,
            base=base,
            warm_start=WarmStart.load(saved.folder.path),
        )
        plan.check_settings()
        asked_now = state.if_asked(plan.asked)
        left = not asked_now.all_ended or bool(asked_now.open_repeats) or asked_now.something_is_measured
        if not left and state.written and not state.something_is_left:
            raise ExperimentError(
                f"--resume {name}: all its {begun} trials have ended; --trials {begun + 8} adds 8 more"
            )
        # The test split is measured by workers, which takes a whole session.
        chosen = state.chosen.run if state.chosen else None
        measured = "test" not in settings.clips or (
            state.held_out is not None and state.held_out.run == chosen
        )
        return Resumed(plan, experiment, settings, only_finish=not left and measured and is_owed(state))


def load_training(request: TrainRequest, name: str) -> Resumed[TrainPlan]:
    """The training `name` of `request.storage`, to go on with the request's resources and MLflow store.

    Raises:
        ExperimentError: there is no such training, it has ended, or it runs now.
    """
    request.check_numbers()
    with _opened(name, request.storage, TrainPlan.kind, request.take_over) as (saved, experiment):
        if TRIAL not in saved.state.records or saved.state.baseline is None:
            raise ExperimentError(
                f"--resume {name}: its training never began; remove {saved.folder.address} and start it anew"
            )
        record = saved.state.records[TRIAL]
        if record.outcome not in ("running", "failed") and not record.unsaved:
            raise ExperimentError(
                f"--resume {name}: has {record.outcome}; tune-whisper train --from {name} trains anew with its settings"
            )
        base = _with_precision(saved.base, saved.state.session)
        request.resources(base.workers).check_gpus()
        request = dataclasses.replace(
            request,
            tracking_uri=request.tracking_uri or saved.settings.asked_tracking_uri,
            track=saved.settings.track,
        )
        plan = TrainPlan(
            request=request,
            name=name,
            experiment_folder=saved.folder,
            base=base,
            trial_config=record.config,
        )
        plan.check_settings()
        return Resumed(plan, experiment, saved.settings)


@contextlib.contextmanager
def _opened(
    name: str, storage: Storage, kind: Literal["search", "training"], take_over: bool
) -> Iterator[tuple[SavedExperiment, OpenExperiment]]:
    """An experiment of an earlier session, which stays open unless the block fails."""
    folder = find_experiment(name, storage)
    settings = read_settings(folder)
    if settings.kind != kind:
        raise ExperimentError(
            f"--resume {name}: is a training; use tune-whisper train --resume {name}"
            if kind == "search"
            else f"--resume {name}: is a search, not a training; tune-whisper --resume {name} goes on with it"
        )
    if not (folder.path / EVENTS_FILE).is_file():
        raise no_log(folder)
    with contextlib.ExitStack() as stack:
        experiment = OpenExperiment(folder, take_over=take_over)
        stack.callback(experiment.close)
        yield SavedExperiment(folder, settings, experiment.log.state), experiment
        stack.pop_all()


def _with_precision(base: TrainConfig, asked: SessionStarted | None) -> TrainConfig:
    """The settings in the arithmetic that was decided when the experiment began."""
    return base if asked is None or base.precision != "auto" else base.replace(precision=asked.precision)


def _as_before(
    asked: SessionStarted, settings: ExperimentSettings, request: SearchRequest, given: Collection[str]
) -> dict[str, Any]:
    """Options of the session before, but for those that are given anew."""
    before: dict[str, Any] = {
        "finalists": asked.finalists,
        "repeats": asked.repeats,
        "guard": tuple(asked.guards),
        "keep_checkpoints": asked.keep_checkpoints,
        "track": settings.track,
        **{name: asked.asked_resources.get(name) for name in ASKED_RESOURCES},
    }
    options = {word.replace("--no-", "--") for word in given}
    found = {name: value for name, value in before.items() if option_name(name) not in options}
    budgets = {
        name: getattr(request.budgets, name) for name, option in _BUDGET_OPTIONS.items() if option in given
    }
    return {**found, "budgets": dataclasses.replace(asked.budgets, **budgets)}
