"""Optional settings of a space file: when trials are stopped (ASHA) and how points are proposed (Optuna)."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.bounds import convert


@dataclasses.dataclass(frozen=True)
class SchedulerSettings:
    """ASHA: trials are compared at rungs, and at each only the best go on."""

    reduction_factor: float = 2.0
    """At each rung about one trial in this many goes on; the next rung is this many times as far."""
    rungs: int = 4
    """Evaluation points, the full budget included: at 1/8, 1/4, 1/2 and all of it with 4; 1 stops nobody early."""
    min_trials_per_rung: int = 2
    """A trial is stopped at a rung only when at least this many, itself included, have reached it."""
    max_wer_to_baseline: float = 2.0
    """A trial ends at a rung where its WER is above this many times the base model's; 0 never."""
    rising_rungs: int = 3
    """A trial ends where WER rose and loss fell at this many rungs in a row, the first beside the base model's:
    it learns to repeat itself; 0 never."""


@dataclasses.dataclass(frozen=True)
class SearcherSettings:
    """Optuna's TPE."""

    startup_trials: int = 10
    """Trials sampled at random before the model of good settings is used."""


#: Least and greatest value of each number; the factor must be above 1.
LIMITS: dict[str, tuple[float, float]] = {
    "reduction_factor": (1.1, 100),
    "rungs": (1, 10),
    "min_trials_per_rung": (1, 1000),
    "max_wer_to_baseline": (0, 1000),
    "rising_rungs": (0, 100),
    "startup_trials": (1, 100_000),
}


def check_setting(default: object, name: str, value: Any) -> Any:
    """`value` as the setting `name` holds it, given the setting's default.

    Raises:
        ValueError: the value has the wrong type or is out of range; the message says what is allowed.
    """
    kind, (low, high) = type(default), LIMITS[name]
    number = convert(kind, value)
    if number is None or not low <= number <= high:
        whole = "a whole number" if kind is int else "a number"
        raise ValueError(f"must be {whole} from {low:g} to {high:g}")
    return number
