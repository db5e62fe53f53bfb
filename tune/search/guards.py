"""Guards: data that is not trained on; which of several models keep what the base model knows of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from trainer.errors import ConfigError
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.intervals import Interval, difference_interval
from tune.search.records import listed

DEFAULT_MAX_LOSS = 1.0
"""Points of WER."""


@dataclasses.dataclass(frozen=True)
class Guard:
    """Data that is not trained on, and how much a model may lose on it."""

    data: str
    """As `--data` takes it."""
    max_loss: float = DEFAULT_MAX_LOSS
    """Points of WER more than the base model's."""

    @classmethod
    def parse(cls, text: str) -> Guard:
        """`DATA` or `DATA:MAX_LOSS`; what follows the last colon is a loss only where it is a number.

        Raises:
            ConfigError: no data is named, or the loss is none.
        """
        data, _, number = text.rpartition(":")
        try:
            max_loss = float(number)
        except ValueError:
            data, max_loss = text, DEFAULT_MAX_LOSS
        if not data.strip():
            raise ConfigError(f"--guard {text!r}: names no data; give DATA or DATA:MAX_LOSS")
        if not 0.0 <= max_loss < 100.0:
            raise ConfigError(
                f"--guard {text}: MAX_LOSS {number} must be from 0 to below 100 points; if the name of the data "
                f"ends like this, write {text}:{DEFAULT_MAX_LOSS:g}"
            )
        return cls(data, max_loss)

    def __str__(self) -> str:
        return f"{self.data}:{self.max_loss:g}"


def guard_names(guards: Sequence[Guard]) -> dict[str, str]:
    """What each is called for people, by its data: a file or folder by its name, where no other is called so."""
    short = [guard.data.rstrip("/").rsplit("/", 1)[-1] for guard in guards]
    return {
        guard.data: name if guard.data.startswith("/") and short.count(name) == 1 else guard.data
        for guard, name in zip(guards, short, strict=True)
    }


@dataclasses.dataclass(frozen=True)
class GuardLoss:
    """What a model has lost on a guard; rates in percent."""

    guard: str
    """Its data."""
    max_loss: float
    base: float | None
    """Rate of the base model; None where it could not be measured."""
    rate: float | None
    loss: float | None = None
    """Points that the model's rate is higher."""
    interval: Interval | None = None
    """95 % interval of that over the same clips; None for fewer than five."""
    kept: bool = dataclasses.field(init=False)
    """Whether no greater loss than allowed is shown: by the interval's lower end where there is one."""

    def __post_init__(self) -> None:
        excess = self.excess if self.interval is None else self.interval[0] - self.max_loss
        object.__setattr__(self, "kept", excess <= 0.0)

    @property
    def excess(self) -> float:
        """Points by which the loss is above what is allowed; infinite where it is not known."""
        return math.inf if self.loss is None else self.loss - self.max_loss

    def describe(self, name: str) -> str:
        """`0.40 points more WER on english.csv (95 % interval -0.20 to 1.00), 1 is allowed`."""
        if self.loss is None:
            return f"not measured on {name}"
        text = f"{abs(self.loss):.2f} points {'more' if self.loss > 0 else 'less'} WER on {name}"
        if abs(self.loss) < 0.005:
            text = f"as much WER on {name}"
        if self.interval is not None:
            text += f" (95 % interval {self.interval[0]:.2f} to {self.interval[1]:.2f})"
        return text if self.kept else f"{text}, where {self.max_loss:g} is allowed"


@dataclasses.dataclass(frozen=True)
class MeasuredOnGuard:
    """A model on a guard."""

    rate: float
    """In percent."""
    clips: ClipErrors


def guard_loss(guard: Guard, base: MeasuredOnGuard | None, model: MeasuredOnGuard | None) -> GuardLoss:
    """What a model has lost on a guard, by the paired interval of finalists over the same clips."""
    if base is None or model is None:
        return GuardLoss(
            guard.data, guard.max_loss, base.rate if base else None, model.rate if model else None
        )
    interval = None
    if base.clips.words.shape == model.clips.words.shape:
        interval = difference_interval(model.clips.word_errors - base.clips.word_errors, base.clips.words)
    return GuardLoss(guard.data, guard.max_loss, base.rate, model.rate, model.rate - base.rate, interval)


def choose(models: Mapping[str, Sequence[GuardLoss]]) -> str:
    """The first model that keeps all guards, or that which loses least beyond what is allowed.

    Args:
        models: what each has lost on all guards, those to be exported rather than others first; one at least.
    """
    keeping = (name for name, guard_losses in models.items() if all(each.kept for each in guard_losses))
    return next(keeping, min(models, key=lambda name: max(each.excess for each in models[name])))


def describe_choice(run: str, models: Mapping[str, Sequence[GuardLoss]], names: Mapping[str, str]) -> str:
    """What the guards came to, in one line.

    Args:
        names: of the guards for people, by their data.
    """

    def losses_of(guard_losses: Sequence[GuardLoss]) -> str:
        return "; ".join(each.describe(names.get(each.guard, each.guard)) for each in guard_losses)

    order, guards = list(models), "guards" if len(names) > 1 else "guard"
    over = [
        f"{name} is passed over: {losses_of([each for each in models[name] if not each.kept])}"
        for name in order[: order.index(run)]
    ]
    if all(each.kept for each in models[run]):
        return ". ".join([*over, f"{run} keeps the {guards}: {losses_of(models[run])}"])
    if len(order) == 1:
        return f"{run} does not keep the {guards} and is exported, because there is no other: {losses_of(models[run])}"
    others = [name for name in order if name != run]
    more = f"{listed(others)} lose{'s' * (len(others) == 1)} more"
    return f"no model keeps the {guards}; {run} loses least and is exported: {losses_of(models[run])}; {more}"
