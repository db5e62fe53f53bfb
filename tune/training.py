"""One training outside any search, from its plan to its results: features, baseline, workers on Ray Train."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from tune.baseline import measure_baseline
from tune.cluster import check_precision, ray_session
from tune.databases import make_recorder, run_ended
from tune.display import say, short_path
from tune.errors import ExperimentError
from tune.experiment import (
    DROPPED_FILE,
    Session,
    check_shared_storage,
    new_folder,
)
from tune.features import prepare_features
from tune.mailbox import MailboxReader, start_mailbox
from tune.mlflow_store import check_store
from tune.mlflow_story import training_begins
from tune.search_state import SearchState
from tune.share import start_share
from tune.train_display import TrainDisplay, describe_workers, print_train_plan
from tune.train_messages import FAILURE, root_failure
from tune.train_results import TrainingOutcome, write_training_file
from tune.train_watch import TrainingWatch
from tune.train_workers import TRIAL, make_ray_trainer, remove_scratch
from tune.trainable import count_clips, evaluation_points, local_folders
from tune.upload import Uploader

if TYPE_CHECKING:
    from trainer.train import Evaluation
    from tune.mlflow_logging import MlflowRecorder
    from tune.train_plan import TrainPlan
    from tune.train_resume import ResumedTraining


def run_training(plan: TrainPlan, console: Console) -> TrainingOutcome:
    """Run the planned training; everything it leaves is in `plan.experiment_folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    with _session(plan, console) as session:
        data = session.data
        points = evaluation_points(plan.base, len(data.splits["train"]))
        with new_folder(plan), contextlib.ExitStack() as begun:
            state = SearchState(plan.folder)
            state.lock()
            check_shared_storage(plan)
            recorder = begun.enter_context(_new_run(plan, console))
            state.recorder = recorder
            if data.drops:
                data.write_dropped(plan.folder / DROPPED_FILE)
                say(console, f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
            baseline = measure_baseline(plan.base, session)
            write_training_file(plan, data, session.resources, points, baseline)
            session.stack.enter_context(begun.pop_all())
        rates = {f"baseline_{name}": rate for name, rate in baseline.rates().items()}
        recorder.log(None, rates, step=0)
        state.records.start(TRIAL, plan.trial_config, plan.base.effective_batch_size)
        return _train(plan, session, state, recorder, baseline)


def resume_training(resumed: ResumedTraining, console: Console) -> TrainingOutcome:
    """Go on with an interrupted or failed training from its last checkpoint.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the experiment stays as it is.
    """
    plan, state = resumed.plan, resumed.state
    with _session(plan, console) as session:
        clips = len(session.data.splits["train"])
        if clips != resumed.n_train:
            raise ExperimentError(
                f"--resume {plan.name}: the data has {clips:,} training clips now, the training began with "
                f"{resumed.n_train:,}; bring the old data back or start a new training"
            )
        recorder = session.stack.enter_context(_old_run(plan, state, console))
        state.recorder = recorder
        record = state.records[TRIAL]
        seen = record.evaluations[-1][0] if record.evaluations else 0
        say(console, f"the training goes on after {seen:,} samples" if seen else "the training starts again")
        record.samples_seen = seen
        return _train(plan, session, state, recorder, resumed.baseline)


@contextlib.contextmanager
def _session(plan: TrainPlan, console: Console) -> Iterator[Session]:
    """Ray, the workers' resources and the prepared data."""
    with console.status("looking at the data and the MLflow store ..."):
        count_clips(plan.base)  # mistakes in the data show here, before anything starts
        check_store(plan.tracking_uri)
    with contextlib.ExitStack() as after_ray, ray_session(console, plan.request.address):
        after_ray.callback(remove_scratch, plan.experiment_folder)
        with contextlib.ExitStack() as stack:
            resources = plan.resources()
            check_precision(plan, resources)
            print_train_plan(plan, console)
            say(console, describe_workers(plan, resources))
            data = prepare_features(plan.base, console)
            share = start_share(local_folders(plan.base, data))
            uploader = Uploader(plan.experiment_folder, lambda text: say(console, f"warning: {text}"))
            stack.callback(uploader.finish)
            yield Session(console, plan, resources, data, share, uploader, stack)


def _train(
    plan: TrainPlan, session: Session, state: SearchState, recorder: MlflowRecorder, baseline: Evaluation
) -> TrainingOutcome:
    """The workers and what comes of them."""
    state.save()
    session.uploader.start()
    points = evaluation_points(plan.base, len(session.data.splits["train"]))
    say(
        session.console,
        f"{points[-1]:,} samples; evaluations at {', '.join(f'{point:,}' for point in points)}\n",
    )
    with TrainDisplay(
        session.console, budget=points[-1], baseline=baseline.wer, trouble=lambda: recorder.problem
    ) as display:
        watch = TrainingWatch(state, recorder, display, plan.request.max_failures)
        result = _fit(plan, session, watch, display)
    outcome = TrainingOutcome.of(plan, state, baseline, result, seconds=time.monotonic() - session.started)
    outcome.finish(recorder)
    return outcome


def _fit(plan: TrainPlan, session: Session, watch: TrainingWatch, display: TrainDisplay) -> Any:
    """Ray Train's result; `"failed"` after a failure that was one too many, None after an interruption."""
    import ray
    from ray.train.v2.api.exceptions import TrainingFailedError

    mailbox = start_mailbox()
    reader = MailboxReader(mailbox, watch.receive)
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
        result = fit.wait()
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
    if result == "failed" and watch.record.error is None:
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

    def wait(self) -> Any:
        """What `fit` returned, or its error raised; Ctrl-C and SIGTERM end the waiting."""
        # A shell that starts it in the background lets it ignore SIGINT, as which `ray_session` passes on SIGTERM.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.join()
        finally:
            signal.signal(signal.SIGINT, before)
        if self._error is not None:
            raise self._error
        return self._result


@contextlib.contextmanager
def _new_run(plan: TrainPlan, console: Console) -> Iterator[MlflowRecorder]:
    """The open MLflow store with a run for the training."""
    recorder = make_recorder(plan)
    base = plan.base
    with console.status("opening the MLflow store ..."):
        recorder.start(
            params={**base.to_dict(), "effective_batch_size": base.effective_batch_size},
            # As a trial, so that the view of an experiment's trials shows it.
            tags={"role": "trial", "trial_id": TRIAL, "model": base.model, "data": base.data},
            description=training_begins(base),
            artifacts=[],
            compare=list(plan.trial_config),
        )
    with run_ended(recorder, console):
        yield recorder


@contextlib.contextmanager
def _old_run(plan: TrainPlan, state: SearchState, console: Console) -> Iterator[MlflowRecorder]:
    """The open MLflow store with the run of the training that goes on."""
    recorder = make_recorder(plan)
    with console.status("opening the MLflow store ..."):
        recorder.resume(str(state.parent_run_id), {})
    with run_ended(recorder, console):
        yield recorder
