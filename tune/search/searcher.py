"""Optuna's samplers as Ray Tune's searcher, told the truth about every trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tune.search.proposals import EARLIER, Proposer
from tune.search.records import TrialRecord
from tune.search.samplers import BUDGET
from tune.search.scheduler import METRIC, TIME_ATTRIBUTE, TRIAL_ID

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState
    from ray.tune.search import Searcher

    from tune.search.records import Records
    from tune.space.space import SearchSpace


@dataclasses.dataclass(frozen=True)
class EarlierTrial:
    """A trial of another experiment that the searcher learns from."""

    params: dict[str, Any]
    evaluations: list[tuple[int, float]]
    value: float | None
    """Its best WER at its full budget; None where it was stopped early."""
    budget: int | None = None
    """Samples of its full budget; None is the longest that any trial came to."""


def make_searcher(
    space: SearchSpace,
    *,
    experiment: str,
    seed: int,
    records: Records,
    capacity: Callable[[], int] = lambda: 1_000_000,
    proposed: Callable[[str, dict[str, Any]], None] = lambda number, params: None,
    earlier: Iterable[EarlierTrial] = (),
    budget: Callable[[Mapping[str, Any]], int] | None = None,
) -> Searcher:
    """A searcher over `space`: a Gaussian process while trials are few, then TPE (see `tune.search.proposals`).

    Ray's own `OptunaSearch` tells Optuna that a trial stopped early is COMPLETE with its early WER, leaves one
    with a NaN RUNNING for ever, counts reports instead of samples, and names every study `optuna`. This one
    tells what the records say: COMPLETE with the best WER at the full budget, PRUNED with the WERs at their
    samples seen, or FAIL.

    A proposal depends on nothing but the space, the seed, the trial's number and what the trials before came to:
    each has random numbers of its own. So a search that was killed and resumed proposes what the unbroken one
    would have.

    Args:
        space: what to search.
        experiment: name of the study.
        seed: of all proposals.
        records: all trials; those that are there already are taken in, and those of them that have not ended are
            proposed again first.
        capacity: trials that can run now; none is proposed beyond, so that each learns from those before.
            Asked anew each time, since nodes come and go, while Tune's own limit is fixed.
        proposed: takes a new trial's number and settings, before Ray does; it writes them down.
        earlier: results of other experiments, taken for trials that ended before this search began.
        budget: samples of the full budget of a trial with given settings; None where all have the same.
    """
    import optuna
    import ray.tune.search

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions, proposer = space.to_optuna(), Proposer(space, seed)

    class WerSearcher(ray.tune.search.Searcher):
        """See `make_searcher`."""

        def __init__(self) -> None:
            super().__init__(metric=METRIC, mode="min")
            self.study = optuna.create_study(study_name=experiment, direction="minimize")
            self._trials: dict[str, optuna.trial.Trial] = {}
            self.exhausted = False
            """Whether the space holds no other point."""
            self._next = 1
            self._open: dict[str, str] = {}
            """Trial numbers by Ray's own ids."""
            for trial in earlier:
                self.study.add_trial(
                    frozen_trial(
                        trial.params, trial.evaluations, trial.value, distributions, budget=trial.budget
                    )
                )
            for record in records.all():
                self._take_in(record)
            self._waiting = [record.trial_id for record in records.all() if record.status == "running"]

        def __reduce__(self) -> tuple[Any, ...]:
            """A word in its place: Ray pickles the searcher into files that are never read."""
            return str, ("see events.jsonl",)

        def _take_in(self, record: TrialRecord) -> None:
            """Put a trial of ours into the study, and keep Optuna's handle to it."""
            own = None if budget is None else budget(record.config)
            self.study.add_trial(
                frozen_trial(record.config, record.evaluations, _value(record), distributions, record, own)
            )
            stored = self.study.get_trials(deepcopy=False)[-1]
            self._trials[record.trial_id] = optuna.trial.Trial(self.study, stored._trial_id)

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            """The next settings, with the trial's number added; None while no trial has room."""
            if len(self._open) >= capacity():
                return None
            if self._waiting:
                number = self._waiting.pop(0)
                params = dict(records[number].config)
            else:
                number = f"{self._next_number():03d}"
                found = proposer.propose(self.study.get_trials(deepcopy=False), int(number))
                if found is None:
                    self.exhausted = True
                    return ray.tune.search.Searcher.FINISHED  # type: ignore[no-any-return]
                params = found
                self._take_in(TrialRecord(number, params))
                proposed(number, params)
            self._open[trial_id] = number
            return {**params, TRIAL_ID: number}

        def _next_number(self) -> int:
            """The first free number: a trial that was proposed but never began may have left a gap."""
            while f"{self._next:03d}" in records or f"{self._next:03d}" in self._trials:
                self._next += 1
            return self._next

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            """Report the WER at the samples seen, once."""
            number, seen, wer = self._open[trial_id], int(result[TIME_ATTRIBUTE]), float(result[METRIC])
            trial = self._trials[number]
            known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
            if math.isfinite(wer) and seen not in known:
                trial.report(wer, seen)

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            """Tell how the trial ended: what the records say, which know it before."""
            number = self._open.get(trial_id)
            if number is None:
                return
            if result:  # Ray keeps the one on which a trial was stopped from `on_trial_result`
                self.on_trial_result(trial_id, result)
            del self._open[trial_id]
            if number not in records:  # its process ended before the trial began
                self.study.tell(self._trials[number], state=trial_state("failed"))
                return
            record = records[number]
            outcome = "failed" if error else record.outcome
            self.study.tell(
                self._trials[number],
                _best_at_full_budget(record) if outcome == "completed" else None,
                state=trial_state(outcome),
            )

        def save(self, checkpoint_path: str) -> None:
            """Nothing to do: the records are saved with the search."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing to do: a resumed search begins with its records."""

    return WerSearcher()


def _value(record: TrialRecord) -> float | None:
    return _best_at_full_budget(record) if record.status == "completed" else None


def _best_at_full_budget(record: TrialRecord) -> float | None:
    """The objective: the best WER of a trial that had the whole budget, which is what its export would have."""
    return record.best_wer


def trial_state(outcome: str) -> TrialState:
    from optuna.trial import TrialState

    states = {
        "completed": TrialState.COMPLETE,
        "early_stopped": TrialState.PRUNED,
        "running": TrialState.RUNNING,
    }
    return states.get(outcome, TrialState.FAIL)


def frozen_trial(
    params: Mapping[str, Any],
    evaluations: list[tuple[int, float]],
    value: float | None,
    distributions: Mapping[str, Any],
    record: TrialRecord | None = None,
    budget: int | None = None,
) -> FrozenTrial:
    """A trial of before for the study; an earlier experiment's where no record is given.

    Args:
        params: its settings.
        evaluations: samples seen and WER of each.
        value: the best WER of a trial that had its whole budget.
        distributions: of the space.
        record: of a trial of this search.
        budget: samples of its full budget, for `tune.search.samplers.projected`.
    """
    import optuna

    origin = {TRIAL_ID: record.trial_id} if record else {EARLIER: "an earlier experiment"}
    outcome = record.status if record else ("early_stopped" if value is None else "completed")
    return optuna.trial.create_trial(
        state=trial_state(outcome),
        params=dict(params),
        distributions={name: distributions[name] for name in params},
        intermediate_values=dict(evaluations),
        value=value,
        user_attrs=origin if budget is None else {**origin, BUDGET: budget},
    )
