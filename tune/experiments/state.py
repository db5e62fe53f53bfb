"""`SearchState`: what an experiment's log folds to. Nothing else changes it; folding is the only way to know it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from trainer.scoring.objectives import objective_name, objective_value, task_of
from tune.experiments.events import (
    Baseline,
    CheckpointSaved,
    CutShort,
    Data,
    Entry,
    Evaluated,
    Event,
    ExportChosen,
    FinalistsCompared,
    GuardMeasured,
    GuardsJudged,
    HeldOutMeasured,
    Prepared,
    ResultsWritten,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialRecovered,
    TrialStarted,
)
from tune.experiments.options import SearchOptions
from tune.search.finalists import DEFAULT_COUNT, Verdict, choose_finalists, repeat_settings
from tune.search.guards import Guard
from tune.search.records import Records, Trial, TrialOutcome, rank, role_of, trial_of


class SearchState:
    """All that is known of a search or a training."""

    def __init__(self) -> None:
        self.events = 0
        """Number of the last event."""
        self.last_event_time = 0.0
        """When it happened, in seconds since the epoch."""
        self.session: SessionStarted | None = None
        self.options = SearchOptions(trials=0)
        self.created = 0.0
        """When the first session began, in seconds since the epoch."""
        self.prepared: Prepared | None = None
        self.space: dict[str, Any] = {}
        """What is searched, its bounds as numbers; empty of a training."""
        self.records = Records()
        self.repeats = Records()
        """The best of them trained again with other seeds."""
        self.averages = Records()
        """Means of the weights of a winner's repeats."""
        self._by_role = {"trial": self.records, "repeat": self.repeats, "average": self.averages}
        self.compared = FinalistsCompared(verdict=None)
        """What the final round came to; empty once a trial was proposed or has ended since."""
        self.guards: dict[tuple[str | None, str], GuardMeasured] = {}
        """By run (None: the base model) and guard."""
        self.guards_judged: GuardsJudged | None = None
        """What came of the guards; None once another model may be exported."""
        self.chosen: ExportChosen | None = None
        """The run whose weights are safe."""
        self.losers: frozenset[str] = frozenset()
        """Trials that lost in a final round."""
        self.held_out: HeldOutMeasured | None = None
        self.trials_cut: CutShort | None = None
        """What ended the trials of this session before all were done."""
        self.repeats_cut: CutShort | None = None
        """The same of the final round."""
        self.ended: SearchEnded | None = None
        """Set once the session is over, and nothing happened since."""
        self.written = False
        """Whether results and report were written, and nothing happened since."""
        self.plateau_since = 0.0
        """Trials that ended before count for no plateau: one was found then, and more trials were wanted."""
        self._earlier_seconds = 0.0

    def apply(self, entry: Entry) -> None:
        """Take in the next event."""
        with self.records.lock, self.repeats.lock, self.averages.lock:
            event = entry.event
            _fold(event, self, entry.time)
            self.events, self.written = entry.number, isinstance(event, ResultsWritten)
            if not self.written:
                self.ended = event if isinstance(event, SearchEnded) else None
                self.last_event_time = entry.time

    @property
    def data(self) -> Data:
        return self.prepared.data if self.prepared else Data()

    @property
    def baseline(self) -> Baseline:
        return self.prepared.baseline if self.prepared else Baseline(rates={})

    def run(self, name: str) -> Trial:
        """The trial, repeat or average of this name; KeyError where there is none."""
        return self._by_role[role_of(name)][name]

    @property
    def task(self) -> str:
        return task_of(self.objective)

    @property
    def objective(self) -> str:
        return objective_name(self.base_rates)

    @property
    def base_rates(self) -> dict[str, float]:
        """Rates of the base model; empty before it was measured."""
        return self.baseline.rates

    @property
    def trial_base_rates(self) -> dict[str, float]:
        """The same as trials are measured."""
        return self.baseline.trial_rates or self.base_rates

    @property
    def trial_clips(self) -> int | None:
        """Validation clips that trials measure, of several sources more than were wanted; None for all."""
        if self.baseline.trial_clips is None:
            return None
        clips = int(self.trial_base_rates["clips"])
        return clips if clips < self.base_rates["clips"] else None

    def base_rates_for(self, run: Trial) -> dict[str, float]:
        """The same as this run was measured."""
        return self.trial_base_rates if run.trial_id in self.records else self.base_rates

    def base_sources_for(self, run: Trial | None) -> dict[str, dict[str, float]]:
        """The same by source."""
        as_trials = run is not None and run.trial_id in self.records and self.baseline.trial_rates
        return self.baseline.trial_sources if as_trials else self.baseline.sources

    @property
    def runs(self) -> list[Trial]:
        return [*self.records.all(), *self.repeats.all(), *self.averages.all()]

    @property
    def seconds(self) -> float:
        """Wall time over all sessions, up to the last event."""
        return self.seconds_at(self.last_event_time)

    def seconds_at(self, now: float) -> float:
        """Wall time over all sessions, where this one still runs; `now` in seconds since the epoch."""
        began = self.session.began if self.session else now
        return self._earlier_seconds + max(0.0, now - began)

    def finalists(self, count: int) -> list[Trial]:
        """The trials that are to be trained again: of the best so many, those that were not losers before."""
        return [trial for trial in choose_finalists(self.records, count) if trial.trial_id not in self.losers]

    @property
    def failed(self) -> bool:
        """Whether failures ended the trials: nothing follows then."""
        return self.trials_cut is not None and self.trials_cut.reason == "failures"

    @property
    def trials_over(self) -> bool:
        """Whether no further trial is begun in this session."""
        return self.trials_cut is not None or self.all_ended

    @property
    def wanted_repeats(self) -> dict[str, dict[str, Any]]:
        """Settings of the finalists' repeats by name, as `005-r1`, also of those that have ended; none while trials are
        left.
        """
        if self.prepared is None or self.failed or not self.trials_over:
            return {}
        finalists, seed = self.finalists(self.options.n_finalists), self.prepared.train_config["seed"]
        begun = {run.trial_id: run.config for run in self.repeats.all()}
        wanted = repeat_settings(finalists, self.options.repeats, seed)
        return {name: begun.get(name, config) for name, config in wanted.items()}

    @property
    def open_repeats(self) -> list[str]:
        """The repeats that are left; none while trials are."""
        ended = {run.trial_id for run in self.repeats.all() if run.status != "running"}
        return [name for name in self.wanted_repeats if name not in ended]

    @property
    def averaged(self) -> list[Trial]:
        """The winner's repeats with weights, from the lowest WER on, of which the mean is measured; none below two."""
        verdict = self.compared.verdict
        runs = [run for run in self.repeats_of(verdict.winner) if run.has_weights] if verdict else []
        return runs if len(runs) > 1 else []

    def average_of(self, members: Collection[str]) -> Trial | None:
        """The mean of these runs, measured or begun."""
        return next((run for run in self.averages.all() if set(run.members) == set(members)), None)

    @property
    def open_average(self) -> bool:
        """Whether the mean of the winner's repeats is to be measured; not while repeats are left."""
        members = [run.trial_id for run in self.averaged]
        if not members or self.failed or self.open_repeats:
            return False
        known = self.average_of(members)
        return known is None or known.status == "running"

    @property
    def guard_runs(self) -> list[Trial]:
        """The runs among which the guards choose: what would be exported without them, then the best run of each
        finalist, or of each of the best trials, that has weights.
        """
        first, verdict = self._unguarded(), self.compared.verdict
        others = [trial.trial_id for trial in self.finalists(DEFAULT_COUNT)]
        names = verdict.winner_first if verdict else others
        found = [self.weights_of(name, repeats_first=verdict is not None)[:1] for name in names]
        runs = {run.trial_id: run for group in ([first] if first else [], *found) for run in group}
        return list(runs.values())

    def budget_of(self, trial: Trial) -> int:
        """Samples of a trial's full budget: a budget in steps is more of them with a larger batch."""
        assert self.prepared is not None
        steps, batch = self.prepared.train_config.get("max_steps"), trial.effective_batch
        return int(steps * batch) if steps and batch else self.prepared.rungs[-1]

    @property
    def open_guards(self) -> bool:
        """Whether models are to be measured or judged on guards; not while the best run may change."""
        if not self.options.guard or self.best() is None or self.open_repeats or self.open_average:
            return False
        judged = next(iter(self.guards_judged.models.values())) if self.guards_judged else []
        known = [Guard(each.guard, each.max_loss) for each in judged]
        return self.trials_over and not self.failed and known != self.options.guard

    @property
    def passed_over(self) -> bool:
        """Whether what would be exported without the guards is not, for their sake."""
        return self.guards_judged is not None and self.guards_judged.run != next(
            iter(self.guards_judged.models)
        )

    @property
    def something_is_left(self) -> bool:
        """Whether something that was asked for is left, and no budget, target, plateau or failures ended it."""
        repeats = bool(self.open_repeats and self.repeats_cut is None)
        return not self.trials_over or repeats or self.something_is_measured

    @property
    def something_is_measured(self) -> bool:
        """Whether the mean of the winner's repeats, or guards, are left."""
        return self.open_average or self.open_guards

    @property
    def all_ended(self) -> bool:
        return len(self.records) >= self.options.trials and not self.records.running()

    @property
    def end(self) -> CutShort | None:
        """What ended the final round, or the trials, before all that was asked for; None where nothing did."""
        return self.repeats_cut or self.trials_cut

    @property
    def verdict(self) -> Verdict | None:
        """The comparison of the finalists, where it stands; where the guards pass over its winner, with another one."""
        found = self.compared.verdict
        winner = trial_of(self.guards_judged.run) if self.guards_judged else None
        if found is None or winner in (None, found.winner):
            return found
        return dataclasses.replace(found, winner=winner, passed_over=found.winner)

    def best(self) -> Trial | None:
        """The run to export: it has weights. None before the first evaluation.

        What the guards chose where they did. Else the best of the winner's repeats and their mean where the finalists'
        verdict stands; else that of the trial with the lowest WER, without those that an earlier final round had
        losers: trials are compared with trials, as repeats, which are measured otherwise, are with repeats.
        """
        judged = self.run(self.guards_judged.run) if self.guards_judged else None
        return judged if judged is not None and judged.has_weights else self._unguarded()

    def _unguarded(self) -> Trial | None:
        """The same without guards."""
        verdict = self.compared.verdict
        if verdict is not None:
            runs = self.weights_of(verdict.winner, repeats_first=True)
            measured_alike = [run for run in runs if run.trial_id not in self.records]
            if runs:  # of equal ones the mean, which stands for no seed
                return min(measured_alike, key=lambda run: (rank(run), not run.members), default=runs[0])
        for trial in sorted(
            (record for record in self.records.all() if record.best_value is not None), key=rank
        ):
            if trial.trial_id in self.losers:
                continue
            runs = self.weights_of(trial.trial_id)
            if runs:
                chosen = self.chosen.run if self.chosen else None
                return next((run for run in runs if run.trial_id == chosen), runs[0])
        return None

    def weights_of(self, trial_id: str, *, repeats_first: bool = False) -> list[Trial]:
        """The runs of a trial's settings that have weights: itself, then its repeats from the lowest WER on, then the
        means of its repeats.
        """
        own = [self.records[trial_id]] if trial_id in self.records else []
        repeats = self.repeats_of(trial_id)
        averages = [run for run in self.averages.all() if trial_of(run.trial_id) == trial_id and run.finished]
        order = [*repeats, *own] if repeats_first else [*own, *repeats]
        return [run for run in [*order, *sorted(averages, key=rank)] if run.has_weights]

    def superfluous(self, choice: ExportChosen) -> list[Trial]:
        """The runs whose weights go by this choice."""
        if self.options.keep_checkpoints == "all":
            return []
        kept = {choice.run, *choice.keep}
        ended = (run for run in self.runs if run.status != "running" and run.has_weights)
        return [run for run in ended if run.trial_id not in kept]

    def repeats_of(self, trial_id: str) -> list[Trial]:
        """Those that came to their end, from the lowest WER on."""
        repeats = (run for run in self.repeats.all() if trial_of(run.trial_id) == trial_id and run.finished)
        return sorted(repeats, key=rank)

    @property
    def measured_seconds(self) -> float:
        """Time in which means, and models on the guards, were measured."""
        averages = sum(run.elapsed for run in self.averages.all())
        return averages + sum(each.seconds for each in self.guards.values())

    @property
    def value(self) -> float | None:
        """What the search came to, in percent: the winner's mean over its seeds, else the objective of the best run."""
        if self.verdict is not None:
            return self.verdict.score.mean
        best = self.best()
        return best.best_value if best else None

    @property
    def comparable_base(self) -> float:
        """The base model's objective in percent, measured as `value` was."""
        best = self.best() if self.verdict is None else None
        return objective_value(self.base_rates_for(best) if best else self.base_rates)

    @property
    def tested(self) -> HeldOutMeasured | None:
        best, held = self.best(), self.held_out
        return held if best and held and held.run == best.trial_id else None

    @property
    def winner(self) -> str | None:
        if self.verdict is not None:
            return self.verdict.winner
        best = self.best()
        return None if best is None else trial_of(best.trial_id)


