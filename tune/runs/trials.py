"""The trials of a search, through Ray Tune."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tune.cluster.head_watch import head_watched
from tune.cluster.progress_channel import MailboxReader, start_mailbox
from tune.cluster.resources import TrialResources
from tune.cluster.session import alive_nodes, joined_address
from tune.experiments.events import FinalRoundCut, FinalRoundPlanned, TrialsOver
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.log import ExperimentLog, ProgressLog
from tune.runs.callback import SearchCallback
from tune.search.budgets import Spent, final_round_cost, reached
from tune.search.finalists import make_repeater
from tune.search.scheduler import NEVER_STOP, TRIAL_ID, Judge, make_scheduler
from tune.search.searcher import make_searcher
from tune.workers.trainable import make_trainable

if TYPE_CHECKING:
    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import SearchPlan
    from tune.runs.search_display import SearchDisplay
    from tune.search.budgets import End
    from tune.search.records import Records
    from tune.search.searcher import EarlierTrial
    from tune.workers.inputs import TrialInputs

_COUNT_SECONDS = 2.0
_BUDGET_SECONDS = 0.5
"""Between two looks at the clock; budgets are looked at after each event as well."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRunner:
    """What all trainings of a search have in common: its trials, and the repeats of the best of them."""

    plan: SearchPlan
    inputs: TrialInputs
    n_train: int
    """Training clips."""
    resources: TrialResources
    experiment: OpenExperiment
    window_ratio: float
    """How much longer an evaluation takes in the final round than in a trial."""

    def run_trials(self, earlier: Sequence[EarlierTrial], display: SearchDisplay) -> None:
        """Run all trials that have not ended yet; the log tells what comes of them, and what ended them."""
        from trainer.train import budget_samples

        plan, log = self.plan, self.experiment.log
        state = log.state
        records = state.records
        rates = state.baseline.rates if state.baseline else {}
        rungs = self.inputs.config.evaluate_at or ()
        judge = Judge(plan.space.scheduler, rungs, records, rates.get("wer"), rates.get("loss"))
        left = plan.request.trials - sum(record.status != "running" for record in records.all())
        searcher = None
        if left:
            callback = self._callback(records, judge, display)
            searcher = make_searcher(
                plan.space,
                experiment=plan.name,
                seed=plan.request.seed,
                records=records,
                capacity=self._capacity,
                proposed=callback.proposed,
                earlier=earlier,
                budget=lambda config: budget_samples(self.inputs.config.replace(**config), self.n_train),
            )
            self._run(left, callback, searcher, BudgetStopper(log, self._trials_end, self._trials_over))
        if state.over is None and state.all_ended:
            log.append(TrialsOver())
        elif state.over is None and searcher is not None and searcher.exhausted and not records.running():
            text = f"the space has no settings beyond the {len(records)} that were tried"
            log.append(TrialsOver(reason="space", text=text))

    def run_repeats(self, planned: FinalRoundPlanned, display: SearchDisplay) -> None:
        """Run the repeats that are left, none stopped early; the log tells what comes of them, and what cut them."""
        records = self.experiment.log.state.repeats
        judge = Judge(NEVER_STOP, self.inputs.config.evaluate_at or (), records)
        callback = self._callback(records, judge, display)
        left = self.experiment.log.state.open_repeats
        settings = {name: planned.repeats[name] for name in left}
        searcher = make_repeater(settings, records, self._capacity, callback.proposed)
        stopper = BudgetStopper(self.experiment.log, self._final_round_end, self._final_round_cut)
        self._run(len(left), callback, searcher, stopper)

    def _trials_end(self, now: float) -> End | None:
        """What ends the trials, with the finalists' share kept back."""
        request, state = self.plan.request, self.experiment.log.state
        seconds, hours = final_round_cost(
            state.records, request.n_finalists * request.repeats, self.resources.concurrent, self.window_ratio
        )
        spent = self._spent(now, reserved_seconds=seconds, reserved_hours=hours)
        return reached(request.budgets, spent, state.records, state.repeats)

    def _trials_over(self, end: End) -> None:
        """The log knows it before Ray does."""
        self.experiment.log.append(TrialsOver(reason=end.reason, text=end.text))

    def _final_round_end(self, now: float) -> End | None:
        """What cuts the final round short: nothing is kept back any more, and a plateau was for the trials."""
        state = self.experiment.log.state
        budgets = dataclasses.replace(self.plan.request.budgets, plateau_trials=None)
        return reached(budgets, self._spent(now), state.records, state.repeats, final_round=True)

    def _final_round_cut(self, end: End) -> None:
        """The log knows it before Ray does."""
        self.experiment.log.append(FinalRoundCut(reason=end.reason, text=end.text))

    def _spent(self, now: float, **reserved: float) -> Spent:
        state = self.experiment.log.state
        return Spent(
            seconds=state.seconds_at(now),
            gpus_per_trial=self.resources.gpus,
            session=state.session.session if state.session else 1,
            plateau_since=state.plateau_since,
            **reserved,
        )

    def _callback(self, records: Records, judge: Judge, display: SearchDisplay) -> SearchCallback:
        progress = ProgressLog(self.experiment.folder.path)
        return SearchCallback(self.inputs.config, self.experiment, records, judge, progress, display)

    def _run(self, left: int, callback: SearchCallback, searcher: Any, stopper: BudgetStopper) -> None:
        import ray.tune

        if not left:
            return
        plan, experiment, display = self.plan, self.experiment, callback.display
        remote = plan.experiment_folder.remote
        if remote:
            # Ray tells in a traceback what the uploader tells in a line.
            logging.getLogger("ray.train._internal.storage").setLevel(logging.CRITICAL)
        mailbox = start_mailbox()
        # Another name in each session, as Ray counts anew. Ray pickles the function, which the log cannot be.
        suffix = folder_suffix(experiment)
        tuner = ray.tune.Tuner(
            make_trainable(self.inputs, mailbox, self.resources, starts(experiment)),
            tune_config=ray.tune.TuneConfig(
                num_samples=left,
                search_alg=searcher,
                scheduler=make_scheduler(callback.evaluated),
                # With several workers a trial's process holds nothing worth keeping: they are new each time.
                reuse_actors=True,
                trial_name_creator=lambda trial: str(trial.config[TRIAL_ID]),
                trial_dirname_creator=lambda trial: f"{trial.config[TRIAL_ID]}{suffix}",
            ),
            run_config=ray.tune.RunConfig(
                name=TRIALS_FOLDER,
                **plan.experiment_folder.ray_storage(),
                callbacks=[callback],
                stop=ray_stopper(stopper),
                failure_config=ray.tune.FailureConfig(max_failures=plan.request.max_failures),
                verbose=0,
            ),
        )
        reader = MailboxReader(mailbox, callback.progress, callback.flush_progress)
        reader.start()
        advice = f"the search goes on from where it was with {plan.resume_command}"
        try:
            with head_watched(advice, own=joined_address(plan.request.address) == "local"):
                tuner.fit()
        except (
            ray.tune.TuneError
        ):  # Ray's wrapping, with the traceback as its text, of whatever a callback raises
            problem = experiment.problem
            if problem is None:
                raise
            raise problem from None
        except OSError as error:  # in the end Ray reads the storage once more
            if not remote:
                raise
            display.event(f"[yellow]the storage is away now[/]: {escape(str(error).splitlines()[0])}")
        finally:
            reader.stop()
            if reader.error is not None:
                display.event(f"loss and learning rate between rungs were lost: {escape(str(reader.error))}")

    @functools.cached_property
    def _capacity(self) -> Callable[[], int]:
        return _capacity(self.resources, self.plan.request.max_concurrent)


