"""What ends a search before all its trials: budgets, a target, a plateau, or a failure that hits every trial."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from trainer.errors import ConfigError
from tune.search.finalists import choose_finalists
from tune.search.records import Records

FAILURES_IN_A_ROW = 3
"""Trials that fail one after the other before the search ends."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
EndReason = Literal["time_budget", "gpu_hours", "target", "plateau", "failures", "space"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgets:
    """When a search ends although trials are left; None where it does not matter."""

    seconds: float | None = None
    """Wall time of the search from its command on, over all its sessions."""
    gpu_hours: float | None = None
    """GPUs of each trial x its hours, summed over the trials."""
    plateau_trials: int | None = None
    """Trials in a row that bring nothing better ..."""
    plateau_points: float = 0.1
    """... by more than so many WER points."""
    target_wer: float | None = None
    """WER in percent that is good enough."""


@dataclasses.dataclass(frozen=True)
class End:
    """Why a search ended before all its trials."""

    reason: EndReason
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spent:
    """What a search has used so far, and what it must keep back."""

    seconds: float
    """Wall time over all its sessions."""
    gpus_per_trial: float
    session: int = 1
    """Failures in earlier sessions may have been mended."""
    plateau_since: float = 0.0
    """Trials that ended before, in seconds since the epoch, make no plateau."""
    reserved_seconds: float = 0.0
    """Wall time that the final round will take."""
    reserved_hours: float = 0.0
    """Hours of all its trainings together."""
    measured_hours: float = 0.0
    """Hours in which averages were measured."""


def reached(
    budgets: Budgets,
    spent: Spent,
    trials: Records,
    repeats: Records,
    *,
    upper_end: float | None = None,
    final_round: bool = False,
) -> End | None:
    """Why the search shall end now; None where it shall not.

    Args:
        upper_end: of the 95 % interval of the best completed trial's WER, in percent; None where it is not known.
        final_round: whether these run now, not the trials.
    """
    runs = repeats if final_round else trials
    return (
        _failures(runs, spent.session)
        or _budget(budgets, spent, trials, repeats)
        or _target(budgets, trials, upper_end)
        or _plateau(budgets, spent, trials)
    )


def final_round_cost(
    trials: Records, runs: int, slots: int, window_ratio: float, measured: int = 0
) -> tuple[float, float]:
    """Wall seconds and hours of devices that the final round will take, from the trials that had their whole budget.

    Args:
        window_ratio: how much longer an evaluation takes there than in a trial: repeats are measured on whole
            windows, trials on those that they train with.
        measured: models to measure besides, one after the other, such as averages of the repeats.
    """
    full = [record for record in trials.all() if record.status == "completed"]
    if not full:
        return 0.0, 0.0
    # What is not training is evaluation, but for the start of the process; where the speed is not known, all counts.
    costs = [
        min(record.train_seconds, record.seconds)
        + max(0.0, record.seconds - record.train_seconds) * window_ratio
        for record in full
    ]
    mean = sum(costs) / len(costs)
    timed = [record for record in full if record.train_seconds and record.evaluations]
    evaluations = sum(len(record.evaluations) for record in timed)
    measuring = sum(max(0.0, record.seconds - record.train_seconds) for record in timed)
    alone = measured * window_ratio * measuring / max(1, evaluations)
    return mean * -(-runs // max(1, slots)) + alone, (mean * runs + alone) / 3600


def _budget(budgets: Budgets, spent: Spent, trials: Records, repeats: Records) -> End | None:
    kept = ", apart from what the finalists will need" if spent.reserved_seconds else ""
    if budgets.seconds is not None and spent.seconds + spent.reserved_seconds >= budgets.seconds:
        return End("time_budget", f"the time budget of {describe_duration(budgets.seconds)} is spent{kept}")
    if budgets.gpu_hours is None:
        return None
    hours = sum(record.elapsed for records in (trials, repeats) for record in records.all()) / 3600
    hours += spent.measured_hours
    if (hours + spent.reserved_hours) * spent.gpus_per_trial >= budgets.gpu_hours:
        return End("gpu_hours", f"the budget of {budgets.gpu_hours:g} GPU-hours is spent{kept}")
    return None


def _target(budgets: Budgets, trials: Records, upper_end: float | None) -> End | None:
    target, completed = budgets.target_wer, choose_finalists(trials, 1)
    if not completed or target is None or upper_end is None or upper_end >= target:
        return None
    best = completed[0]
    text = f"trial {best.trial_id} has {best.best_value:.2f} % (95 % interval up to {upper_end:.2f})"
    return End("target", f"{text}, below the target of {target:g} %")


def _plateau(budgets: Budgets, spent: Spent, trials: Records) -> End | None:
    wanted, points = budgets.plateau_trials, budgets.plateau_points
    if wanted is None:
        return None
    ended = sorted(
        (record for record in trials.all() if record.status != "running"), key=lambda record: record.ended
    )
    best, since = float("inf"), 0
    for record in ended:
        if record.best_value is None:
            continue
        better = record.best_value < best - points
        best, since = (record.best_value, 0) if better else (best, since + 1)
        if record.ended <= spent.plateau_since:
            since = 0
    if since < wanted:
        return None
    text = f"{wanted} trials in a row did not improve on {best:.2f} % by more than {points:g} points"
    return End("plateau", text)


def _failures(runs: Records, session: int) -> End | None:
    """A bug or a bad data set hits every trial: the others need not burn for it."""
    ended = [record for record in runs.all() if record.status != "running" and record.session == session]
    last = sorted(ended, key=lambda record: record.ended)[-FAILURES_IN_A_ROW:]
    if len(last) < FAILURES_IN_A_ROW or any(record.status != "failed" for record in last):
        return None
    return End("failures", f"{FAILURES_IN_A_ROW} trials in a row failed")


def parse_duration(option: str, text: str) -> float:
    """Seconds of a duration such as `8h`, `90m`, `1h30m` or `45s`.

    Raises:
        ConfigError: it is none.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or seconds <= 0:
        raise ConfigError(f"{option} {text!r}: must be a duration such as 8h, 90m, 1h30m or 45s")
    return seconds


def describe_duration(seconds: float) -> str:
    """`8h`, `1h30m`, `45s`."""
    text, left = "", round(seconds, 1)
    for unit, size in _UNITS.items():
        count = int(left // size) if unit != "s" else round(left, 1)
        if count:
            text += f"{count:g}{unit}"
            left -= count * size
    return text or "0s"