def _fold(event: Event, state: SearchState, now: float) -> None:
    match event:
        case SessionStarted():
            _begin(event, state, now)
        case Prepared():
            state.prepared, state.space = event, event.space
        case TrialProposed():
            _propose(event, state)
        case CutShort(final_round=True):
            state.repeats_cut = event
        case CutShort():
            state.trials_cut = event
        case TrialStarted() | Evaluated() | CheckpointSaved() | TrialRecovered() | TrialEnded():
            _fold_run(event, state.run(event.trial_id), state, now)
        case SearchEnded():
            for run in state.runs:
                run.pause(now)
        case _:
            _fold_result(event, state)


def _fold_result(event: Event, state: SearchState) -> None:
    match event:
        case FinalistsCompared():
            state.compared, state.guards_judged = event, None
        case GuardMeasured():
            state.guards[event.run, event.guard] = event
        case GuardsJudged():
            state.guards_judged = event
        case ExportChosen():
            state.chosen = event
            state.losers |= frozenset(event.losers)
            for run in state.superfluous(event):
                run.weights_dropped = True
        case HeldOutMeasured():
            state.held_out = event


def _fold_run(event: Event, run: Trial, state: SearchState, now: float) -> None:
    match event:
        case TrialStarted():
            run.folder = event.folder
            run.started, run.begun = run.started or now, run.begun or now
            run.status, run.error = "running", None  # a training that had failed goes on
        case Evaluated(samples_seen=seen):
            known = {"samples_seen": seen, "epoch": event.epoch, "finished": event.finished}
            run.add_evaluation({**event.metrics, **known}, event.stop, event.keep, event.sources)
            if run.value is not None:
                run.first_logged.setdefault((seen, run.value), now)
        case CheckpointSaved():
            run.add_saved(event.samples_seen, event.epoch, event.checkpoint, event.keep)
        case TrialRecovered():
            run.lose_unsaved()
        case TrialEnded():
            if event.trial_id not in state.averages:
                state.compared, state.guards_judged = FinalistsCompared(verdict=None), None
            run.error = event.error
            run.samples_seen = max(run.samples_seen, event.samples_seen)
            run.epoch = max(run.epoch, event.epoch)
            _end(run, state, event.status, now)


