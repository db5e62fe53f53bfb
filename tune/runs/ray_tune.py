"""Ray Tune's interfaces to the searcher and to what ends a search."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray.tune
import ray.tune.search

from tune.runs.callback import SAVE_SECONDS

if TYPE_CHECKING:
    from tune.experiments.events import CutShort
    from tune.experiments.log import ExperimentLog
    from tune.search.searcher import Source

_LOOK_SECONDS = 0.5
"""Between two looks at the clock; budgets are looked at after each event as well."""


class _NotPickled:
    """Ray pickles its parts into files that are never read: a word stands in their place."""

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("see events.jsonl",)


class RaySearcher(_NotPickled, ray.tune.search.Searcher):
    """Hands out what a source proposes, until it is `over`."""

    def __init__(
        self,
        source: Source,
        over: Callable[[], bool] = lambda: False,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """`ending` is called at the end of a trial, before the callbacks."""
        super().__init__()  # what decides is up to the source
        self._source, self._over, self._ending = source, over, ending

    def suggest(self, trial_id: str) -> Any:
        """The next settings; None while no trial has room, `FINISHED` where none are left."""
        if self._over():
            return None
        config = self._source.suggest(trial_id)
        return self.FINISHED if config is None and self._source.exhausted else config

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take in what the trial reported last: Ray calls the callbacks behind this. Another one has room."""
        self._ending()
        self._source.on_trial_complete(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to do: the log has everything."""


class RayStopper(_NotPickled, ray.tune.Stopper):
    """Ends all trials where a budget or the user does. The log knows of a budget's end before Ray does."""

    def __init__(
        self,
        log: ExperimentLog,
        look: Callable[[float], CutShort | None],
        saving: Callable[[], bool] = lambda: False,
        problem: Callable[[], Exception | None] = lambda: None,
        save: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Args:
        look: takes seconds since the epoch; what it finds goes to the log, once.
        saving: whether checkpoints are being written; the trials go on for a little then.
        problem: where there is one, nobody takes in what trials report, and they end.
        save: has the trials save where they are; takes why.
        """
        self._log, self._look, self._saving, self._problem = log, look, saving, problem
        self._save, self._interrupts = save, 0
        self._looked: tuple[int, float] = (-1, 0.0)
        self._over: float | None = None
        self._lock = threading.Lock()

    def interrupt(self, number: int, frame: Any) -> None:
        """End the trials once they have saved, by a signal; by a second one at once."""
        self._interrupts += 1

    def react(self) -> None:
        """Have the trials save if there was a signal. From another thread, too: Tune asks seconds later."""
        with self._lock:
            if self._interrupts and self._over is None:
                self._over = time.time()
                self._save("interrupted")

    @property
    def over(self) -> bool:
        return self._over is not None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial ends by itself here."""
        return False

    def stop_all(self) -> bool:
        """Look, unless nothing has happened since the last time; what was once found stays."""
        if self._problem() is not None or self._interrupts > 1:
            return True
        self.react()
        now, (events, looked) = time.time(), self._looked
        if self._over is None and (self._log.state.events != events or abs(now - looked) >= _LOOK_SECONDS):
            self._looked = self._log.state.events, now
            found = self._look(now)
            if found is not None:
                self._log.append(found)
                self._over = now
                self._save(found.text)
        return self._over is not None and (not self._saving() or now - self._over >= SAVE_SECONDS)
