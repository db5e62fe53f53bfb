"""A search, or a single training, from its plan to its results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from trainer.config import TrainConfig
from trainer.model.pretrained import load_model_config
from trainer.scoring.objectives import objective_value
from trainer.scoring.part import chosen_clips
from trainer.scoring.translation import TRANSLATE
from trainer.train import Evaluation, plan_batches
from trainer.training.window import mean_evaluated_frames
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import HeldOutMeasured, TrialProposed
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.options import TRIAL
from tune.runs.baseline import in_worker, measure_base_model, measure_baseline, measure_held_out
from tune.runs.candidates import judge_guards, measure_average
from tune.runs.data import guard_config, what_clips_show
from tune.runs.final_round import (
    choose_export,
    compare,
    remove_dropped,
    remove_unnamed_checkpoints,
)
from tune.runs.finish import finish
from tune.runs.outcome import Outcome
from tune.runs.plan import Plan
from tune.runs.search_display import SearchDisplay
from tune.runs.session import Session, finite, sync_the_rest, target_of
from tune.runs.training import train_on_ray
from tune.runs.trials import TrialRunner
from tune.runs.uploader import Uploader
from tune.search.finalists import describe_repeats
from tune.search.guards import Guard
from tune.search.records import Records, Trial
from tune.search.scheduler import describe_rungs
from tune.tracking.sync import Sync
from tune.util.console import ProgressBar, say, set_task
from tune.workers.averages import Measured, measure_mean
from tune.workers.ray_train import scratch_removed
from tune.workers.trainable import evaluate_checkpoint


def run(plan: Plan, console: Console, experiment: OpenExperiment | None = None) -> Outcome:
    """Run what is planned; everything it leaves is in `plan.experiment_folder`.

    Args:
        experiment: one that was interrupted: trials that ended are kept, the others go on from their checkpoints.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; a new experiment leaves nothing behind,
            another stays as it is.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_resume_shown(plan, console))
        if experiment is not None:
            stack.callback(experiment.close)
        if plan.is_training:
            stack.enter_context(scratch_removed(plan.experiment_folder))
        session = stack.enter_context(Session.open(plan, console, resumed=experiment is not None))
        if experiment is None:
            begin(session)
        else:
            go_on(session, experiment)
        if plan.is_training:
            if session.state.records[TRIAL].outcome in ("running", "failed"):
                train_on_ray(session)
        else:
            run_trials(session)
            run_repeats(session)
            measure_models(session)
            choose_export(session.experiment, session.say)
        measure_test_split(session)
        return session.finish()


@contextlib.contextmanager
def _resume_shown(plan: Plan, console: Console) -> Iterator[None]:
    """Show the command that resumes where Ctrl-C ends the block before there is a summary, as a second one may."""
    try:
        yield
    except KeyboardInterrupt:
        if (plan.folder / EVENTS_FILE).is_file():
            say(console, f"resume    {plan.resume_command}")
        raise


def finish_search(plan: Plan, console: Console, experiment: OpenExperiment) -> Outcome:
    """Do what a killed process had left: nothing is trained any more."""
    set_task(console, plan.base.task)
    experiment.log.stand_still()
    with experiment, Sync(target_of(plan)) as tracking:
        say(console, "all trials have ended; the remaining steps are done now")
        finish(experiment, lambda text: say(console, text), storage_option=plan.storage.option)
        uploader = Uploader(experiment, lambda text: say(console, f"warning: {text}"))
        uploader.start()
        tracking.start()
        tracking.wait()
        problem = sync_the_rest(tracking, experiment, console)
        uploader.finish()
        return Outcome(plan, experiment.state, problem)


def begin(session: Session) -> None:
    """Make the experiment, measure the base model, and write down what follows from that."""
    with session.new_experiment():
        baseline = measure_baseline(session)
        plan, train = session.plan, session.data.train
        if plan.is_training:
            session.begin(baseline, plan_batches(plan.base, train).points)
            batch = plan.base.effective_batch_size
            proposed = TrialProposed(trial_id=TRIAL, config=plan.shown_settings, effective_batch=batch)
            session.experiment.log.append(proposed)
        else:
            session.begin(baseline, plan.rungs(train.epoch_samples))


def go_on(session: Session, experiment: OpenExperiment) -> None:
    """Take up an experiment of an earlier session, and tidy what that had left."""
    session.go_on(experiment)
    records = session.state.records.all()
    if session.plan.is_training:
        (record,) = records
        session.say(
            f"the training goes on after epoch {record.checkpoint_epoch:.2f}"
            if record.checkpoints
            else "the training starts again"
        )
        return
    ended = sum(record.status != "running" for record in records)
    session.say(f"{ended} of {session.state.options.trials} trials have ended; the search goes on")
    remove_dropped(experiment, session.say)
    remove_unnamed_checkpoints(experiment, session.say)


