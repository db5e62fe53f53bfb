"""What is measured once the final round has trained: averages of its runs (greedy model soups), one after the other.

Then what could be exported on guards, data that is not trained on, by which it is chosen; and means of the best run and
the base model, which are only measured: `export --point` makes them again.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import ray.exceptions

from trainer.scoring.translation import CHRF_ERROR, told, told_sources
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import (
    CheckpointSaved,
    Evaluated,
    GuardMeasured,
    GuardsJudged,
    PointMeasured,
    SoupJudged,
    TrialEnded,
    TrialProposed,
    TrialStarted,
)
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.object_stores.object_store import StorageError
from tune.runs.baseline import in_worker, measure_untouched
from tune.runs.data import guard_config
from tune.runs.final_round import clips_of
from tune.runs.session import finite
from tune.runs.trials import folder_suffix
from tune.search.guards import choose, describe_choice, describe_keeping_point, guard_names
from tune.search.records import TrialRecord, listed, trial_of
from tune.search.soup import Candidate, Soup, describe_soup, judge_soup
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import UserError, error_line
from tune.workers.averages import Measured, measure_average, measure_guard, measure_point

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import SearchPlan
    from tune.experiments.state import SearchState
    from tune.runs.session import Session
    from tune.search.guards import Guard


class MeasureAverage(Protocol):
    """Writes and measures the average of checkpoints; see `tune.workers.averages.measure_average`."""

    def __call__(
        self, config: dict[str, object], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured: ...


class MeasurePoint(Protocol):
    """Measures a point between the base model and a checkpoint; see `tune.workers.averages.measure_point`."""

    def __call__(self, config: dict[str, object], checkpoint: str, point: float) -> dict[str, float]: ...


def average_in_worker(session: Session[SearchPlan], base: TrainConfig) -> MeasureAverage:
    """Averages are measured on the cluster, as repeats are: `base` are the settings of the final round."""
    files = CheckpointFiles(session.experiment.folder)

    def measure(
        config: dict[str, object], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured:
        inputs = session.inputs(base).with_settings(config)
        return in_worker(session, measure_average, inputs, files, checkpoints, name, most_wer)

    return measure


def point_in_worker(session: Session[SearchPlan], base: TrainConfig) -> MeasurePoint:
    """The same of points between the base model and a run."""
    files = CheckpointFiles(session.experiment.folder)

    def measure(config: dict[str, object], checkpoint: str, point: float) -> dict[str, float]:
        inputs = session.inputs(base).with_settings(config)
        return in_worker(session, measure_point, inputs, files, checkpoint, point)

    return measure


def make_soup(
    experiment: OpenExperiment,
    measure: MeasureAverage,
    over: Callable[[], str | None],
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
) -> None:
    """Average the finalists' repeats greedily, and judge the best average; as far as the log says that it is left.

    Args:
        experiment: its finalists are compared.
        measure: writes and measures an average.
        over: what has ended the search meanwhile, such as its time budget, if anything.
        say: told what comes of each average.
        show: told what is done now, and how many of how many averages are.
    """
    log, state, done = experiment.log, experiment.log.state, 0
    while state.open_soup:
        soup = state.soup
        assert soup is not None
        ended = over() if soup.next else None
        if soup.next is None or ended is not None:
            judged = _judge(experiment, ended or "")
            log.append(judged)
            say(describe_soup(judged.verdict, judged.text))
            return
        show("averaging the finalists' trainings", done, done + soup.left)
        _make_average(experiment, soup, measure, say)
        done += 1


def measure_points(
    experiment: OpenExperiment,
    measure: MeasurePoint,
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
    measure_guard: MeasureGuard | None = None,
) -> None:
    """Measure the points between the base model and the best run that are left, also on the guards.

    The ends are known: they are the base model and the run. No budget ends this: it is asked for by itself, and takes a
    few evaluations. Arguments are those of `make_soup`, and `measure_guard` where there are guards.
    """
    log, state = experiment.log, experiment.log.state
    run = state.best()
    if run is None:
        return
    left, names = state.open_points, guard_names(state.asked_guards)
    for done, point in enumerate(left):
        show(f"between the base model and {run.trial_id}", done, len(left))
        if point not in state.points.get(run.trial_id, {}):
            log.append(_point_measured(state, run, point, measure))
        found = state.points[run.trial_id][point]
        parts = [f"WER {found.rates['wer']:.2f} %" if found.rates else f"not measured: {found.text}"]
        if measure_guard is not None and 0.0 < point < 1.0:
            for guard in state.asked_guards:
                measure_on_guard(experiment, measure_guard, guard, run, point, say)
            parts += [each.describe(names[each.guard]) for each in state.traded(run.trial_id, point)]
        say(f"{100 * point:.0f} % {run.trial_id}, {100 * (1 - point):.0f} % base model: {'; '.join(parts)}")
    if left and names:
        say(describe_keeping_point(state.keeping_point))


def _point_measured(
    state: SearchState, run: TrialRecord, point: float, measure: MeasurePoint
) -> PointMeasured:
    if point == 0.0 and state.baseline is not None:
        return PointMeasured(run=run.trial_id, point=point, rates=told(state.baseline.rates))
    if point == 1.0:
        cer = {} if run.best_cer is None else {"cer": run.best_cer}
        translated = state.baseline is not None and "chrf" in state.baseline.rates
        chrf = {"chrf": 100.0 - (run.best_wer or 0.0)} if translated else {}
        return PointMeasured(
            run=run.trial_id, point=point, rates=told({"wer": run.best_wer or 0.0, **cer, **chrf})
        )
    try:
        rates = finite(measure(run.config, str(run.checkpoint), point))
    except cloud_errors(UserError, StorageError, ray.exceptions.RayError) as error:
        return PointMeasured(run=run.trial_id, point=point, rates={}, text=error_line(str(error)))
    return PointMeasured(run=run.trial_id, point=point, rates=rates)


def _make_average(
    experiment: OpenExperiment, soup: Soup, measure: MeasureAverage, say: Callable[[str], None]
) -> None:
    log, members = experiment.log, soup.next or ()
    runs = [log.state.run(name) for name in members]
    record = _proposed(experiment, runs)
    name, seen = record.trial_id, runs[0].best_samples_seen
    log.append(TrialStarted(trial_id=name, folder=f"{name}{folder_suffix(experiment)}"))
    path = CheckpointFiles(experiment.folder).name(f"{TRIALS_FOLDER}/{record.folder}", seen)
    try:
        found = measure(record.config, [str(run.checkpoint) for run in runs], path, soup.wer)
        wer = found.rates["wer"]
        if not math.isfinite(wer):
            raise UserError("its WER is no finite number")
    except cloud_errors(UserError, StorageError, ray.exceptions.RayError) as error:
        log.append(TrialEnded(trial_id=name, status="failed", error=str(error)))
        reason = error_line(str(error)).rstrip(".")
        say(f"warning: {name}, the average of {listed(members)}, is left out: {reason}")
        return
    metrics: dict[str, float | None] = {
        key: rate for key, rate in finite(found.rates).items() if key != "clips"
    }
    metrics["eval_loss"] = metrics.pop("loss", None)
    log.append(
        Evaluated(
            trial_id=name,
            samples_seen=seen,
            epoch=runs[0].epoch,
            metrics=metrics,
            objective=CHRF_ERROR if CHRF_ERROR in metrics else "wer",
            finished=True,
            keep=found.keep,
            sources=told_sources(found.sources),
        ),
        CheckpointSaved(trial_id=name, samples_seen=seen, checkpoint=path, keep=found.keep),
        TrialEnded(trial_id=name, status="completed", samples_seen=seen, epoch=runs[0].epoch),
    )
    without = f"{soup.wer:.2f} % without {members[-1]}"
    ending = "" if wer <= soup.wer else ", which is left out"
    say(f"{name}, the average of {listed(members)}: WER {wer:.2f} %, {without}{ending}")


def _proposed(experiment: OpenExperiment, runs: Sequence[TrialRecord]) -> TrialRecord:
    """The average of these runs: one that a killed process had begun, or a new one."""
    state, members = experiment.log.state, [run.trial_id for run in runs]
    begun = (run for run in state.averages.all() if sorted(run.members) == sorted(members))
    found = next(begun, None)
    if found is not None:
        return found
    trial = trial_of(members[0])
    number = 1 + sum(trial_of(run.trial_id) == trial for run in state.averages.all())
    name = f"{trial}-a{number}"
    experiment.log.append(
        TrialProposed(trial_id=name, config=runs[0].config, kind="average", members=members)
    )
    return state.run(name)


def _judge(experiment: OpenExperiment, ended: str) -> SoupJudged:
    """The best average beside the winner's best repeat, which would be exported without it."""
    state, files = experiment.log.state, CheckpointFiles(experiment.folder)
    soup, run = state.soup, state.soup_runs[0]
    assert soup is not None
    if len(soup.members) == 1:
        text = ended or f"none has a WER as low as {run.trial_id}"
        return SoupJudged(run=None, text=text)
    average = next(each for each in state.averages.all() if set(each.members) == set(soup.members))
    verdict = judge_soup(_candidate(average, files), soup.members, _candidate(run, files))
    return SoupJudged(run=average.trial_id if verdict.better else None, verdict=verdict.to_dict(), text=ended)


