"""One search from its plan to its results: features, baseline, trials, the best of them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer.config import TrainConfig
from tune.baseline import measure_baseline
from tune.card_probe import probe_card
from tune.cluster import (
    TrialResources,
    alive_nodes,
    check_precision,
    check_shared,
    ray_session,
    trial_resources,
)
from tune.databases import databases_apart, new_runs, old_runs, open_study
from tune.display import SearchDisplay, print_plan, say, say_notes, short_path
from tune.errors import ConfigError, ExperimentError
from tune.features import prepare_features
from tune.final_round import drop_losers, make_limits, remove_leftovers, run_finalists
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_store import check_store
from tune.results import SearchOutcome, keep_measured, write_experiment_file
from tune.scheduler import describe_rungs
from tune.search_state import SearchState
from tune.share import start_share
from tune.study_database import StudyDatabase, check_study
from tune.trainable import count_clips, early_eval_clips, local_folders
from tune.trials import TrialRunner
from tune.upload import Uploader

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.plan import SearchPlan
    from tune.records import Records
    from tune.resume import ResumedSearch

DROPPED_FILE = "dropped_clips.jsonl"


@dataclasses.dataclass
class Session:
    """What a search has while it runs, whether begun or resumed."""

    console: Console
    plan: SearchPlan
    """With what was measured of the card, where that was asked for."""
    resources: TrialResources
    data: PreparedData
    share: Any
    """Serves features and model to nodes that lack them."""
    uploader: Uploader
    stack: contextlib.ExitStack
    """Ends before Ray does, the uploader last."""
    started: float = dataclasses.field(default_factory=time.monotonic)


def run_search(plan: SearchPlan, console: Console) -> SearchOutcome:
    """Run the planned search; everything it leaves is in `plan.experiment_folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    with databases_apart(plan) as databases, _session(plan, console) as session:
        plan, data = session.plan, session.data
        with new_folder(plan), contextlib.ExitStack() as begun:
            (plan.folder / "space.yaml").write_text(plan.space.source_text, encoding="utf-8")
            if plan.warm_start:
                plan.warm_start.save(plan.folder)
                say_notes(console, plan.warm_start.notes)
            state = SearchState(plan.folder)
            state.lock()
            check_shared_storage(plan)
            study = open_study(plan, databases, state, console, begun, goes_on=False)
            rungs = plan.rungs(len(data.splits["train"]))
            base = plan.base.replace(evaluate_at=rungs)
            state.recorder = recorder = begun.enter_context(
                new_runs(plan, databases, base, session.resources, console)
            )
            if data.drops:
                data.write_dropped(plan.folder / DROPPED_FILE)
                say(console, f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
            baseline = measure_baseline(plan.base, session)
            if part := early_eval_clips(base, baseline):
                base = base.replace(early_eval_clips=part)
            write_experiment_file(plan, base, data, session.resources, rungs, baseline)
            session.stack.enter_context(begun.pop_all())
        rates = {f"baseline_{name}": rate for name, rate in baseline.rates().items()}
        recorder.log(None, rates, step=0)
        return _search(plan, base, session, state, recorder, baseline, study)


def resume_search(resumed: ResumedSearch, console: Console) -> SearchOutcome:
    """Go on with an interrupted search: trials that ended are kept, the others go on from their checkpoints.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the experiment stays as it is.
    """
    plan, state = resumed.plan, resumed.state
    with databases_apart(plan) as databases, _session(plan, console, goes_on=True) as session:
        check_shared_storage(plan)
        clips = len(session.data.splits["train"])
        if clips != resumed.n_train:
            raise ExperimentError(
                f"--resume {plan.name}: the data has {clips:,} training clips now, the search began with "
                f"{resumed.n_train:,}; bring the old data back or start a new search"
            )
        if session.plan is not plan:
            plan = session.plan
            keep_measured(plan)
        study = open_study(plan, databases, state, console, session.stack, goes_on=True)
        state.recorder = session.stack.enter_context(old_runs(plan, databases, state, console))
        ended = sum(record.status != "running" for record in state.records.all())
        say(console, f"{ended} of {plan.request.trials} trials have ended; the search goes on")
        remove_leftovers(plan, state)
        base = plan.base.replace(evaluate_at=resumed.rungs)
        return _search(plan, base, session, state, state.recorder, resumed.baseline, study)


@contextlib.contextmanager
def _session(plan: SearchPlan, console: Console, *, goes_on: bool = False) -> Iterator[Session]:
    """Ray, the trials' resources and the prepared data."""
    with console.status("looking at the data and the MLflow store ..."):
        count_clips(plan.base)  # mistakes in the data show here, before anything starts
        check_store(plan.tracking_uri)
        if plan.request.optuna_storage and not goes_on:
            check_study(plan.request.optuna_storage, plan.name)
    with ray_session(console, plan.request.address), contextlib.ExitStack() as stack:
        resources = trial_resources(plan.request, alive_nodes())
        check_precision(plan, resources)
        check_gpu_hours(plan, resources)
        print_plan(plan, console)
        data = prepare_features(plan.base, console)
        share = start_share(local_folders(plan.base, data))
        if plan.request.gpus_per_trial == "auto":
            plan, resources = probe_card(plan, data, share, console)
        uploader = Uploader(plan.experiment_folder, lambda text: say(console, f"warning: {text}"))
        stack.callback(uploader.finish)
        yield Session(console, plan, resources, data, share, uploader, stack)


def _search(
    plan: SearchPlan,
    base: TrainConfig,
    session: Session,
    state: SearchState,
    recorder: MlflowRecorder,
    baseline: Evaluation,
    study: StudyDatabase,
) -> SearchOutcome:
    """The trials, the repeats of the best of them, and what comes of all."""
    state.save()
    session.uploader.start()
    state.on_save = session.uploader.wake
    rungs, resources = base.evaluate_at or (), session.resources
    _say_what_a_trial_is(session, base, rungs)
    limits = make_limits(plan, state, resources)
    runner = TrialRunner(
        plan=plan,
        base=base,
        data=session.data,
        resources=resources,
        share=session.share,
        state=state,
        recorder=recorder,
        limits=limits,
    )

    def display(records: Records, trials: int, noun: str) -> SearchDisplay:
        return SearchDisplay(
            session.console,
            records,
            n_trials=trials,
            budget=rungs[-1],
            baseline=baseline.wer,
            trouble=lambda: recorder.problem,
            noun=noun,
        )

    earlier = plan.warm_start.adapted(baseline.wer, rungs[-1]) if plan.warm_start else []
    with display(state.records, plan.request.trials, "trials") as shown:
        runner.run_trials(baseline.wer, study, earlier, shown)
    final = run_finalists(runner, session.console, display)
    outcome = SearchOutcome.collect(
        plan, state, baseline, final, limits.end, seconds=time.monotonic() - session.started
    )
    drop_losers(outcome, state, session.console)
    state.save()  # before the report, which goes by whichever of state and results is newer
    outcome.finish(recorder)
    state.save()
    return outcome


def _say_what_a_trial_is(session: Session, base: TrainConfig, rungs: tuple[int, ...]) -> None:
    resources = session.resources
    each = f"{resources.gpus:g} GPU and {resources.cpus:g} CPU each"
    if resources.workers > 1:
        each += f" for {resources.workers} workers"
    say(
        session.console,
        f"each trial sees up to {rungs[-1]:,} samples; {describe_rungs(rungs, session.plan.space.scheduler.rungs)}; "
        f"{resources.concurrent} at a time with {each}",
    )
    if base.early_eval_clips:
        say(
            session.console,
            f"rungs before half of the budget measure {base.early_eval_clips:,} of "
            f"{len(session.data.splits['validation']):,} validation clips (--set early_eval_clips=0 measures all)",
        )
    session.console.print()


def check_gpu_hours(plan: SearchPlan, resources: TrialResources) -> None:
    """Raise `ConfigError` where GPU-hours are limited and no trial takes a GPU."""
    hours = plan.request.budgets.gpu_hours
    if hours is not None and not resources.gpus:
        raise ConfigError(f"--gpu-hours {hours:g}: the trials take no GPU here; use --time-budget")


def check_shared_storage(plan: SearchPlan) -> None:
    """Raise `ResourceError` where the experiment is in a folder that some nodes do not see."""
    if not plan.experiment_folder.remote:
        check_shared(plan.folder, plan.request.storage.text)


@contextlib.contextmanager
def new_folder(plan: SearchPlan) -> Iterator[None]:
    """Make the experiment's folder, and remove it again where the search ends before its first trial."""
    made = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    try:
        plan.folder.mkdir(parents=True)
    except OSError as error:
        where = f"--storage {plan.request.storage.text}"
        raise ExperimentError(f"{where}: cannot make {plan.folder}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        plan.experiment_folder.remove()
        for path in made[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        raise