def trial_config(session: Session) -> TrainConfig:
    """The settings that trials share: those of the session, but for the window in which they are measured."""
    whole = session.experiment.settings.trials_full_window
    return session.base if whole else session.base.replace(full_window_evaluation=False)


def run_trials(session: Session) -> None:
    """All trials, until they or a budget end."""
    _say_what_a_trial_is(session)
    with _display(session, session.state.records, session.plan.options.trials, "trials") as display:
        clips, config = session.state.baseline.trial_clips, trial_config(session)
        TrialRunner(session, config, _evaluation_ratio(session), clips).run_trials(display)


def run_repeats(session: Session) -> None:
    """The repeats of the best trials, where any are asked for and left."""
    state = session.state
    if state.open_repeats:
        session.say(f"\n{describe_repeats(state.wanted_repeats)}\n")
        every = {*state.wanted_repeats, *(run.trial_id for run in state.repeats.all())}
        with _display(session, state.repeats, len(every), "repeats") as display:
            TrialRunner(session, session.base, 1.0).run_repeats(display)


def measure_models(session: Session) -> None:
    """The mean of the winner's repeats, then what could be exported on the guards."""
    files = CheckpointFiles(session.experiment.folder)

    def mean(config: dict[str, Any], checkpoints: Sequence[str], name: str, most: float) -> Measured:
        inputs = session.inputs(session.base).with_settings(config)
        return in_worker(measure_mean, inputs, files, checkpoints, name, most)

    def on_guard(guard: Guard, run: Trial | None) -> tuple[Evaluation, str]:
        config = guard_config(session.base, guard)
        digest = session.guards[guard.data].splits["validation"].digest()
        if run is None:
            return measure_base_model(session, config, guard=guard.data), digest
        inputs = session.inputs(config.replace(**run.config), guard.data)
        found = in_worker(evaluate_checkpoint, inputs, files, str(run.checkpoint), "validation")
        return found, digest

    if compare(session.experiment) and session.state.something_is_measured:
        with ProgressBar(session.console, "measuring") as bar:
            bar.show("the mean of the winner's repeats", 0, 1)
            measure_average(session.experiment, mean, session.say)
            judge_guards(session.experiment, on_guard, session.say, bar.show)


def measure_test_split(session: Session) -> None:
    """The chosen run, or the training's best, on the held-out test split, where there is one."""
    state = session.state
    if session.plan.is_training:
        chosen = TRIAL if state.records[TRIAL].status == "completed" else None
    else:
        chosen = state.chosen.run if state.chosen else None
    known = state.held_out is not None and state.held_out.run == chosen
    if chosen is None or known or "test" not in session.data.splits or state.best() is None:
        return
    run = state.run(chosen)
    found = measure_held_out(session, session.base.replace(**run.config), run)
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


def _evaluation_ratio(session: Session) -> float:
    """How much longer an evaluation of a repeat takes: of all clips, and on whole windows."""
    every, trial = len(session.data.splits["validation"]), trial_config(session)
    ratio = every / (session.state.trial_clips or every)
    if trial == session.base:
        return ratio
    full = 2 * int(load_model_config(session.base.model).max_source_positions)
    return ratio * full / mean_evaluated_frames(trial, session.data, full)


def _display(session: Session, records: Records, trials: int, noun: str) -> SearchDisplay:
    state = session.state
    whole, same = objective_value(state.base_rates), objective_value(state.trial_base_rates)
    baseline = f"baseline {whole:.2f} %"
    if records is state.records and same != whole:
        baseline = f"baseline {same:.2f} %, measured like the trials"
    return SearchDisplay(
        session.console,
        records,
        n_trials=trials,
        budget_of=state.budget_of,
        baseline=baseline,
        trouble=lambda: session.tracking.problem,
        noun=noun,
    )


def _say_what_a_trial_is(session: Session) -> None:
    resources, rungs = session.resources, session.experiment.settings.rungs
    each = f"{resources.gpus:g} GPU and {resources.cpus:g} CPU each"
    if resources.workers > 1:
        each += f" for {resources.workers} workers"
    session.say(
        f"each trial sees up to {rungs[-1]:,} samples; "
        f"{describe_rungs(rungs, session.plan.space.scheduler.rungs)}; "
        f"{resources.concurrent} at a time with {each}"
    )
    if clips := session.state.trial_clips:
        base, split = session.base, session.data.splits["validation"]
        session.say(
            f"trials are measured on {clips:,} of {len(split):,} validation clips, always the same ones, and finalists "
            f"on all of them (--set max_eval_clips={len(split)}: trials too)"
        )
        if base.task != TRANSLATE:
            wanted = session.state.baseline.trial_clips or clips  # of several sources fewer than there are
            part = chosen_clips(split.origins.sources, wanted, base.data_seed)
            session.say(what_clips_show(base, map(split.text, part)))
    session.console.print()
