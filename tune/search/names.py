"""Names of trainings: `005` is a trial, `005-r1` a repeat of it."""

from __future__ import annotations

import functools


def trial_of(run: str) -> str:
    """The trial that a repeat is of; a trial itself as it is."""
    return run.split("-r", maxsplit=1)[0]


def role_of(run: str) -> str:
    """What MLflow calls a training of this name: `trial` or `repeat`."""
    return "trial" if trial_of(run) == run else "repeat"


@functools.cache
def trial_order(run: str) -> tuple[int, int, str]:
    """Sorts trainings by number: `1000` comes after `999`, and repeats follow their trial."""
    trial, _, repeat = run.partition("-r")
    return _number(trial), _number(repeat), run


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
