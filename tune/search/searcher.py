"""Which settings the next trial has, and what Optuna is told of every trial.

Ray Tune asks by `RaySearcher`, after whose methods these are named; `trial_id` is Ray's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.scoring.objectives import objective_value
from tune.search.proposals import EARLIER, Proposer
from tune.search.records import TrialRecord
from tune.search.samplers import BUDGET, load_gaussian_process
from tune.search.scheduler import TIME_ATTRIBUTE, TRIAL_ID

if TYPE_CHECKING:
    from optuna.trial import Trial, TrialState

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


class Searcher:
    """A Gaussian process while trials are few, then TPE (see `tune.search.proposals`), told the truth about each trial.

    Ray's own `OptunaSearch` tells Optuna that a trial stopped early is COMPLETE with its early WER, leaves one
    with a NaN RUNNING for ever, counts reports instead of samples, and names every study `optuna`. This one
    tells what the records say: COMPLETE with the best WER at the full budget, PRUNED with the WERs at their
    samples seen, or FAIL.

    A proposal depends on nothing but the space, the seed, the trial's number and what the trials before came to:
    each has random numbers of its own. So a search that was killed and resumed proposes what the unbroken one
    would have.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        experiment: str,
        seed: int,
        records: Records,
        capacity: Callable[[], int] = lambda: 1_000_000,
        proposed: Callable[[str, dict[str, Any]], None] = lambda number, params: None,
        earlier: Iterable[EarlierTrial] = (),
        budget: Callable[[Mapping[str, Any]], int | None] = lambda config: None,
    ) -> None:
        """Args:
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

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(study_name=experiment, direction="minimize")
        self.exhausted = False
        """Whether the space holds no other point."""
        self._proposer, self._space = Proposer(space, seed), space
        self._distributions = space.to_optuna()
        self._records, self._budget = records, budget
        self._capacity, self._proposed = capacity, proposed
        self._trials: dict[str, Trial] = {}
        """Optuna's handles by trial number."""
        self._open: dict[str, str] = {}
        """Trial numbers by Ray's own ids."""
        self._next = 1
        for trial in earlier:
            self._add(
                trial,
                "early_stopped" if trial.value is None else "completed",
                EARLIER,
                "an earlier experiment",
            )
        for record in records.all():
            self._take_in(record)
        self._waiting = [record.trial_id for record in records.running()]

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next settings, with the trial's number as `TRIAL_ID`; None where none has room or none is left."""
        if len(self._open) >= self._capacity():
            return None
        if self._waiting:
            number = self._waiting.pop(0)
            params = dict(self._records[number].config)
        else:
            number = f"{self._next_number():03d}"
            found = self._proposer.propose(self.study.get_trials(deepcopy=False), int(number))
            if found is None:
                self.exhausted = True
                return None
            params = found
            self._take_in(TrialRecord(number, params))
            self._proposed(number, params)
        self._open[trial_id] = number
        return {**params, TRIAL_ID: number}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Report the objective at the samples seen, once."""
        trial, seen = self._trials[self._open[trial_id]], int(result[TIME_ATTRIBUTE])
        value = objective_value(result)
        known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        if math.isfinite(value) and seen not in known:
            trial.report(value, seen)
        if trial.number < self._space.searcher.gp_trials:
            load_gaussian_process()  # while trials run: the next proposals are its

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell how the trial ended: what the records say, which know it before."""
        if trial_id not in self._open:
            return
        if result:  # Ray keeps the one on which a trial was stopped from `on_trial_result`
            self.on_trial_result(trial_id, result)
        number = self._open.pop(trial_id)
        if error or number not in self._records:  # its process ended before the trial began
            self.study.tell(self._trials[number], state=trial_state("failed"))
            return
        record = self._records[number]
        value = record.best_value if record.outcome == "completed" else None
        self.study.tell(self._trials[number], value, state=trial_state(record.outcome))

    def _next_number(self) -> int:
        """The first free number: a trial that was proposed but never began may have left a gap."""
        while f"{self._next:03d}" in self._records or f"{self._next:03d}" in self._trials:
            self._next += 1
        return self._next

    def _take_in(self, record: TrialRecord) -> None:
        """Put a trial of ours into the study, and keep Optuna's handle to it."""
        from optuna.trial import Trial

        # A trial that had its whole budget is worth its best evaluation, which is what its export would have.
        value = record.best_value if record.status == "completed" else None
        trial = EarlierTrial(record.config, record.evaluations, value, self._budget(record.config))
        self._add(trial, record.status, TRIAL_ID, record.trial_id)
        stored = self.study.get_trials(deepcopy=False)[-1]
        self._trials[record.trial_id] = Trial(self.study, stored._trial_id)

    def _add(self, trial: EarlierTrial, outcome: str, origin: str, name: str) -> None:
        """Put a trial into the study, with its name as the user attribute `origin`."""
        import optuna

        attributes: dict[str, Any] = {origin: name}
        if trial.budget is not None:
            attributes[BUDGET] = trial.budget
        params = self._space.named(trial.params)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=trial_state(outcome),
                params=params,
                distributions={name: self._distributions[name] for name in params},
                intermediate_values=dict(trial.evaluations),
                value=trial.value,
                user_attrs=attributes,
            )
        )


class Repeater:
    """Hands out given settings, but for those that have ended."""

    def __init__(
        self,
        settings: Mapping[str, dict[str, Any]],
        records: Records,
        capacity: Callable[[], int],
        proposed: Callable[[str, dict[str, Any]], None] = lambda name, config: None,
    ) -> None:
        """`settings` are by name; `proposed` is called with each when it is handed out."""
        self._settings, self._capacity, self._proposed = settings, capacity, proposed
        self._left = [name for name in settings if name not in records or records[name].status == "running"]
        self._open: set[str] = set()

    @property
    def exhausted(self) -> bool:
        """Whether none is left."""
        return not self._left

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next settings with their name; None where none has room or none is left."""
        if not self._left or len(self._open) >= self._capacity():
            return None
        self._open.add(trial_id)
        name = self._left.pop(0)
        self._proposed(name, self._settings[name])
        return {**self._settings[name], TRIAL_ID: name}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing is learned from it."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Another one has room."""
        self._open.discard(trial_id)


Source: TypeAlias = Searcher | Repeater


def trial_state(outcome: str) -> TrialState:
    """What Optuna calls how a trial ended."""
    from optuna.trial import TrialState

    states = {
        "completed": TrialState.COMPLETE,
        "early_stopped": TrialState.PRUNED,
        "running": TrialState.RUNNING,
    }
    return states.get(outcome, TrialState.FAIL)