class BudgetStopper:
    """Whether the search shall end now, looked at after each event and twice a second."""

    def __init__(
        self,
        log: ExperimentLog,
        look: Callable[[float], End | None],
        found: Callable[[End], None] = lambda end: None,
    ) -> None:
        """`look` takes seconds since the epoch; `found` is called once, with what it found."""
        self._log, self._look, self._found = log, look, found
        self._looked: tuple[int, float] = (-1, 0.0)
        self.end: End | None = None

    def over(self) -> bool:
        """Look, unless nothing has happened since the last time; what was once found stays."""
        now = time.time()
        if self.end is None and (
            self._looked[0] != self._log.state.events or abs(now - self._looked[1]) >= _BUDGET_SECONDS
        ):
            self._looked = self._log.state.events, now
            self.end = self._look(now)
            if self.end is not None:
                self._found(self.end)
        return self.end is not None


def ray_stopper(stopper: BudgetStopper) -> Any:
    """It as Ray asks for it."""
    import ray.tune

    class SearchStopper(ray.tune.Stopper):
        """See `BudgetStopper`."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return stopper.over()

        def __reduce__(self) -> tuple[Any, ...]:
            """A word in its place: Ray pickles the stopper into files that are never read."""
            return str, ("see events.jsonl",)

    return SearchStopper()


def folder_suffix(experiment: OpenExperiment) -> str:
    """What follows a trial's number in its folder's name: another for each session, as Ray counts anew."""
    session = experiment.log.state.session
    return "" if session is None or session.session == 1 else f"-{session.session}"


def starts(experiment: OpenExperiment) -> dict[str, list[Any]]:
    """Ray checkpoints from which the runs that have not ended go on, the last one first."""
    import ray.tune

    storage = experiment.folder.ray_storage()
    return {
        run.trial_id: [
            ray.tune.Checkpoint(
                f"{storage['storage_path']}/{path}", filesystem=storage.get("storage_filesystem")
            )
            for path in run.checkpoints
        ]
        for run in experiment.log.state.runs
        if run.status == "running"
    }


def _capacity(resources: TrialResources, most: int | None) -> Callable[[], int]:
    """Trials that the cluster can run now; nodes are counted anew every few seconds, as they come and go."""
    counted: tuple[float, int] = (-_COUNT_SECONDS, 0)

    def capacity() -> int:
        nonlocal counted
        if time.monotonic() - counted[0] >= _COUNT_SECONDS:
            counted = time.monotonic(), resources.fitting(alive_nodes())
        return max(1, min(counted[1], most or counted[1]))

    return capacity
