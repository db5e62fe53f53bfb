"""The best trials once more, with other seeds: what they are worth without the luck of a single training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tune.scheduler import METRIC, TRIAL_ID
from tune.trainable import UTTERANCES_FILE

if TYPE_CHECKING:
    from ray.tune.search import Searcher

    from tune.checkpoint_files import CheckpointFiles
    from tune.comparison import Repeat, Verdict
    from tune.records import Records, TrialRecord

LEAST_TRIALS = 8
"""Searches of so many trials and more have finalists unless told otherwise."""
DEFAULT_COUNT, DEFAULT_REPEATS = 2, 2


def choose_finalists(records: Records, count: int) -> list[TrialRecord]:
    """The best of the trials that had their whole budget."""
    completed = [
        record for record in records.all() if record.status == "completed" and record.best_wer is not None
    ]
    return sorted(completed, key=lambda record: (record.best_wer, record.trial_id))[:count]


def repeat_settings(finalists: Sequence[TrialRecord], repeats: int, seed: int) -> dict[str, dict[str, Any]]:
    """Settings of every repeat by its name, as `005-r1`; all finalists get the same seeds, none the search's."""
    return {
        f"{finalist.trial_id}-r{number}": {**finalist.config, "seed": seed + number}
        for number in range(1, repeats + 1)
        for finalist in finalists
    }


def role_of(run: str) -> str:
    """What MLflow calls a training of this name: `trial` or `repeat`."""
    return "trial" if trial_of(run) == run else "repeat"


def trial_of(run: str) -> str:
    """The trial that a repeat is of; a trial itself as it is."""
    return run.split("-r", maxsplit=1)[0]


def describe_repeats(settings: dict[str, dict[str, Any]]) -> str:
    """What is trained again, in one line."""
    finalists = list(dict.fromkeys(trial_of(name) for name in settings))
    seeds = len(settings) // len(finalists)
    return f"finalists: trials {', '.join(finalists)} once more at full budget, with {seeds} new seeds each"


def finalists_cost(records: Records, runs: int, slots: int) -> tuple[float, float]:
    """Wall seconds and trial-hours that so many repeats will take, from the trials that had their whole budget."""
    full = [record.seconds for record in records.all() if record.status == "completed"]
    if not full:
        return 0.0, 0.0
    mean = sum(full) / len(full)
    return mean * -(-runs // max(1, slots)), mean * runs / 3600


def make_repeater(
    settings: dict[str, dict[str, Any]], records: Records, capacity: Callable[[], int]
) -> Searcher:
    """A searcher that hands out given settings, but for those that have ended."""
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
            return str, ("see state.json",)

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            """The next repeat; None while none has room."""
            if not self._left:
                return ray.tune.search.Searcher.FINISHED  # type: ignore[no-any-return]
            if len(self._open) >= capacity():
                return None
            self._open.add(trial_id)
            name = self._left.pop(0)
            return {**settings[name], TRIAL_ID: name}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            self._open.discard(trial_id)

        def save(self, checkpoint_path: str) -> None:
            """Nothing to do: the records are saved with the search."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing to do: a resumed search begins with its records."""

    return Repeater()


def compare_finalists(repeats: Records, names: Sequence[str], files: CheckpointFiles) -> Verdict | None:
    """The verdict over the repeats that came to an end; None where none did.

    Raises:
        OSError: what a checkpoint says of its clips cannot be read.
    """
    import numpy as np

    from tune.comparison import Repeat, judge_finalists

    found: dict[str, list[Repeat]] = {}
    for name in names:
        if name not in repeats:
            continue
        record = repeats[name]
        if record.status != "completed" or record.checkpoint is None or record.best_wer is None:
            continue
        clips = json.loads(files.read(record.checkpoint, UTTERANCES_FILE))
        found.setdefault(trial_of(name), []).append(
            Repeat(
                run=name,
                wer=record.best_wer,
                seconds=record.seconds,
                word_errors=np.asarray(clips["word_errors"]),
                words=np.asarray(clips["words"]),
            )
        )
    return judge_finalists(found) if found else None


def best_run(verdict: Verdict, repeats: Records) -> TrialRecord:
    """The winner's repeat with the lowest WER: what is exported."""
    runs = next(standing.runs for standing in verdict.standings if standing.trial_id == verdict.winner)
    return min((repeats[run] for run in runs), key=lambda record: record.best_wer or 0.0)