def _begin(event: SessionStarted, state: SearchState, now: float) -> None:
    for run in state.runs:
        run.pause(
            state.last_event_time
        )  # of a process that was killed; what came after the last event is not known
        run.lose_unsaved()
        if run.status == "running" and run.outcome != "running":  # killed after that was decided
            _end(run, state, run.outcome, state.last_event_time)
    if state.session is not None:
        state._earlier_seconds += max(0.0, state.last_event_time - state.session.began)
    else:
        state.created = now
    if state.trials_cut is not None and state.trials_cut.reason == "plateau":
        state.plateau_since = state.last_event_time
    state.session, state.options = event, event.options
    state.trials_cut = state.repeats_cut = None
    if event.space is not None:
        state.space = event.space


def _propose(event: TrialProposed, state: SearchState) -> None:
    records = state._by_role[role_of(event.trial_id)]
    if event.trial_id not in records:
        records.add(Trial(event.trial_id, event.config, event.effective_batch, members=event.members))
        if records is not state.averages:
            state.compared, state.guards_judged = FinalistsCompared(verdict=None), None


def _end(run: Trial, state: SearchState, status: TrialOutcome, now: float) -> None:
    # A training that failed too often can be resumed, a trial of a search cannot.
    run.end(status, now, resumable=state.options.kind == "training" and status == "failed")
    run.session = state.session.session if state.session else 0
