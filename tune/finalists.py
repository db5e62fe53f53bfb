"""The best trials once more, with other seeds: what they are worth without the luck of a single training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tune.scheduler import METRIC, TRIAL_ID
from tune.search.names import trial_of, trial_order

if TYPE_CHECKING:
    from ray.tune.search import Searcher

    from tune.search.records import Records, TrialRecord

LEAST_TRIALS = 8
"""Searches of so many trials and more have finalists unless told otherwise."""
DEFAULT_COUNT, DEFAULT_REPEATS = 2, 2
_SEEDS = 2**32
"""Seeds that there are, from 0."""


def choose_finalists(records: Records, count: int) -> list[TrialRecord]:
    """The best of the trials that had their whole budget."""
    completed = [
        record for record in records.all() if record.status == "completed" and record.best_wer is not None
    ]
    return sorted(completed, key=lambda record: (record.best_wer, trial_order(record.trial_id)))[:count]


def repeat_settings(finalists: Sequence[TrialRecord], repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Settings of every repeat by its name, as `005-r1`; all finalists get the same seeds, those after `seed`.

    None of them is a seed that a finalist was trained with, or its repeat would be a copy.

    Args:
        finalists: to train again.
        repeats: of each.
        seed: that all trials were trained with, but for those whose own settings name one.
    """
    used = {seed, *(finalist.config.get("seed", seed) for finalist in finalists)}
    after = ((seed + step) % _SEEDS for step in itertools.count(1))
    seeds = list(itertools.islice((one for one in after if one not in used), repeats))
    return {
        f"{finalist.trial_id}-r{number}": {**finalist.config, "seed": own}
        for number, own in enumerate(seeds, 1)
        for finalist in finalists
    }


def describe_repeats(settings: dict[str, dict[str, Any]]) -> str:
    """What is trained again, in one line."""
    finalists = list(dict.fromkeys(trial_of(name) for name in settings))
    seeds = len(settings) // len(finalists)
    return f"finalists: trials {', '.join(finalists)} once more at full budget, with {seeds} new seeds each"


def make_repeater(
    settings: dict[str, dict[str, Any]],
    records: Records,
    capacity: Callable[[], int],
    proposed: Callable[[str, dict[str, Any]], None] = lambda name, config: None,
) -> Searcher:
    """A searcher that hands out given settings, but for those that have ended, and calls `proposed` with each."""
    import ray.tune.search

    class Repeater(ray.tune.search.Searcher):
        """See `make_repeater`."""

        def __init__(self) -> None:
            super().__init__(metric=METRIC, mode="min")
            self._left = [
                name for name in settings if name not in records or records[name].status == "running"
            ]
            self._open: set[str] = set()

        def __reduce__(self) -> tuple[Any, ...]:
            """A word in its place: Ray pickles the searcher into files that are never read."""
            return str, ("see events.jsonl",)

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            """The next repeat; None while none has room."""
            if not self._left:
                return ray.tune.search.Searcher.FINISHED  # type: ignore[no-any-return]
            if len(self._open) >= capacity():
                return None
            self._open.add(trial_id)
            name = self._left.pop(0)
            proposed(name, settings[name])
            return {**settings[name], TRIAL_ID: name}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            self._open.discard(trial_id)

        def save(self, checkpoint_path: str) -> None:
            """Nothing to do: the records are saved with the search."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing to do: a resumed search begins with its records."""

    return Repeater()
