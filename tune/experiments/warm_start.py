"""`--warm-start`: what one experiment found, as the searcher of another can use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from trainer.scoring.objectives import objective_value
from tune.experiments.experiment import Experiment
from tune.search.searcher import EarlierTrial, WarmStart
from tune.space.parameters import COMPARED
from tune.space.space import SearchSpace
from tune.util.errors import ExperimentError


def read_warm_start(saved: Experiment, spaces: Sequence[SearchSpace], ours: dict[str, Any]) -> WarmStart:
    """Take from another experiment what fits.

    Args:
        spaces: what is searched now, bounds resolved: of those that may be, a trial has to fit one.
        ours: this search's settings, all of `TrainConfig` and the weights of its data's sources.

    Raises:
        ExperimentError: it has no results, or nothing of it fits.
    """
    space = spaces[0]
    theirs = saved.shared
    different = [key for key in COMPARED if theirs.get(key) != ours.get(key)]
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
            trials.append(EarlierTrial(params, trial.evaluations, value, comparable=not different))
    if not trials:
        raise ExperimentError(
            f"--warm-start {saved.name}: none of its {len(saved.state.records)} trials fits the space"
            + "".join(f"; {key} is outside the space in {count}" for key, count in outside.items())
        )
    notes = _notes(saved, len(trials), outside, space, ours)
    if different:
        notes.append(
            f"warm start: {', '.join(different)} differ, so WERs are compared relative to the base model's"
            + ("; learning rates are taken as they are" if "model" in different else "")
        )
    return WarmStart(trials, objective_value(saved.state.trial_base_rates), saved.settings.rungs[-1], notes)


def _notes(
    saved: Experiment, used: int, outside: Counter[str], space: SearchSpace, ours: dict[str, Any]
) -> list[str]:
    theirs = saved.shared
    notes = [f"warm start: {used} of the {len(saved.state.records)} trials of {saved.name} are used"]
    notes += [
        f"warm start: {count} are left out, their {key} is outside the space"
        for key, count in outside.items()
    ]
    searched_there = {key for trial in saved.state.records.all() for key in trial.config}
    for key in space.parameters:
        if key not in searched_there:
            notes.append(f"warm start: {key} was not searched there, it was {theirs.get(key)}")
    for key in sorted(searched_there - {*space.parameters, "method"}):
        notes.append(
            f"warm start: {key} was searched there and is {ours.get(key)} here; the results are used anyway"
        )
    return notes
