"""What is measured once the final round has trained: averages of its runs (greedy model soups), one after the other.

Then what could be exported on guards, data that is not trained on, by which it is chosen; and means of the best run and
the base model, which are only measured: `export --point` makes them again.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ray.exceptions

from trainer.scoring.translation import CHRF_ERROR, TRANSLATE
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
from tune.runs.baseline import Result, in_worker, measure_untouched
from tune.runs.data import guard_config
from tune.runs.final_round import clips_of
from tune.runs.session import finite
from tune.runs.trials import folder_suffix
from tune.search.guards import choose, describe_keeping_point, guard_names
from tune.search.records import TrialRecord, listed, trial_of
from tune.search.soup import INNER_POINTS, Candidate, Soup, judge_soup
from tune.util.cloud_errors import cloud_errors
from tune.util.errors import UserError, error_line
from tune.workers.averages import Measured, measure_average, measure_guard, measure_point

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.train import Evaluation
    from tune.experiments.log import ExperimentLog
    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import SearchPlan
    from tune.experiments.state import SearchState
    from tune.runs.session import Session
    from tune.search.guards import Guard
    from tune.workers.inputs import TrialInputs


@dataclasses.dataclass(frozen=True)
class Measures:
    """Writes and measures models on the cluster, as repeats are trained.

    Methods raise `UserError`, `StorageError` or Ray's errors where that cannot be done.
    """

    session: Session[SearchPlan]
    base: TrainConfig
    """Settings of the final round."""

    def average(
        self, config: dict[str, object], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured:
        """See `tune.workers.averages.measure_average`."""
        return self._run(measure_average, self._inputs(config), checkpoints, name, most_wer)

    def point(self, config: dict[str, object], checkpoint: str, point: float) -> dict[str, float]:
        """A point between the base model and a checkpoint; see `tune.workers.averages.measure_point`."""
        return self._run(measure_point, self._inputs(config), checkpoint, point)

    def guard(self, guard: Guard, run: TrialRecord | None, point: float) -> tuple[Evaluation, str]:
        """The base model (no run), a run, or a point between them on a guard; and what tells its clips from others."""
        config, data = guard_config(self.base, guard), self.session.guards[guard.data]
        digest = data.splits["validation"].digest()
        if run is None:
            inputs = self.session.inputs(config, guard=guard.data)
            where = f"on {guard.data}"
            return measure_untouched(self.session, inputs, "validation", where), digest
        inputs = self.session.inputs(config.replace(**run.config), guard=guard.data)
        return self._run(measure_guard, inputs, str(run.checkpoint), point), digest

    def _inputs(self, config: dict[str, object]) -> TrialInputs:
        return self.session.inputs(self.base).with_settings(config)

    def _run(self, work: Callable[..., Result], inputs: TrialInputs, *arguments: object) -> Result:
        files = CheckpointFiles(self.session.experiment.folder)
        return in_worker(self.session, work, inputs, files, *arguments)


def _failures() -> tuple[type[BaseException], ...]:
    """What measuring a model may raise; the others are measured all the same."""
    return cloud_errors(UserError, StorageError, ray.exceptions.RayError)


@dataclasses.dataclass(frozen=True)
class Aftermath:
    """What is measured once the repeats have ended, as far as the log says that it is left; in the order below."""

    experiment: OpenExperiment
    measures: Measures
    say: Callable[[str], None]
    """Told what comes of each measurement."""
    show: Callable[[str, float, float], None]
    """Told what is done now, and how many of how many measurements are."""

    @property
    def log(self) -> ExperimentLog:
        """The experiment's."""
        return self.experiment.log

    @property
    def state(self) -> SearchState:
        """What the log says so far."""
        return self.log.state

    def make_soup(self, over: Callable[[], str | None]) -> None:
        """Average the finalists' repeats greedily, and judge the best average. The finalists are compared.

        `over` says what has ended the search meanwhile, such as its time budget, if anything.
        """
        done = 0
        while self.state.open_soup:
            soup = self.state.soup
            assert soup is not None
            ended = over() if soup.next else None
            if soup.next is None or ended is not None:
                self.log.append(self._judge(soup, ended or ""))
                self.say(self.state.soup_text)
                return
            self.show("averaging the finalists' trainings", done, done + soup.left)
            self._make_average(soup, soup.next)
            done += 1

    def judge_guards(self) -> None:
        """Measure the base model and all that could be exported on the session's guards, and choose what is exported.

        No budget ends this: without it nothing that keeps the guards is known.
        """
        state = self.state
        if not state.open_guards:
            return
        runs = state.guard_runs
        wanted = [(guard, run) for guard in state.asked_guards for run in (None, *runs)]
        for done, (guard, run) in enumerate(wanted):
            self.show(
                f"{run.trial_id if run else 'the base model'} on the guard {guard.data}", done, len(wanted)
            )
            self._measure_on_guard(guard, run, 1.0)
        models = {run.trial_id: state.traded(run.trial_id) for run in runs}
        self.log.append(GuardsJudged(run=choose(models), models=models))
        self.say(state.guards_text)

    def measure_points(self) -> None:
        """Measure the points between the base model and the best run, also on the guards.

        The ends are known: they are the base model and the run. No budget ends this: it is asked for by itself, and
        takes a few evaluations.
        """
        state, run = self.state, self.state.best()
        if run is None:
            return
        left, names = state.open_points, guard_names(state.asked_guards)
        for done, point in enumerate(left):
            self.show(f"between the base model and {run.trial_id}", done, len(left))
            if point not in state.best_points:
                self.log.append(self._point_measured(run, point))
            found = state.best_points[point]
            parts = [f"WER {found.rates['wer']:.2f} %" if found.rates else f"not measured: {found.text}"]
            if point in INNER_POINTS:
                for guard in state.asked_guards:
                    self._measure_on_guard(guard, run, point)
                parts += [each.describe(names[each.guard]) for each in state.traded(run.trial_id, point)]
            share = f"{100 * point:.0f} % {run.trial_id}, {100 * (1 - point):.0f} % base model"
            self.say(f"{share}: {'; '.join(parts)}")
        if left and names:
            self.say(describe_keeping_point(state.keeping_point))

    def _point_measured(self, run: TrialRecord, point: float) -> PointMeasured:
        empty = PointMeasured(run=run.trial_id, point=point, rates={})
        if point == 0.0 and self.state.base_rates:
            return dataclasses.replace(empty, rates=self.state.base_rates)
        if point == 1.0:
            cer = {} if run.best_cer is None else {"cer": run.best_cer}
            chrf = {"chrf": 100.0 - (run.best_wer or 0.0)} if self.state.task == TRANSLATE else {}
            return dataclasses.replace(empty, rates={"wer": run.best_wer or 0.0, **cer, **chrf})
        try:
            rates = finite(self.measures.point(run.config, str(run.checkpoint), point))
        except _failures() as error:
            return dataclasses.replace(empty, text=error_line(str(error)))
        return dataclasses.replace(empty, rates=rates)

    def _make_average(self, soup: Soup, members: Sequence[str]) -> None:
        runs = [self.state.run(name) for name in members]
        record = self._proposed(runs)
        name, seen = record.trial_id, runs[0].best_samples_seen
        self.log.append(TrialStarted(trial_id=name, folder=f"{name}{folder_suffix(self.experiment)}"))
        path = CheckpointFiles(self.experiment.folder).name(f"{TRIALS_FOLDER}/{record.folder}", seen)
        try:
            found = self.measures.average(
                record.config, [str(run.checkpoint) for run in runs], path, soup.wer
            )
            wer = found.rates["wer"]
            if not math.isfinite(wer):
                raise UserError("its WER is no finite number")
        except _failures() as error:
            self.log.append(TrialEnded(trial_id=name, status="failed", error=str(error)))
            reason = error_line(str(error)).rstrip(".")
            self.say(f"warning: {name}, the average of {listed(members)}, is left out: {reason}")
            return
        metrics: dict[str, float | None] = {
            key: rate for key, rate in finite(found.rates).items() if key != "clips"
        }
        metrics["eval_loss"] = metrics.pop("loss", None)
        self.log.append(
            Evaluated(
                trial_id=name,
                samples_seen=seen,
                epoch=runs[0].epoch,
                metrics=metrics,
                objective=CHRF_ERROR if "chrf" in metrics else "wer",
                finished=True,
                keep=found.keep,
                sources=found.sources,
            ),
            CheckpointSaved(trial_id=name, samples_seen=seen, checkpoint=path, keep=found.keep),
            TrialEnded(trial_id=name, status="completed", samples_seen=seen, epoch=runs[0].epoch),
        )
        without = f"{soup.wer:.2f} % without {members[-1]}"
        ending = "" if wer <= soup.wer else ", which is left out"
        self.say(f"{name}, the average of {listed(members)}: WER {wer:.2f} %, {without}{ending}")

    def _proposed(self, runs: Sequence[TrialRecord]) -> TrialRecord:
        """The average of these runs: one that a killed process had begun, or a new one."""
        averages, members = self.state.averages.all(), [run.trial_id for run in runs]
        for run in averages:
            if sorted(run.members) == sorted(members):
                return run
        trial = trial_of(members[0])
        name = f"{trial}-a{1 + sum(trial_of(run.trial_id) == trial for run in averages)}"
        self.log.append(TrialProposed(trial_id=name, config=runs[0].config, kind="average", members=members))
        return self.state.run(name)

    def _judge(self, soup: Soup, ended: str) -> SoupJudged:
        """The best average beside the winner's best repeat, which would be exported without it."""
        run = self.state.soup_runs[0]
        if len(soup.members) == 1:
            return SoupJudged(run=None, text=ended or f"none has a WER as low as {run.trial_id}")
        average = next(each for each in self.state.averages.all() if set(each.members) == set(soup.members))
        verdict = judge_soup(self._candidate(average), soup.members, self._candidate(run))
        return SoupJudged(run=average.trial_id if verdict.better else None, verdict=verdict, text=ended)

    def _candidate(self, run: TrialRecord) -> Candidate:
        return Candidate(
            run.trial_id, run.best_wer or 0.0, clips_of(run, CheckpointFiles(self.experiment.folder))
        )

    def _measure_on_guard(self, guard: Guard, run: TrialRecord | None, point: float) -> None:
        """Measure a model on a guard, unless the log knows it; what cannot be measured is told, and keeps no guard."""
        name, began = run.trial_id if run else None, time.time()
        if (name, point, guard.data) in self.state.guards:
            return
        event = GuardMeasured(guard=guard.data, run=name, point=point, rates={})
        try:
            found, digest = self.measures.guard(guard, run, point)
            event = dataclasses.replace(event, rates=finite(found.rates()), clips_digest=digest)
            if (clips := found.utterances) is not None:
                event = dataclasses.replace(event, errors=list(clips.word_errors), words=list(clips.words))
        except _failures() as error:
            event = dataclasses.replace(event, text=error_line(str(error)))
            model = name or "the base model"
            self.say(f"warning: {model} is not measured on the guard {guard.data}: {event.text}")
        self.log.append(dataclasses.replace(event, seconds=time.time() - began))