def _candidate(run: TrialRecord, files: CheckpointFiles) -> Candidate:
    return Candidate(run.trial_id, run.best_wer or 0.0, clips_of(run, files))


class MeasureGuard(Protocol):
    """Measures the base model (no run), a run, or a point between them, on a guard."""

    def __call__(self, guard: Guard, run: TrialRecord | None, point: float) -> tuple[Evaluation, str]:
        """The rates, and what tells the guard's clips from others."""


def guard_in_worker(session: Session[SearchPlan], base: TrainConfig) -> MeasureGuard:
    """Guards are measured on the cluster, as repeats are: `base` are the settings of the final round."""
    files = CheckpointFiles(session.experiment.folder)

    def measure(guard: Guard, run: TrialRecord | None, point: float) -> tuple[Evaluation, str]:
        config, data = guard_config(base, guard), session.guards[guard.data]
        digest = data.splits["validation"].digest()
        if run is None:
            inputs = session.inputs(config, guard=guard.data)
            return measure_untouched(session, inputs, data, "validation", f"on {guard.data}")[0], digest
        inputs = session.inputs(config.replace(**run.config), guard=guard.data)
        return in_worker(session, measure_guard, inputs, files, str(run.checkpoint), point), digest

    return measure


def judge_guards(
    experiment: OpenExperiment,
    measure: MeasureGuard,
    say: Callable[[str], None],
    show: Callable[[str, float, float], None],
) -> None:
    """Measure the base model and all that could be exported on the session's guards, and choose what is exported.

    As far as the log says that it is left. No budget ends this: without it nothing that keeps the guards is known.

    Args:
        experiment: nothing is left to train or to average.
        measure: see `MeasureGuard`.
        say: told what comes of it.
        show: told what is done now, and how many of how many measurements are.
    """
    log, state = experiment.log, experiment.log.state
    if not state.open_guards:
        return
    runs = state.guard_runs
    wanted = [(guard, run) for guard in state.asked_guards for run in (None, *runs)]
    for done, (guard, run) in enumerate(wanted):
        show(f"{run.trial_id if run else 'the base model'} on the guard {guard.data}", done, len(wanted))
        measure_on_guard(experiment, measure, guard, run, 1.0, say)
    models = {run.trial_id: state.traded(run.trial_id) for run in runs}
    chosen, names = choose(models), guard_names(state.asked_guards)
    traded = {name: [each.to_dict() for each in found] for name, found in models.items()}
    log.append(GuardsJudged(run=chosen, models=traded))
    say(describe_choice(chosen, models, names))


def measure_on_guard(
    experiment: OpenExperiment,
    measure: MeasureGuard,
    guard: Guard,
    run: TrialRecord | None,
    point: float,
    say: Callable[[str], None],
) -> None:
    """Measure a model on a guard, unless the log knows it; what cannot be measured is told, and keeps no guard."""
    log, name, began = experiment.log, run.trial_id if run else None, time.time()
    if (name, point, guard.data) in log.state.guards:
        return
    empty = GuardMeasured(guard=guard.data, run=name, point=point, rates={})
    try:
        found, digest = measure(guard, run, point)
        event = dataclasses.replace(empty, rates=finite(found.rates()), clips_digest=digest)
        if found.utterances is not None:
            clips = found.utterances
            event = dataclasses.replace(event, errors=list(clips.word_errors), words=list(clips.words))
    except cloud_errors(UserError, StorageError, ray.exceptions.RayError) as error:
        event = dataclasses.replace(empty, text=error_line(str(error)))
        say(f"warning: {name or 'the base model'} is not measured on the guard {guard.data}: {event.text}")
    log.append(dataclasses.replace(event, seconds=time.time() - began))
