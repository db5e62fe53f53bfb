"""`--warm-start`: what a finished experiment found, as the searcher of another one can use it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.scoring.objectives import objective_value
from tune.experiments.experiment import Experiment
from tune.search.searcher import EarlierTrial
from tune.space.space import SearchSpace
from tune.util.errors import ExperimentError
from tune.util.plain import restored

WARM_START_FILE = "warm_start.json"
_SAME = (
    *("model", "data", "data_config", "language", "task"),
    *("normalizer", "objective", "max_eval_clips", "validation_split"),
)
"""Settings that decide whether the WERs of two experiments compare."""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Trials of another experiment that fit into the space."""

    experiment: str
    trials: list[EarlierTrial]
    baseline: float
    """WER of its base model in percent."""
    budget: int
    """Samples seen by its longest trial."""
    notes: list[str]
    """What is not used, and why."""

    def adapted(self, baseline: float, budget: int) -> list[EarlierTrial]:
        """The trials with WERs and samples on this search's scales.

        WERs count relative to the base model's, so that an easier or harder data set does not make all of them
        look good or bad; with the same model and data both are equal and nothing changes.
        """
        wer, samples = baseline / self.baseline if self.baseline else 1.0, budget / self.budget
        return [
            EarlierTrial(
                trial.params,
                [(max(1, round(seen * samples)), found * wer) for seen, found in trial.evaluations],
                None if trial.value is None else trial.value * wer,
                None if trial.budget is None else round(trial.budget * samples),
            )
            for trial in self.trials
        ]

    def within(self, space: SearchSpace) -> WarmStart:
        """The same with those trials alone that lie in a space, whose learning rates are known by now."""
        trials = [trial for trial in self.trials if not space.outside(trial.params)]
        left_out = len(self.trials) - len(trials)
        notes = [f"warm start: {left_out} are left out, their learning_rate is outside the space"]
        return dataclasses.replace(self, trials=trials, notes=[*self.notes, *(notes if left_out else [])])


def save_warm_starts(found: Sequence[WarmStart], folder: Path) -> None:
    """Keep them with the experiment: a resumed search learns from the same."""
    text = json.dumps([dataclasses.asdict(each) for each in found], indent=1)
    (folder / WARM_START_FILE).write_text(text + "\n", encoding="utf-8")


def load_warm_starts(folder: Path) -> tuple[WarmStart, ...]:
    """Those that a search began with."""
    path = folder / WARM_START_FILE
    if not path.is_file():
        return ()
    return tuple(restored(WarmStart, each) for each in json.loads(path.read_text(encoding="utf-8")))


def read_warm_start(saved: Experiment, spaces: Sequence[SearchSpace], ours: dict[str, Any]) -> WarmStart:
    """Take from a finished experiment what fits.

    Args:
        spaces: what is searched now, bounds resolved: of those that may be, a trial has to fit one.
        ours: this search's settings, all of `TrainConfig`.

    Raises:
        ExperimentError: it has no results, or nothing of it fits.
    """
    name, space = saved.name, spaces[0]
    theirs = saved.settings.train_config
    trials: list[EarlierTrial] = []
    outside: Counter[str] = Counter()
    for trial in saved.state.records.all():
        if trial.status not in ("completed", "early_stopped"):
            continue
        config = {**theirs, **trial.config}
        params = space.draw(lambda key, _, config=config: config.get(key))  # type: ignore[misc]
        wrong = min((each.outside(params) for each in spaces), key=len)
        here = {**ours, **params}
        if config["method"] != here["method"]:
            wrong.append("method")  # it has learning rates of its own
        outside.update(wrong)
        if not wrong and trial.evaluations:
            value = trial.best_value if trial.status == "completed" else None
            trials.append(EarlierTrial(params, trial.evaluations, value, saved.state.budget_of(trial)))
    if not trials:
        raise ExperimentError(
            f"--warm-start {name}: none of its {len(saved.state.records)} trials fits the space"
            + "".join(f"; {key} is outside the space in {count}" for key, count in outside.items())
        )
    notes = _notes(saved, len(trials), outside, space, ours)
    return WarmStart(
        name, trials, objective_value(saved.state.trial_base_rates), saved.settings.rungs[-1], notes
    )


def _notes(
    saved: Experiment, used: int, outside: Counter[str], space: SearchSpace, ours: dict[str, Any]
) -> list[str]:
    theirs = saved.settings.train_config
    notes = [f"warm start: {used} of the {len(saved.state.records)} trials of {saved.name} are used"]
    notes += [
        f"warm start: {count} are left out, their {key} is outside the space"
        for key, count in outside.items()
    ]
    searched_there = set(saved.settings.space.get("parameters", ()))  # a training has none
    for key in space.parameters:
        if key not in searched_there:
            notes.append(f"warm start: {key} was not searched there, it was {theirs.get(key)}")
    for key in sorted(searched_there - {*space.parameters, "method"}):
        notes.append(
            f"warm start: {key} was searched there and is {ours.get(key)} here; the results are used anyway"
        )
    different = [key for key in _SAME if theirs.get(key) != ours.get(key)]
    if different:
        notes.append(
            f"warm start: {', '.join(different)} differ, so WERs are compared relative to the base model's"
        )
    return notes
