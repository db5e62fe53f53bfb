"""Which settings the next trial has; Ray Tune asks by `RaySearcher`, after whose methods these are named."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tune.search.proposals import propose
from tune.search.scheduler import TRIAL_ID

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, TrialState

    from tune.search.records import Records
    from tune.space.space import SearchSpace


@dataclasses.dataclass(frozen=True)
class EarlierTrial:
    """A trial of another experiment that the searcher learns from."""

    params: dict[str, Any]
    evaluations: list[tuple[int, float]]
    value: float | None
    """Its best WER at its full budget; None where it was stopped early."""
    comparable: bool = True
    """Whether its WERs are measured as this search's are; false of other data or another model."""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Trials of another experiment that fit into the space."""

    trials: list[EarlierTrial]
    baseline: float
    """WER of its base model in percent."""
    budget: int
    """Samples seen by its longest trial."""
    notes: list[str]
    """What is not used, and why."""

    def adapted(self, baseline: float, budget: int) -> list[EarlierTrial]:
        """The trials with WERs and samples on this search's scales.

        WERs count relative to the base model's, so that those of an easier or harder data set come nearer to this
        one's; with the same model and data both are equal and nothing changes.
        """
        wer, samples = baseline / self.baseline if self.baseline else 1.0, budget / self.budget
        return [
            dataclasses.replace(
                trial,
                evaluations=[
                    (max(1, round(seen * samples)), found * wer) for seen, found in trial.evaluations
                ],
                value=None if trial.value is None else trial.value * wer,
            )
            for trial in self.trials
        ]

    def within(self, space: SearchSpace) -> WarmStart:
        """The same with those trials alone that lie in a space, whose learning rates are known by now."""
        trials = [trial for trial in self.trials if not space.outside(trial.params)]
        left_out = len(self.trials) - len(trials)
        notes = [f"warm start: {left_out} are left out, their learning_rate is outside the space"]
        return dataclasses.replace(self, trials=trials, notes=[*self.notes, *(notes if left_out else [])])


class Source(abc.ABC):
    """Hands out named settings while there is room for a trial; `trial_id` is Ray's own."""

    exhausted = False
    """Whether no other settings are left."""

    def __init__(
        self, capacity: Callable[[], int], proposed: Callable[[str, dict[str, Any]], object]
    ) -> None:
        """Args:
        capacity: trials that can run now; none is proposed beyond, so that each learns from those before.
            Asked anew each time, since nodes come and go, while Tune's own limit is fixed.
        proposed: takes a trial's number and settings, before Ray does; it writes them down.
        """
        self._capacity, self._proposed = capacity, proposed
        self._open: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next settings, with the trial's number as `TRIAL_ID`; None where none has room or none is left."""
        if len(self._open) >= self._capacity():
            return None
        found = self._next()
        if found is None:
            return None
        self._open.add(trial_id)
        self._proposed(*found)
        return {**found[1], TRIAL_ID: found[0]}

    def on_trial_complete(self, trial_id: str) -> None:
        self._open.discard(trial_id)

    @abc.abstractmethod
    def _next(self) -> tuple[str, dict[str, Any]] | None:
        """Number and settings of the next trial."""


class Searcher(Source):
    """Optuna's TPE (see `tune.search.proposals`), told what the records say.

    Ray's own `OptunaSearch` tells Optuna that a trial stopped early is COMPLETE with its early WER, leaves one
    with a NaN RUNNING for ever, and counts reports instead of samples. Here a trial is COMPLETE with the best WER
    at the full budget, PRUNED with the WERs at their samples seen, or FAIL.

    A proposal depends on nothing but the space, the seed, the trial's number and what the trials before came to:
    each has random numbers of its own. So a search that was killed and resumed proposes what the unbroken one
    would have.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        seed: int,
        records: Records,
        capacity: Callable[[], int] = lambda: 1_000_000,
        proposed: Callable[[str, dict[str, Any]], object] | None = None,
        earlier: Iterable[EarlierTrial] = (),
        shared: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        space: what to search.
        seed: of all proposals.
        records: all trials; those of them that have not ended are proposed again first.
        capacity: see `Source`.
        proposed: see `Source`; the records know the trial behind it.
        earlier: results of other experiments, taken for trials that ended before this search began. Those that are
            not comparable count until `startup_trials` of this search have ended: where their data are easier, hardly
            any trial of this search seems good beside them.
        shared: see `SearchSpace.point_of`; trials that lie outside the space teach nothing.
        """
        import optuna

        super().__init__(capacity, proposed or records.start)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._seed = space, seed
        self._records, self._shared = records, shared or {}
        self._earlier = [(optuna_trial(trial, space), trial.comparable) for trial in earlier]
        self._waiting = [record.trial_id for record in records.running()]

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        if self._waiting:
            number = self._waiting.pop(0)
            return number, dict(self._records[number].config)
        count, trials = len(self._records) + 1, self.trials()
        few = sum(trial.state.is_finished() for trial in trials) < self._space.searcher.startup_trials
        earlier = [trial for trial, comparable in self._earlier if few or comparable]
        params = propose(self._space, self._seed, trials, count, earlier)
        self.exhausted = params is None
        return None if params is None else (f"{count:03d}", params)

    def trials(self) -> list[FrozenTrial]:
        """The trials that lie in the space, as Optuna is to know them."""
        found = []
        for record in self._records.all():
            point = self._space.point_of(record.config, self._shared)
            if point is None:
                continue
            # A trial that had its whole budget is worth its best evaluation, which is what its export would have.
            value = record.best_value if record.status == "completed" else None
            trial = EarlierTrial(point, record.evaluations, value)
            found.append(optuna_trial(trial, self._space, record.status))
        return found


class Repeater(Source):
    """Hands out given settings, but for those that have ended."""

    def __init__(
        self,
        settings: Mapping[str, dict[str, Any]],
        records: Records,
        capacity: Callable[[], int],
        proposed: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:
        """`settings` are by name; for the others see `Source`."""
        super().__init__(capacity, proposed or records.start)
        self._left = [
            (name, config)
            for name, config in settings.items()
            if name not in records or records[name].status == "running"
        ]
        self.exhausted = not self._left

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        found = self._left.pop(0) if self._left else None
        self.exhausted = not self._left
        return found


def optuna_trial(trial: EarlierTrial, space: SearchSpace, status: str | None = None) -> FrozenTrial:
    """A trial as Optuna knows it; without a status it is one that ended, by its value."""
    import optuna

    distributions, params = space.to_optuna(), space.named(trial.params)
    return optuna.trial.create_trial(
        state=trial_state(status or ("early_stopped" if trial.value is None else "completed")),
        params=params,
        distributions={name: distributions[name] for name in params},
        intermediate_values=dict(trial.evaluations),
        value=trial.value,
    )


def trial_state(outcome: str) -> TrialState:
    """What Optuna calls how a trial ended."""
    from optuna.trial import TrialState

    states = {
        "completed": TrialState.COMPLETE,
        "early_stopped": TrialState.PRUNED,
        "running": TrialState.RUNNING,
    }
    return states.get(outcome, TrialState.FAIL)
