"""One training outside any search, from its plan to its results: features, baseline, workers on Ray Train."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from tune.cluster import check_precision, ray_session
from tune.display import say, short_path
from tune.errors import ExperimentError
from tune.experiments.events import BaselineMeasured, TrialEnded, TrialProposed, TrialStarted
from tune.experiments.log import ProgressLog
from tune.experiments.opened import OpenExperiment
from tune.experiments.settings_file import DROPPED_FILE, write_baseline_clips, write_training_file
from tune.mailbox import MailboxReader, start_mailbox
from tune.mlflow_store import check_store
from tune.runs.baseline import measure_baseline
from tune.runs.data import prepare_features
from tune.runs.finish import finish
from tune.runs.search import (
    Session,
    check_same_data,
    check_shared_storage,
    data_prepared,
    finite,
    new_folder,
    session_started,
)
from tune.runs.tracking import Tracking
from tune.runs.training_display import TrainDisplay, describe_workers, print_train_plan
from tune.share import start_share
from tune.train_messages import FAILURE, root_failure
from tune.train_results import ERROR_FILE, TrainingOutcome
from tune.train_watch import TrainingWatch
from tune.workers.ray_train import TRIAL, make_ray_trainer, remove_scratch
from tune.workers.trainable import count_clips, evaluation_points, local_folders

if TYPE_CHECKING:
    from tune.experiments.training_plan import TrainPlan
    from tune.train_resume import ResumedTraining


def run_training(plan: TrainPlan, console: Console) -> TrainingOutcome:
    """Run the planned training; everything it leaves is in `plan.experiment_folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    with _session(plan, console) as session:
        data = session.data
        points = evaluation_points(plan.base, len(data.splits["train"]))
        with new_folder(plan):
            experiment = OpenExperiment(plan.experiment_folder)
            session.stack.callback(experiment.close)
            check_shared_storage(plan)
            session.tracking.connect()
            if data.drops:
                data.write_dropped(plan.folder / DROPPED_FILE)
                say(console, f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
            measured = time.time()
            baseline = measure_baseline(plan.base, session)
            write_baseline_clips(plan.folder, baseline)
            write_training_file(plan, plan.base, points, data, session.resources)
            experiment.log.append(
                session_started(session, experiment, kind="training"),
                data_prepared(data),
                BaselineMeasured(rates=finite(baseline.rates()), seconds=time.time() - measured),
                TrialProposed(
                    trial_id=TRIAL, config=plan.trial_config, effective_batch=plan.base.effective_batch_size
                ),
            )
            session.take(experiment)
        return _train(plan, session, experiment, points)


def resume_training(resumed: ResumedTraining, console: Console) -> TrainingOutcome:
    """Go on with an interrupted or failed training from its last checkpoint.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the experiment stays as it is.
    """
    plan, experiment = resumed.plan, resumed.experiment
    with contextlib.closing(experiment), _session(plan, console) as session:
        check_same_data(plan.name, experiment, session.data)
        session.tracking.connect()
        state = experiment.log.state
        experiment.log.append(session_started(session, experiment, kind="training"))
        session.take(experiment)
        record = state.records[TRIAL]
        seen = record.evaluations[-1][0] if record.evaluations else 0
        say(console, f"the training goes on after {seen:,} samples" if seen else "the training starts again")
        return _train(plan, session, experiment, resumed.points)


@contextlib.contextmanager
def _session(plan: TrainPlan, console: Console) -> Iterator[Session]:
    """The stores' followers, Ray, the workers' resources and the prepared data."""
    began = time.time()
    with contextlib.ExitStack() as outer:
        tracking = outer.enter_context(Tracking(plan, console))
        with console.status("looking at the data and the MLflow store ..."):
            count_clips(plan.base)  # mistakes in the data show here, before anything starts
            if "mlflow" in plan.trackers:
                check_store(plan.tracking_uri)
        outer.callback(remove_scratch, plan.experiment_folder)  # after Ray
        outer.enter_context(ray_session(console, plan.request.address))
        stack = outer.enter_context(contextlib.ExitStack())
        resources = plan.resources()
        check_precision(plan, resources)
        print_train_plan(plan, console)
        say(console, describe_workers(plan, resources))
        data = prepare_features(plan.base, console)
        share = start_share(local_folders(plan.base, data))
        yield Session(console, plan, resources, data, share, tracking, stack, began)


def _train(
    plan: TrainPlan, session: Session, experiment: OpenExperiment, points: tuple[int, ...]
) -> TrainingOutcome:
    """The workers and what comes of them."""
    log, state = experiment.log, experiment.log.state
    session.say(f"{points[-1]:,} samples; evaluations at {', '.join(f'{point:,}' for point in points)}\n")
    log.append(TrialStarted(trial_id=TRIAL, folder=TRIAL))
    with TrainDisplay(
        session.console,
        budget=points[-1],
        baseline=state.baseline.rates["wer"] if state.baseline else 0.0,
        trouble=lambda: session.tracking.problem,
    ) as display:
        watch = TrainingWatch(log, ProgressLog(plan.folder), display, plan.request.max_failures)
        result = _fit(plan, session, watch, display)
    record = state.records[TRIAL]
    if result == "failed":
        log.append(
            TrialEnded(trial_id=TRIAL, status="failed", error=watch.error, samples_seen=record.samples_now)
        )
        (plan.folder / ERROR_FILE).write_text(f"{watch.error}\n", encoding="utf-8")
    elif result is not None and record.status == "running":
        log.append(TrialEnded(trial_id=TRIAL, status="completed", samples_seen=record.samples_now))
    finish(experiment, session.say, storage_option=plan.request.storage.option)
    return TrainingOutcome(plan, state, tracking_problem=session.tracking.finish(experiment))


def _fit(plan: TrainPlan, session: Session, watch: TrainingWatch, display: TrainDisplay) -> Any:
    """Ray Train's result; `"failed"` after a failure that was one too many, None after an interruption."""
    import ray
    from ray.train.v2.api.exceptions import TrainingFailedError

    mailbox = start_mailbox()
    reader = MailboxReader(mailbox, watch.receive, watch.flush_progress)
    reader.start()
    trainer = make_ray_trainer(
        plan.base,
        session.data,
        session.share,
        mailbox,
        session.resources,
        plan.experiment_folder,
        plan.request.max_failures,
    )
    fit = _Fit(trainer)
    try:
        result = fit.wait(lambda: reader.error)
    except KeyboardInterrupt:
        result = None
    except TrainingFailedError as error:
        result = "failed"
        failures = getattr(error, "worker_failures", None)
        text = root_failure(failures) if failures else str(error)
    finally:
        reader.stop()
        if reader.error is not None:
            display.event(f"what the workers said last was lost: {escape(str(reader.error))}")
    if result is None:
        ray.shutdown()  # else the workers would train on while the results are written
    if result == "failed" and watch.error is None:
        watch.receive(FAILURE + text, {}, time.time())
    return result


class _Fit(threading.Thread):
    """`TorchTrainer.fit` beside the main thread, where newer Ray would end the process on Ctrl-C."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(name="ray-train", daemon=True)
        self._trainer = trainer
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """The thread's life."""
        try:
            self._result = self._trainer.fit()
        except BaseException as error:  # noqa: BLE001 - raised again by wait
            self._error = error

    def wait(self, problem: Callable[[], Exception | None]) -> Any:
        """What `fit` returned, or its error raised; Ctrl-C, SIGTERM or a log that cannot be written end it."""
        # A shell that starts it in the background lets it ignore SIGINT, as which `ray_session` passes on SIGTERM.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while self.is_alive():
                self.join(0.5)
                broken = problem()
                if isinstance(broken, ExperimentError):
                    raise broken
        finally:
            signal.signal(signal.SIGINT, before)
        if self._error is not None:
            raise self._error
        return self._result
