"""What Ray Tune asks during a search: thin faces of the searcher, of what decides on trials, and of budgets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray.tune
import ray.tune.schedulers
import ray.tune.search

from tune.search.scheduler import METRIC, TRIAL_ID

if TYPE_CHECKING:
    from tune.experiments.events import FinalRoundCut, TrialsOver
    from tune.experiments.log import ExperimentLog
    from tune.search.searcher import Source

_LOOK_SECONDS = 0.5
"""Between two looks at the clock; budgets are looked at after each event as well."""


class _NotPickled:
    """Ray pickles its parts into files that are never read: a word stands in their place."""

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("see events.jsonl",)


class RaySearcher(_NotPickled, ray.tune.search.Searcher):
    """Hands out what a source proposes."""

    def __init__(self, source: Source) -> None:
        super().__init__(metric=METRIC, mode="min")
        self._source = source

    def suggest(self, trial_id: str) -> Any:
        """The next settings; None while no trial has room, `FINISHED` where none are left."""
        config = self._source.suggest(trial_id)
        return self.FINISHED if config is None and self._source.exhausted else config

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Pass it on."""
        self._source.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Pass it on."""
        self._source.on_trial_complete(trial_id, result, error)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to do: the log has everything."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to do: a resumed search begins with its records."""


class RayScheduler(ray.tune.schedulers.FIFOScheduler):
    """Ends a trial where `evaluated`, which hears of each evaluation before anything else does, says so."""

    def __init__(self, evaluated: Callable[[str, dict[str, Any]], bool]) -> None:
        """`evaluated` takes the trial's own number and the evaluation."""
        super().__init__()
        self._evaluated = evaluated

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Whether the trial goes on."""
        return str(self.STOP if self._evaluated(trial.config[TRIAL_ID], result) else self.CONTINUE)


class RayStopper(_NotPickled, ray.tune.Stopper):
    """Ends all trials where a budget does; the log knows it before Ray."""

    def __init__(
        self, log: ExperimentLog, look: Callable[[float], TrialsOver | FinalRoundCut | None]
    ) -> None:
        """`look` takes seconds since the epoch; what it finds goes to the log, once."""
        self._log, self._look = log, look
        self._looked: tuple[int, float] = (-1, 0.0)
        self._over = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial ends by itself here."""
        return False

    def stop_all(self) -> bool:
        """Look, unless nothing has happened since the last time; what was once found stays."""
        now, (events, looked) = time.time(), self._looked
        if not self._over and (self._log.state.events != events or abs(now - looked) >= _LOOK_SECONDS):
            self._looked = self._log.state.events, now
            found = self._look(now)
            if found is not None:
                self._log.append(found)
                self._over = True
        return self._over
