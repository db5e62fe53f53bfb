"""What ends a search before all its trials: budgets, a plateau, or a failure that hits every trial."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from tune.errors import ConfigError

if TYPE_CHECKING:
    from tune.records import Records, TrialRecord

FAILURES_IN_A_ROW = 3
"""Trials that fail one after the other before the search ends."""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
EndReason = Literal["time_budget", "gpu_hours", "plateau", "failures", "space"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budgets:
    """When a search ends although trials are left; None where it does not matter."""

    seconds: float | None = None
    """Wall time of the search, over all its sessions."""
    gpu_hours: float | None = None
    """GPUs of each trial x its hours, summed over the trials."""
    plateau_trials: int | None = None
    """Trials in a row that bring nothing better ..."""
    plateau_points: float = 0.1
    """... by more than so many WER points."""


@dataclasses.dataclass(frozen=True)
class End:
    """Why a search ended before all its trials."""

    reason: EndReason
    text: str


class Limits:
    """Looks at the records again and again; what it once found stays."""

    def __init__(
        self,
        budgets: Budgets,
        records: Sequence[Records],
        *,
        gpus_per_trial: float,
        spent_seconds: float = 0.0,
    ) -> None:
        """Args:
        budgets: the limits.
        records: all trainings that count: trials, and repeats of the best of them.
        gpus_per_trial: what each trial takes.
        spent_seconds: wall time of earlier sessions of the search.
        """
        self._budgets = budgets
        self._records = records
        self._gpus = gpus_per_trial
        self._began = time.monotonic() - spent_seconds
        self._since = time.time()  # failures before a resume may have been mended
        self.reserve: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)
        """Wall seconds and trial-hours that are kept for what comes after the trials."""
        self.end: End | None = None
        """Why the search ends, once it does."""

    @property
    def seconds(self) -> float:
        """Wall time of the search so far, over all its sessions."""
        return time.monotonic() - self._began

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the trials so far."""
        return self._gpus * sum(record.elapsed for record in self._all()) / 3600

    def after_trials(self, records: Sequence[Records]) -> Limits:
        """The same budgets for what comes after the trials; nothing is kept back any more."""
        budgets = dataclasses.replace(self._budgets, plateau_trials=None)
        limits = Limits(budgets, records, gpus_per_trial=self._gpus)
        limits._began = self._began
        return limits

    def reached(self) -> End | None:
        """Why the search shall end now; None where it shall not."""
        self.end = self.end or self._failures() or self._budget() or self._plateau()
        return self.end

    def search_is_over(self, trials: int) -> bool:
        """Whether the trials came to their end: all of them, or by a limit that leaves something to compare."""
        if self.end is not None:
            return self.end.reason != "failures"
        ended = [record for record in self._all() if record.status != "running"]
        return len(ended) >= trials

    def exhausted(self) -> None:
        """The space holds no setting that was not tried."""
        trials = len(self._all())
        self.end = self.end or End("space", f"the space has no settings beyond the {trials} that were tried")

    def _budget(self) -> End | None:
        budgets, (seconds, hours) = self._budgets, self.reserve()
        kept = ", but for what the finalists need" if seconds else ""
        if budgets.seconds is not None and self.seconds + seconds >= budgets.seconds:
            return End(
                "time_budget", f"the time budget of {describe_duration(budgets.seconds)} is spent{kept}"
            )
        if budgets.gpu_hours is not None and self.gpu_hours + hours * self._gpus >= budgets.gpu_hours:
            return End("gpu_hours", f"the budget of {budgets.gpu_hours:g} GPU-hours is spent{kept}")
        return None

    def _plateau(self) -> End | None:
        trials, points = self._budgets.plateau_trials, self._budgets.plateau_points
        if trials is None:
            return None
        best, since = float("inf"), 0
        for record in self._ended():
            if record.best_wer is None or (record.best_is_partial and best == float("inf")):
                continue
            better = not record.best_is_partial and record.best_wer < best - points
            best, since = (record.best_wer, 0) if better else (best, since + 1)
        if since < trials:
            return None
        return End(
            "plateau",
            f"{trials} trials in a row were no better than {best:.2f} % by more than {points:g} points",
        )

    def _failures(self) -> End | None:
        """A bug or a bad data set hits every trial: the others need not burn for it."""
        last = [record for record in self._ended() if record.ended >= self._since][-FAILURES_IN_A_ROW:]
        if len(last) < FAILURES_IN_A_ROW or any(record.status != "failed" for record in last):
            return None
        return End("failures", f"{FAILURES_IN_A_ROW} trials failed one after the other")

    def _all(self) -> list[TrialRecord]:
        return [record for records in self._records for record in records.all()]

    def _ended(self) -> list[TrialRecord]:
        """The trials that have ended, in the order in which they did."""
        ended = [record for record in self._all() if record.status != "running"]
        return sorted(ended, key=lambda record: record.ended)


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
    text, left = "", seconds
    for unit, size in _UNITS.items():
        count = int(left // size) if unit != "s" else round(left, 1)
        if count:
            text += f"{count:g}{unit}"
            left -= count * size
    return text or "0s"
