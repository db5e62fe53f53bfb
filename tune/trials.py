"""The trials of a search, through Ray Tune."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tune.cluster import TrialResources, alive_nodes, joined_address
from tune.decisions import NEVER_STOP, Judge
from tune.experiment_folder import TRIALS_FOLDER
from tune.finalists import make_repeater
from tune.head_watch import head_watched
from tune.mailbox import MailboxReader, start_mailbox
from tune.scheduler import TRIAL_ID, make_scheduler
from tune.search_callback import SearchCallback
from tune.searcher import make_searcher
from tune.trainable import make_trainable

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.prepared import PreparedData
    from tune.display import SearchDisplay
    from tune.limits import Limits
    from tune.mlflow_logging import MlflowRecorder
    from tune.plan import SearchPlan
    from tune.records import Records
    from tune.search_state import SearchState
    from tune.searcher import EarlierTrial, Mirror

_COUNT_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRunner:
    """What all trainings of a search have in common: its trials, and the repeats of the best of them."""

    plan: SearchPlan
    base: TrainConfig
    data: PreparedData
    resources: TrialResources
    share: Any
    state: SearchState
    recorder: MlflowRecorder
    limits: Limits

    def run_trials(
        self, baseline: float, mirror: Mirror | None, earlier: Sequence[EarlierTrial], display: SearchDisplay
    ) -> None:
        """Run all trials that have not ended yet; the state holds what comes of them.

        Where finalists follow, which are measured as the model will be used, trials are measured with the window
        that they train with.
        """
        plan, records = self.plan, self.state.records
        searcher = make_searcher(
            plan.space,
            experiment=plan.name,
            seed=plan.request.seed,
            records=records,
            capacity=self._capacity,
            mirror=mirror,
            earlier=earlier,
        )
        judge = Judge(plan.space.scheduler, self.base.evaluate_at or (), records, baseline)
        left = plan.request.trials - sum(record.status != "running" for record in records.all())
        base = self.base
        if plan.request.n_finalists and "full_window_evaluation" not in plan.space.fixed:
            base = base.replace(full_window_evaluation=False)
        dataclasses.replace(self, base=base)._run(left, records, searcher, judge, display)
        if searcher.exhausted:
            self.limits.exhausted()

    def run_repeats(self, settings: dict[str, dict[str, Any]], display: SearchDisplay) -> None:
        """Run the repeats that have not ended yet; none is stopped early."""
        records = self.state.repeats
        searcher = make_repeater(settings, records, self._capacity)
        judge = Judge(NEVER_STOP, self.base.evaluate_at or (), records)
        left = sum(name not in records or records[name].status == "running" for name in settings)
        self._run(left, records, searcher, judge, display)

    def _run(self, left: int, records: Records, searcher: Any, judge: Judge, display: SearchDisplay) -> None:
        import ray.tune

        if not left:
            return
        plan, state = self.plan, self.state
        remote = plan.experiment_folder.remote
        if remote:
            # Ray tells in a traceback what the uploader tells in a line.
            logging.getLogger("ray.train._internal.storage").setLevel(logging.CRITICAL)
        mailbox = start_mailbox()
        suffix = state.folder_suffix  # Ray pickles the functions that it is given, which the state cannot be
        callback = SearchCallback(
            self.base, plan.experiment_folder, state, records, judge, self.recorder, display
        )
        tuner = ray.tune.Tuner(
            make_trainable(
                self.base,
                self.data,
                mailbox,
                self.resources,
                self.share,
                state.starts(plan.experiment_folder),
            ),
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
                stop=_make_stopper(self.limits),
                failure_config=ray.tune.FailureConfig(max_failures=plan.request.max_failures),
                verbose=0,
            ),
        )
        reader = MailboxReader(mailbox, callback.progress)
        reader.start()
        advice = f"the search goes on from where it was with {plan.resume_command}"
        try:
            with head_watched(advice, own=joined_address(plan.request.address) == "local"):
                tuner.fit()
        except (
            ray.tune.TuneError
        ):  # Ray's wrapping, with the traceback as its text, of whatever a callback raises
            if state.problem is None:
                raise
            raise state.problem from None
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


def _make_stopper(limits: Limits) -> Any:
    """Ends the whole search, for Ray, once a limit is reached."""
    import ray.tune

    class LimitsStopper(ray.tune.Stopper):
        """See `_make_stopper`."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return limits.reached() is not None

        def __reduce__(self) -> tuple[Any, ...]:
            """A word in its place: Ray pickles the stopper into files that are never read."""
            return str, ("see state.json",)

    return LimitsStopper()


def _capacity(resources: TrialResources, most: int | None) -> Callable[[], int]:
    """Trials that the cluster can run now; nodes are counted anew every few seconds, as they come and go."""
    counted: tuple[float, int] = (-_COUNT_SECONDS, 0)

    def capacity() -> int:
        nonlocal counted
        if time.monotonic() - counted[0] >= _COUNT_SECONDS:
            counted = time.monotonic(), resources.fitting(alive_nodes())
        return max(1, min(counted[1], most or counted[1]))

    return capacity
