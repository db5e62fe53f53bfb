"""The trials of a search, through Ray Tune."""

from __future__ import annotations

import dataclasses
import functools
import logging
import signal
import time
from collections.abc import Callable

import ray.tune
from rich.markup import escape

from trainer.config import TrainConfig
from trainer.scoring.objectives import objective_value
from tune.cluster.progress_channel import ProgressReader
from tune.cluster.session import alive_nodes, head_watched, joined_address
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import CutShort
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.results import clips_of
from tune.runs.callback import SearchCallback
from tune.runs.ray_tune import RaySearcher, RayStopper
from tune.runs.search_display import SearchDisplay
from tune.runs.session import Session
from tune.search.budgets import Spent, final_round_cost, reached
from tune.search.finalists import USUAL_NOISE, choose_finalists, objective_interval
from tune.search.scheduler import NEVER_STOP, TRIAL_ID, Judge, losses_compare
from tune.search.searcher import Repeater, Searcher, Source
from tune.util.errors import ResourceError, error_line
from tune.workers.trainable import make_trainable

_COUNT_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class TrialRunner:
    """Runs trainings of a search through Ray Tune: its trials, and the repeats of the best of them."""

    session: Session
    config: TrainConfig
    """Of these trainings, but for the settings of each."""
    window_ratio: float
    """How much longer an evaluation takes in the final round than in a trial."""
    eval_clips: int | None = None
    """Validation clips that these trainings measure; None for all."""
    _upper_ends: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """By the checkpoint."""

    def run_trials(self, display: SearchDisplay) -> None:
        """Run all trials that have not ended yet; the log tells what comes of them, and what ended them."""
        plan, log, state = self.session.plan, self.session.experiment.log, self.session.state
        records = state.records
        rates, rungs = state.trial_base_rates, self.session.experiment.settings.rungs
        baseline = objective_value(rates)
        space, shared = plan.space, self.session.experiment.shared
        judge = Judge(
            space.scheduler,
            rungs,
            records,
            baseline,
            rates.get("loss"),
            compare_losses=losses_compare(self.config, space.ranges, records),
            kept=lambda record: space.point_of(record.config, shared) == space.try_first[0],
        )
        left = plan.options.trials - sum(record.status != "running" for record in records.all())
        searcher = None
        if left:
            callback = SearchCallback(self.config, self.session, records, judge, display)
            searcher = Searcher(
                space,
                seed=plan.options.seed,
                records=records,
                capacity=self._capacity,
                proposed=callback.proposed,
                earlier=[trial for each in plan.warm_starts for trial in each.adapted(baseline, rungs[-1])],
                shared=shared,
            )
            self._run(left, callback, searcher, self.trials_over)
        if not state.trials_over and searcher is not None and searcher.exhausted and not records.running():
            text = f"all {len(searcher.trials())} different settings of the space were tried"
            log.append(CutShort(reason="space", text=text))

    def run_repeats(self, display: SearchDisplay) -> None:
        """Run the repeats that are left, none stopped early; the log tells what comes of them, and what cut them."""
        state, records = self.session.state, self.session.state.repeats
        judge = Judge(NEVER_STOP, self.config.evaluate_at or (), records)
        callback = SearchCallback(self.config, self.session, records, judge, display)
        searcher = Repeater(state.wanted_repeats, records, self._capacity, callback.proposed)
        self._run(len(state.open_repeats), callback, searcher, self.final_round_cut)

    def trials_over(self, now: float) -> CutShort | None:
        """What ends the trials, with the finalists' share kept back; `now` in seconds since the epoch."""
        options, state = self.session.plan.options, self.session.state
        # Nothing is spared any more, and a final round may follow.
        if state.all_ended and state.records.best():
            return None
        runs = options.n_finalists * options.repeats
        slots = self.session.resources.concurrent
        seconds, hours = final_round_cost(
            state.records, runs, slots, self.window_ratio, options.measured_after
        )
        spent = self._spent(now, reserved_seconds=seconds, reserved_hours=hours)
        upper_end = self._upper_end() if options.budgets.target_wer is not None else None
        end = reached(options.budgets, spent, state.records, state.repeats, upper_end=upper_end)
        return CutShort(reason=end.reason, text=end.text) if end else None

    def _upper_end(self) -> float | None:
        """Of the 95 % interval of the best completed trial's objective, in percent; None where it is not known."""
        best = next(iter(choose_finalists(self.session.state.records, 1)), None)
        if best is None or not best.checkpoint:
            return None
        if best.checkpoint not in self._upper_ends:  # asked twice a second
            clips = clips_of(CheckpointFiles(self.session.experiment.folder), best.checkpoint)
            if clips is None:  # now, perhaps not later: the store may be another machine
                return None
            interval = objective_interval([clips], USUAL_NOISE)
            self._upper_ends[best.checkpoint] = None if interval is None else interval[1]
        return self._upper_ends[best.checkpoint]

    def final_round_cut(self, now: float) -> CutShort | None:
        """What cuts the final round short: nothing is kept back any more; plateau and target are for the trials."""
        state = self.session.state
        if not state.open_repeats:
            return None
        budgets = dataclasses.replace(self.session.plan.options.budgets, plateau_trials=None)
        end = reached(budgets, self._spent(now), state.records, state.repeats, final_round=True)
        return CutShort(final_round=True, reason=end.reason, text=end.text) if end else None

    def _spent(self, now: float, **reserved: float) -> Spent:
        state = self.session.state
        return Spent(
            seconds=state.seconds_at(now),
            gpus_per_trial=self.session.resources.gpus,
            session=state.session.session if state.session else 1,
            plateau_since=state.plateau_since,
            measured_hours=state.measured_seconds / 3600,
            **reserved,
        )

    def _run(
        self,
        left: int,
        callback: SearchCallback,
        source: Source,
        look: Callable[[float], CutShort | None],
    ) -> None:
        if not left:
            return
        session, display = self.session, callback.display
        plan, experiment = session.plan, session.experiment
        remote = plan.experiment_folder.remote
        if remote:
            # Ray tells in a traceback what the uploader tells in a line.
            logging.getLogger("ray.train._internal.storage").setLevel(logging.CRITICAL)

        def every_second() -> None:
            stopper.react()
            callback.flush_progress()

        reader = ProgressReader(session.channel, callback.receive, every_second)
        callback.fetch = reader.fetch
        stopper = RayStopper(
            experiment.log,
            look,
            saving=callback.saving,
            problem=lambda: reader.error or experiment.problem,
            save=callback.interrupt,
        )
        # Another name in each session, as Ray counts anew. Ray pickles the function, which the log cannot be.
        suffix = folder_suffix(experiment)
        tuner = ray.tune.Tuner(
            make_trainable(
                dataclasses.replace(session.inputs(self.config), eval_clips=self.eval_clips),
                session.channel,
                session.resources,
                CheckpointFiles(experiment.folder),
            ),
            tune_config=ray.tune.TuneConfig(
                num_samples=left,
                # No scheduler of ours: a trial reports to the driver, saves what is wanted of it, and ends by itself.
                search_alg=RaySearcher(source, lambda: stopper.over, reader.fetch),
                # With several workers a trial's process holds nothing worth keeping: they are new each time. DeepSpeed
                # keeps the process group of the trial before, which has been left.
                reuse_actors=self.config.deepspeed is None,
                trial_name_creator=lambda trial: str(trial.config[TRIAL_ID]),
                trial_dirname_creator=lambda trial: f"{trial.config[TRIAL_ID]}{suffix}",
            ),
            run_config=ray.tune.RunConfig(
                name=TRIALS_FOLDER,
                **plan.experiment_folder.ray_storage(),
                callbacks=[callback],
                stop=stopper,
                failure_config=ray.tune.FailureConfig(max_failures=plan.options.max_failures),
                verbose=0,
            ),
        )
        reader.start()
        before = signal.signal(signal.SIGINT, stopper.interrupt)
        advice = f"the search goes on from where it was with {plan.resume_command}"
        try:
            with head_watched(advice, own=joined_address(plan.address) == "local"):
                tuner.fit()
        except (
            ray.tune.TuneError
        ):  # Ray's wrapping, with the traceback as its text, of whatever a callback raises
            problem = experiment.problem
            if problem is None:
                raise
            raise problem from None
        except RuntimeError as error:  # Tune takes such an end of a process for no trial's failure (Ray 2.47)
            if not isinstance(error.__cause__, ray.exceptions.OutOfMemoryError):
                raise
            raise ResourceError(f"{error_line(str(error))}; {advice}") from error
        except OSError as error:  # in the end Ray reads the storage once more
            if not remote:
                raise
            display.event(
                f"[yellow]the storage cannot be reached now[/]: {escape(str(error).splitlines()[0])}"
            )
        finally:
            signal.signal(signal.SIGINT, before)
            reader.stop()
            if reader.error is not None:
                display.event(f"the last messages of the trials were lost: {escape(str(reader.error))}")
        if experiment.problem is not None:
            raise experiment.problem
        if reader.error is not None and not isinstance(reader.error, ray.exceptions.RayError):
            raise reader.error

    @functools.cached_property
    def _capacity(self) -> Callable[[], int]:
        """Trials that the cluster can run now; nodes are counted anew every few seconds, as they come and go."""
        most, counted = self.session.plan.options.max_concurrent, (-_COUNT_SECONDS, 0)

        def capacity() -> int:
            nonlocal counted
            if time.monotonic() - counted[0] >= _COUNT_SECONDS:
                counted = time.monotonic(), self.session.resources.fitting(alive_nodes())
            return max(1, min(counted[1], most or counted[1]))

        return capacity


def folder_suffix(experiment: OpenExperiment) -> str:
    """What follows a trial's number in its folder's name: another for each session, as Ray counts anew."""
    session = experiment.state.session
    return "" if session is None or session.session == 1 else f"-{session.session}"
