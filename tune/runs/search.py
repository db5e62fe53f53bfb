"""One search from its plan to its results: features, baseline, trials, final round, the run that is exported."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from trainer.config import TrainConfig
from tune.checkpoint_files import CheckpointFiles
from tune.cloud_errors import cloud_errors
from tune.cluster import (
    TrialResources,
    alive_nodes,
    check_precision,
    check_shared,
    ray_session,
    trial_resources,
)
from tune.display import SearchDisplay, print_plan, say, say_notes, short_path
from tune.errors import ConfigError, ExperimentError
from tune.experiments.events import (
    BaselineMeasured,
    DataPrepared,
    HeldOutMeasured,
    SearchEnded,
    SessionStarted,
)
from tune.experiments.opened import OpenExperiment
from tune.experiments.settings_file import DROPPED_FILE, write_baseline_clips, write_search_file
from tune.finalists import describe_repeats
from tune.mlflow_store import check_store, package_versions
from tune.object_store import StorageError
from tune.runs.baseline import measure_baseline, measure_held_out
from tune.runs.data import prepare_features
from tune.runs.final_round import choose_export, plan_final_round, remove_dropped
from tune.runs.finish import finish
from tune.runs.gpu_sharing import probe_card
from tune.runs.outcome import SearchOutcome
from tune.runs.tracking import Tracking
from tune.runs.trials import TrialRunner
from tune.scheduler import describe_rungs
from tune.share import start_share
from tune.tracking.optuna_study import check_study
from tune.upload import Uploader
from tune.workers.trainable import count_clips, early_eval_clips, evaluation_ratio, local_folders

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from tune.experiments.plan import SearchPlan
    from tune.runs.resume import ResumedSearch
    from tune.search.records import Records
    from tune.searcher import EarlierTrial


@dataclasses.dataclass
class Session:
    """What a search or a training has while it runs, whether begun or resumed."""

    console: Console
    plan: SearchPlan
    """With what was measured of the card, where that was asked for."""
    resources: TrialResources
    data: PreparedData
    share: Any
    """Serves features and model to nodes that lack them."""
    tracking: Tracking
    stack: contextlib.ExitStack
    """Ends before Ray does."""
    began: float
    """When the command began, in seconds since the epoch."""

    def say(self, text: str) -> None:
        """Print one line."""
        say(self.console, text)

    def take(self, experiment: OpenExperiment) -> OpenExperiment:
        """Close the experiment in the end, and have its files uploaded and its log followed meanwhile."""
        uploader = Uploader(experiment, lambda text: self.say(f"warning: {text}"))
        self.stack.callback(experiment.close)
        self.stack.callback(uploader.finish)
        self.stack.enter_context(_told_if_broken(experiment))
        experiment.publish()  # others see that it has begun before anything is done
        if experiment.best_effort:
            self.say(
                "note: this storage cannot refuse a second machine that resumes the experiment at the same moment"
            )
        experiment.log.on_append = uploader.wake
        uploader.start()
        return experiment


def run_search(plan: SearchPlan, console: Console) -> SearchOutcome:
    """Run the planned search; everything it leaves is in `plan.experiment_folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    with open_session(plan, console, time.time()) as session:
        plan, data = session.plan, session.data
        with new_folder(plan):
            (plan.folder / "space.yaml").write_text(plan.space.source_text, encoding="utf-8")
            if plan.warm_start:
                plan.warm_start.save(plan.folder)
                say_notes(console, plan.warm_start.notes)
            experiment = OpenExperiment(plan.experiment_folder)
            session.stack.callback(experiment.close)
            check_shared_storage(plan)
            session.tracking.connect()
            if data.drops:
                data.write_dropped(plan.folder / DROPPED_FILE)
                say(console, f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
            measured = time.time()
            baseline = measure_baseline(plan.base, session)
            base = plan.base.replace(evaluate_at=plan.rungs(len(data.splits["train"])))
            if part := early_eval_clips(base, baseline):
                base = base.replace(early_eval_clips=part)
            write_baseline_clips(plan.folder, baseline)
            write_search_file(
                plan, base, data, session.resources, full_window=trials_base(plan, base) == base
            )
            experiment.log.append(
                session_started(session, experiment),
                data_prepared(data),
                BaselineMeasured(rates=finite(baseline.rates()), seconds=time.time() - measured),
            )
            session.take(experiment)
        earlier = (
            plan.warm_start.adapted(baseline.wer, (base.evaluate_at or (1,))[-1]) if plan.warm_start else []
        )
        return _search(session, experiment, base, trials_base(plan, base), earlier)


def resume_search(resumed: ResumedSearch, console: Console) -> SearchOutcome:
    """Go on with an interrupted search: trials that ended are kept, the others go on from their checkpoints.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the experiment stays as it is.
    """
    experiment = resumed.experiment
    with (
        contextlib.closing(experiment),
        open_session(resumed.plan, console, time.time(), resumed=True) as session,
    ):
        plan, state = session.plan, experiment.log.state
        check_shared_storage(plan)
        check_same_data(plan.name, experiment, session.data)
        session.tracking.connect()
        experiment.log.append(session_started(session, experiment))
        session.take(experiment)
        ended = sum(record.status != "running" for record in state.records.all())
        say(console, f"{ended} of {plan.request.trials} trials have ended; the search goes on")
        remove_dropped(experiment, session.say)
        set_aside_leftovers(experiment, session.say)
        earlier: list[EarlierTrial] = []
        if plan.warm_start and state.baseline:
            earlier = plan.warm_start.adapted(state.baseline.rates["wer"], resumed.rungs[-1])
        base = plan.base.replace(evaluate_at=resumed.rungs)
        trial = base if resumed.full_window else base.replace(full_window_evaluation=False)
        return _search(session, experiment, base, trial, earlier)


def finish_search(resumed: ResumedSearch, console: Console) -> SearchOutcome:
    """Do what a killed process had left: nothing is trained any more."""
    experiment, plan = resumed.experiment, resumed.plan
    experiment.log.stand_still()
    with contextlib.closing(experiment), Tracking(plan, console) as tracking:
        say(console, "all trials have ended; what was left is finished now")
        finish(experiment, lambda text: say(console, text), storage_option=plan.request.storage.option)
        uploader = Uploader(experiment, lambda text: say(console, f"warning: {text}"))
        uploader.start()
        tracking.connect()
        problem = tracking.finish(experiment)
        uploader.finish()
        return SearchOutcome(plan, experiment.log.state, tracking_problem=problem)


@contextlib.contextmanager
def open_session(
    plan: SearchPlan, console: Console, began: float, *, resumed: bool = False
) -> Iterator[Session]:
    """The stores' followers, Ray, the trials' resources and the prepared data."""
    with contextlib.ExitStack() as outer:
        tracking = outer.enter_context(Tracking(plan, console))
        with console.status("looking at the data and the MLflow store ..."):
            count_clips(plan.base)  # mistakes in the data show here, before anything starts
            if "mlflow" in plan.trackers:
                check_store(plan.tracking_uri)
            if plan.request.optuna_storage and not resumed:
                check_study(plan.request.optuna_storage, plan.name)
        outer.enter_context(ray_session(console, plan.request.address))
        stack = outer.enter_context(contextlib.ExitStack())
        resources = trial_resources(plan.request, alive_nodes())
        check_precision(plan, resources)
        check_gpu_hours(plan, resources)
        print_plan(plan, console)
        data = prepare_features(plan.base, console)
        share = start_share(local_folders(plan.base, data))
        if plan.request.gpus_per_trial == "auto":
            plan, resources = probe_card(plan, data, share, console)
        yield Session(console, plan, resources, data, share, tracking, stack, began)


def _search(
    session: Session,
    experiment: OpenExperiment,
    base: TrainConfig,
    trial: TrainConfig,
    earlier: list[EarlierTrial],
) -> SearchOutcome:
    """The trials, the repeats of the best of them, and what comes of all.

    Args:
        session: the cluster and the data.
        experiment: its log has the session's beginning.
        base: settings of the final round.
        trial: those of the trials.
        earlier: trials of another experiment to learn from.
    """
    plan, state = session.plan, experiment.log.state
    say_what_a_trial_is(session, base)
    runner = TrialRunner(
        plan=plan,
        base=trial,
        data=session.data,
        resources=session.resources,
        share=session.share,
        experiment=experiment,
        window_ratio=evaluation_ratio(base, session.data) if trial != base else 1.0,
    )

    def display(records: Records, trials: int, noun: str) -> SearchDisplay:
        return SearchDisplay(
            session.console,
            records,
            n_trials=trials,
            budget=(base.evaluate_at or (1,))[-1],
            baseline=state.baseline.rates["wer"] if state.baseline else 0.0,
            trouble=lambda: session.tracking.problem,
            noun=noun,
        )

    with display(state.records, plan.request.trials, "trials") as shown:
        runner.run_trials(earlier, shown)
    planned = plan_final_round(experiment, plan.base.seed)
    if planned is not None and state.open_repeats:
        session.say(f"\n{describe_repeats(planned.repeats)}\n")
        with display(state.repeats, len(planned.repeats), "repeats") as shown:
            dataclasses.replace(runner, base=base).run_repeats(planned, shown)
    choose_export(experiment, session.say)
    _measure_held_out(session, experiment, base)
    finish(experiment, session.say, storage_option=plan.request.storage.option)
    problem = session.tracking.finish(experiment)
    return SearchOutcome(plan, state, tracking_problem=problem)


def _measure_held_out(session: Session, experiment: OpenExperiment, base: TrainConfig) -> None:
    """The chosen run on the test split, which chose nothing, where there is one."""
    state = experiment.log.state
    chosen = state.chosen.run if state.chosen else None
    known = state.held_out is not None and state.held_out.run == chosen
    if chosen is None or known or "test" not in session.data.splits or state.best() is None:
        return
    run = state.run(chosen)
    found = measure_held_out(session, experiment, base.replace(**run.config), run)
    if found is not None:
        rates, baseline = found
        experiment.log.append(
            HeldOutMeasured(run=chosen, rates=finite(rates.rates()), baseline=finite(baseline.rates()))
        )


@contextlib.contextmanager
def _told_if_broken(experiment: OpenExperiment) -> Iterator[None]:
    """A block that fails ends the session in the log, so that nobody takes it to run still."""
    try:
        yield
    except BaseException as error:
        state = experiment.log.state
        if experiment.problem is None and state.ended is None and not state.written:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            experiment.log.append(SearchEnded(status=status, text=type(error).__name__))  # type: ignore[arg-type]
        raise


def session_started(
    session: Session, experiment: OpenExperiment, kind: Literal["search", "training"] = "search"
) -> SessionStarted:
    """What the session was asked for."""
    plan, request = session.plan, session.plan.request
    return SessionStarted(
        session=experiment.next_session,
        owner=experiment.owner,
        began=session.began,
        kind=kind,
        trials=request.trials,
        finalists=request.n_finalists,
        repeats=request.repeats,
        budgets=dataclasses.asdict(request.budgets),
        keep_checkpoints=request.keep_checkpoints,
        asked_resources=plan.asked_resources,
        gpus_per_trial=session.resources.gpus,
        micro_batch=plan.base.micro_batch,
        package=package_versions().get("tune-whisper", ""),
    )


def finite(rates: dict[str, float]) -> dict[str, float]:
    """The rates that are numbers: a loss may be none."""
    return {name: float(rate) for name, rate in rates.items() if math.isfinite(rate)}


def data_prepared(data: PreparedData) -> DataPrepared:
    """Which clips the experiment is about."""
    splits = {name: split.digest() for name, split in data.splits.items()}
    return DataPrepared(
        features_key=data.folder.name,
        clips={name: len(split) for name, split in data.splits.items()},
        splits=splits,
    )


def check_same_data(name: str, experiment: OpenExperiment, data: PreparedData) -> None:
    """Raise `ExperimentError` where the data is another than that with which the experiment began.

    Its place may have changed, as on another machine: clips, texts and lengths count.
    """
    before, now = experiment.log.state.data, data_prepared(data)
    if before is None or before.splits == now.splits:
        return
    told = []
    for split in dict.fromkeys((*before.splits, *now.splits)):
        if before.splits.get(split) == now.splits.get(split):
            continue
        if split not in now.splits:
            told.append(f"has no {split} split any more")
        elif split not in before.splits:
            told.append(f"has a {split} split now")
        elif before.clips[split] != now.clips[split]:
            told.append(f"has {now.clips[split]:,} {split} clips now, {before.clips[split]:,} when it began")
        else:
            told.append(f"has other {split} clips or texts now")
    raise ExperimentError(
        f"--resume {name}: the data {', '.join(told)}; bring the old data back or start a new search"
    )


def set_aside_leftovers(experiment: OpenExperiment, say: Callable[[str], None]) -> None:
    """Checkpoints that a killed process had written and no event names: of a folder they go."""
    known = {path for run in experiment.log.state.runs for path in run.checkpoints}
    try:
        experiment.before_deletion()
        CheckpointFiles(experiment.folder).set_aside(known, remove=not experiment.folder.remote)
    except cloud_errors(StorageError) as error:
        say(f"warning: checkpoints that nobody needs stay: {error}")


def trials_base(plan: SearchPlan, base: TrainConfig) -> TrainConfig:
    """The settings of trials: where finalists follow, which are measured as the model will be used, trials are
    measured with the window that they train with.
    """
    if plan.request.n_finalists and "full_window_evaluation" not in plan.space.fixed:
        return base.replace(full_window_evaluation=False)
    return base


def say_what_a_trial_is(session: Session, base: TrainConfig) -> None:
    """Budget, rungs and resources of a trial, on the screen."""
    resources, rungs = session.resources, base.evaluate_at or ()
    each = f"{resources.gpus:g} GPU and {resources.cpus:g} CPU each"
    if resources.workers > 1:
        each += f" for {resources.workers} workers"
    session.say(
        f"each trial sees up to {rungs[-1]:,} samples; {describe_rungs(rungs, session.plan.space.scheduler.rungs)}; "
        f"{resources.concurrent} at a time with {each}"
    )
    if base.early_eval_clips:
        session.say(
            f"rungs before half of the budget measure {base.early_eval_clips:,} of "
            f"{len(session.data.splits['validation']):,} validation clips (--set early_eval_clips=0 measures all)"
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
