"""One search from its plan to its results: baseline, trials, final round, the run that is exported."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer.scoring.objectives import objective_value
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import HeldOutMeasured
from tune.experiments.settings_file import write_search_file
from tune.runs.averages import measure_average
from tune.runs.baseline import in_worker, measure_baseline, measure_held_out, measure_untouched
from tune.runs.data import guard_config
from tune.runs.final_round import (
    choose_export,
    compare,
    plan_final_round,
    remove_dropped,
    set_aside_leftovers,
)
from tune.runs.finish import finish
from tune.runs.guards import judge_guards
from tune.runs.outcome import Outcome
from tune.runs.search_display import SearchDisplay
from tune.runs.session import Session, finite, sync_the_rest, target_of
from tune.runs.trials import TrialRunner
from tune.runs.uploader import Uploader
from tune.search.finalists import describe_repeats
from tune.search.scheduler import describe_rungs
from tune.tracking.sync import Sync
from tune.util.console import ProgressBar, say, say_notes, tell_of
from tune.workers.averages import measure_mean
from tune.workers.trainable import evaluate_checkpoint

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiments.plan import SearchPlan
    from tune.runs.resume import Resumed
    from tune.search.guards import Guard
    from tune.search.records import Records, TrialRecord
    from tune.search.searcher import EarlierTrial
    from tune.workers.averages import Measured


def run_search(plan: SearchPlan, console: Console) -> Outcome[SearchPlan]:
    """Run the planned search; everything it leaves is in `plan.experiment_folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    with Session.open(plan, console) as session:
        with session.new_experiment():
            measure_baseline(session)
            write_inputs(session)
            base, trial = settle(session)
            session.begin()
        return SearchStages(session, base, trial).run()


def resume_search(resumed: Resumed[SearchPlan], console: Console) -> Outcome[SearchPlan]:
    """Go on with an interrupted search: trials that ended are kept, the others go on from their checkpoints.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the experiment stays as it is.
    """
    experiment = resumed.experiment
    with (
        contextlib.closing(experiment),
        Session.open(resumed.plan, console, resumed=True) as session,
    ):
        session.go_on(experiment)
        ended = sum(record.status != "running" for record in session.state.records.all())
        session.say(f"{ended} of {session.plan.request.trials} trials have ended; the search goes on")
        remove_dropped(experiment, session.say)
        set_aside_leftovers(experiment, session.say)
        base = session.plan.base.replace(evaluate_at=resumed.settings.rungs)
        trial = base if resumed.settings.trials_full_window else base.replace(full_window_evaluation=False)
        return SearchStages(session, base, trial).run()


def finish_search(resumed: Resumed[SearchPlan], console: Console) -> Outcome[SearchPlan]:
    """Do what a killed process had left: nothing is trained any more."""
    experiment, plan = resumed.experiment, resumed.plan
    tell_of(console, plan.base.task)
    experiment.log.stand_still()
    with contextlib.closing(experiment), Sync(target_of(plan)) as tracking:
        say(console, "all trials have ended; what was left is finished now")
        finish(experiment, lambda text: say(console, text), storage_option=plan.request.storage.option)
        uploader = Uploader(experiment, lambda text: say(console, f"warning: {text}"))
        uploader.start()
        tracking.start()
        tracking.wait()
        problem = sync_the_rest(tracking, experiment, console)
        uploader.finish()
        return Outcome(plan, experiment.log.state, problem)


def write_inputs(session: Session[SearchPlan]) -> None:
    """The user's space, and what is taken from another experiment, into the experiment's folder."""
    plan = session.plan
    (plan.folder / "space.yaml").write_text(plan.space.source_text, encoding="utf-8")
    if plan.warm_start:
        plan.warm_start.save(plan.folder)
        say_notes(session.console, plan.warm_start.notes)


def settle(session: Session[SearchPlan]) -> tuple[TrainConfig, TrainConfig]:
    """The settings of the final round, with the rungs, and those of the trials; written to `experiment.yaml`."""
    plan = session.plan
    base = plan.base.replace(evaluate_at=plan.rungs(session.data.train.epoch_samples))
    whole = plan.whole_window_trials
    write_search_file(plan, base, session.data, session.resources, full_window=whole)
    return base, base if whole else base.replace(full_window_evaluation=False)


@dataclasses.dataclass(frozen=True)
class SearchStages:
    """What follows the beginning of a search; each stage goes on from what the log says."""

    session: Session[SearchPlan]
    base: TrainConfig
    """Settings of the final round, the rungs among them."""
    trial: TrainConfig
    """Those of the trials."""

    def run(self) -> Outcome[SearchPlan]:
        """All of them, one after the other."""
        self.run_trials()
        self.run_final_round()
        self.measure_held_out()
        return self.session.finish()

    def run_trials(self) -> None:
        """All trials, until they or a budget end."""
        self._say_what_a_trial_is()
        trials = self.session.plan.request.trials
        with self._display(self.session.state.records, trials, "trials") as display:
            runner = TrialRunner(self.session, self.trial, self._evaluation_ratio(), self._trial_clips)
            runner.run_trials(self._earlier(), display)

    def run_final_round(self) -> None:
        """The repeats of the best trials, and the choice of what is exported."""
        session = self.session
        planned = plan_final_round(session.experiment, session.plan.base.seed)
        if planned is not None and session.state.open_repeats:
            session.say(f"\n{describe_repeats(planned.repeats)}\n")
            with self._display(session.state.repeats, len(planned.repeats), "repeats") as display:
                TrialRunner(session, self.base, 1.0).run_repeats(planned, display)
        self.measure_models()
        choose_export(session.experiment, session.say)

    def measure_models(self) -> None:
        """The mean of the winner's repeats, then what could be exported on the guards."""
        session, state = self.session, self.session.state
        if not compare(session.experiment) or not state.something_is_measured:
            return
        with ProgressBar(session.console, "measuring") as bar:
            bar.show("the mean of the winner's repeats", 0, 1)
            measure_average(session.experiment, self._mean, session.say)
            judge_guards(session.experiment, self._on_guard, session.say, bar.show)

    def _mean(self, config: dict[str, Any], checkpoints: Sequence[str], name: str, most: float) -> Measured:
        inputs = self.session.inputs(self.base).with_settings(config)
        files = CheckpointFiles(self.session.experiment.folder)
        return in_worker(self.session, measure_mean, inputs, files, checkpoints, name, most)

    def _on_guard(self, guard: Guard, run: TrialRecord | None) -> tuple[Evaluation, str]:
        session, config = self.session, guard_config(self.base, guard)
        digest = session.guards[guard.data].splits["validation"].digest()
        if run is None:
            inputs = session.inputs(config, guard=guard.data)
            return measure_untouched(session, inputs, "validation", f"on {guard.data}"), digest
        inputs = session.inputs(config.replace(**run.config), guard=guard.data)
        files = CheckpointFiles(session.experiment.folder)
        found = in_worker(session, evaluate_checkpoint, inputs, files, str(run.checkpoint), "validation")
        return found, digest

    def measure_held_out(self) -> None:
        """The chosen run on the test split, which chose nothing, where there is one."""
        session, state = self.session, self.session.state
        chosen = state.chosen.run if state.chosen else None
        known = state.held_out is not None and state.held_out.run == chosen
        if chosen is None or known or "test" not in session.data.splits or state.best() is None:
            return
        run = state.run(chosen)
        found = measure_held_out(session, self.base.replace(**run.config), run)
        if found is not None:
            rates, baseline = (finite(each.rates) for each in found)
            session.experiment.log.append(
                HeldOutMeasured(
                    run=chosen,
                    rates=rates,
                    baseline=baseline,
                    sources=found[0].sources,
                    baseline_sources=found[1].sources,
                )
            )

    def _earlier(self) -> list[EarlierTrial]:
        """Trials of another experiment to learn from."""
        warm_start = self.session.plan.warm_start
        if warm_start is None:
            return []
        baseline = objective_value(self.session.state.trial_base_rates)
        return warm_start.adapted(baseline, (self.base.evaluate_at or (1,))[-1])

    @property
    def _trial_clips(self) -> int | None:
        """Validation clips that trials measure; None for all."""
        baseline = self.session.state.baseline
        return baseline.trial_clips if baseline else None

    def _evaluation_ratio(self) -> float:
        """How much longer an evaluation of a repeat takes: of all clips, and on whole windows."""
        from trainer.model.whisper import load_model_config
        from trainer.training.window import mean_evaluated_frames

        every = len(self.session.data.splits["validation"])
        ratio = every / (self._trial_clips or every)
        if self.trial == self.base:
            return ratio
        full = 2 * int(load_model_config(self.base).max_source_positions)
        return ratio * full / mean_evaluated_frames(self.trial, self.session.data, full)

    def _display(self, records: Records, trials: int, noun: str) -> SearchDisplay:
        state = self.session.state
        whole, same = objective_value(state.base_rates), objective_value(state.trial_base_rates)
        baseline = f"baseline {whole:.2f} %"
        if records is state.records and same != whole:
            baseline = f"baseline {same:.2f} % as trials are measured"
        return SearchDisplay(
            self.session.console,
            records,
            n_trials=trials,
            budget=(self.base.evaluate_at or (1,))[-1],
            baseline=baseline,
            trouble=lambda: self.session.tracking.problem,
            noun=noun,
        )

    def _say_what_a_trial_is(self) -> None:
        """Budget, rungs and resources of a trial, on the screen."""
        session, resources, rungs = self.session, self.session.resources, self.base.evaluate_at or ()
        each = f"{resources.gpus:g} GPU and {resources.cpus:g} CPU each"
        if resources.workers > 1:
            each += f" for {resources.workers} workers"
        session.say(
            f"each trial sees up to {rungs[-1]:,} samples; "
            f"{describe_rungs(rungs, session.plan.space.scheduler.rungs)}; "
            f"{resources.concurrent} at a time with {each}"
        )
        if self._trial_clips:
            every = len(session.data.splits["validation"])
            session.say(
                f"trials measure {self._trial_clips:,} of {every:,} validation clips, always the same, finalists all "
                f"(--set max_eval_clips={every}: trials too)"
            )
        session.console.print()
