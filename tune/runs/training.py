"""One training outside any search: its workers on Ray Train, and what they tell."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.markup import escape

from trainer.scoring.objectives import objective_value
from trainer.training.report import Decision, Kept
from tune.cluster.progress_channel import FAILED, ProgressReader
from tune.experiments.events import TrialEnded, TrialStarted
from tune.experiments.options import TRIAL
from tune.runs.callback import SAVE_SECONDS, Listener
from tune.runs.session import Session
from tune.runs.training_display import ERROR_FILE, TrainDisplay
from tune.search.records import Trial
from tune.util.errors import error_line
from tune.workers.ray_train import fit


def train_on_ray(session: Session) -> None:
    """The workers, until they have ended, failed too often or are interrupted; the log tells what came of them."""
    plan, log, state = session.plan, session.experiment.log, session.state
    points = session.experiment.settings.rungs
    record = state.records[TRIAL]
    display = TrainDisplay(
        session.console,
        record,
        budget=points[-1],
        baseline=objective_value(state.base_rates),
        trouble=lambda: session.tracking.problem,
    )
    watch = TrainingWatch(session, display)
    session.say(f"{points[-1]:,} samples; evaluations at {', '.join(f'{point:,}' for point in points)}\n")
    log.append(TrialStarted(trial_id=TRIAL, folder=TRIAL))
    with display:
        result = _fit(session, watch)
    if result == "failed":
        log.append(
            TrialEnded(
                trial_id=TRIAL,
                status="failed",
                error=watch.error,
                samples_seen=record.samples_now,
                epoch=record.epoch_now,
            )
        )
        (plan.folder / ERROR_FILE).write_text(f"{watch.error}\n", encoding="utf-8")
    elif result == "completed" and record.status == "running":
        log.append(TrialEnded(trial_id=TRIAL, status="completed", samples_seen=record.samples_now))


class TrainingWatch(Listener):
    """Takes in what workers and Ray Train's controller tell."""

    display: TrainDisplay

    def __init__(self, session: Session, display: TrainDisplay) -> None:
        super().__init__(session, session.state.records, display)
        self.record = self._records[TRIAL]
        self._failures, self._max_failures = 0, session.plan.options.max_failures
        self.error: str | None = None
        """The last failure, whole."""

    def called(self, trial_id: str) -> str:
        return "the training"

    def receive(self, trial_id: str, kind: str, content: dict[str, Any], timestamp: float) -> Any:
        """Take in one message; the answer where it is a question."""
        if kind == FAILED:
            return self.failed(content["report"])
        return super().receive(trial_id, kind, content, timestamp)

    def progress(self, trial_id: str, metrics: dict[str, float], timestamp: float) -> None:
        super().progress(trial_id, metrics, timestamp)
        self.display.update()

    def failed(self, report: str) -> None:
        """Take in a failure, after which the training goes on unless it is one too many."""
        self._failures += 1
        self.error = report
        self.record.progress = {}
        if self._failures > self._max_failures:
            return  # the summary tells of it
        self._recovered(self.record, error_line(report))
        self.display.restart()

    def evaluated(self, record: Trial, metrics: dict[str, Any]) -> Decision:
        """It goes on, unless it has diverged."""
        if metrics.get("diverged"):
            seen, epoch = int(metrics["samples_seen"]), record.epoch_now
            self._log.append(TrialEnded(trial_id=TRIAL, status="diverged", samples_seen=seen, epoch=epoch))
            return Decision(goes_on=False, keep=None)
        value = objective_value(metrics)
        is_best = record.would_be_best(value)
        keep: Kept | None = "all" if not metrics["finished"] else "weights" if is_best else None
        decision = self._decided(record, metrics, None, keep if math.isfinite(value) else None)
        if not math.isfinite(value):
            return decision
        best = ", best so far" if is_best else ""
        self.display.event(f"epoch {record.epoch:.2f}: WER {record.value:.2f} %{best}")
        self.display.update()
        return decision


def _fit(session: Session, watch: TrainingWatch) -> Literal["completed", "failed", "interrupted"]:
    """Train, in a process of its own that can be left at any moment: a thread of this one that waits in Ray's core
    crashes where Ray is shut down.

    Raises:
        Exception: what the driver itself came upon, such as a log that cannot be written; nobody answers the workers.
    """
    plan, channel = session.plan, session.channel
    reader = ProgressReader(channel, watch.receive, watch.flush_progress)
    reader.start()
    # A shell that starts it in the background lets it ignore SIGINT, as which `ray_session` passes on SIGTERM.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    failure, interrupted = None, False
    try:
        inputs, folder = session.inputs(plan.base), plan.experiment_folder
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(fit)
        training = remote.remote(inputs, channel, session.resources, folder, plan.options.max_failures)
        while not ray.wait([training], timeout=0.5)[0]:
            # Where it is Ray's, the workers know it too.
            if reader.error is not None and not isinstance(reader.error, ray.exceptions.RayError):
                raise reader.error
        failure = ray.get(training)
    except KeyboardInterrupt:
        interrupted = True
        watch.interrupt("interrupted")
        ends = time.monotonic() + SAVE_SECONDS
        with contextlib.suppress(KeyboardInterrupt):  # once more
            while watch.saving() and time.monotonic() < ends:
                time.sleep(0.1)
    finally:
        signal.signal(signal.SIGINT, before)
        reader.stop()
        if reader.error is not None:
            watch.display.event(f"the last messages of the workers were lost: {escape(str(reader.error))}")
    if interrupted:
        ray.shutdown()  # else the workers would train on while the results are written
        return "interrupted"
    if failure is not None and watch.error is None:
        watch.failed(failure)
    return "failed" if failure is not None else "completed"
