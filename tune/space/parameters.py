"""The three kinds of searched parameters: a float range, a range of whole numbers, a choice of values.

Each may have a condition (`when`), and a range a distribution from which random proposals are drawn (`prior`). `None`
stands for `auto` wherever a learning rate is expected: the model is not known while the file is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from decimal import Decimal
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from trainer.bounds import WEIGHT_OF
from trainer.config import CLIP_SETTINGS, TrainConfig

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

AUTO = "auto"
AUTO_FACTOR = 10.0
"""An automatic learning-rate range goes from the default of the model's size / 10 to the default x 10."""

_WER = "it changes what WER is measured on or how, and trials must stay comparable"
_DATA = "it shapes the data, which all trials of an experiment share"
_BUDGET = "all trials share one budget; give it with --epochs or --max-steps"
_NO_EFFECT = "it has no effect on what is learned"

#: Fields that can be fixed but not searched, and why.
NOT_SEARCHABLE: dict[str, str] = {
    "model": "an experiment has one base model and one baseline; run one search for each model",
    **dict.fromkeys(
        ("language", "task", "validation_split", "test_split", "validation_share", "max_eval_clips"), _WER
    ),
    **dict.fromkeys(
        ("generation_max_length", "generation_num_beams", "normalizer", "full_window_evaluation"), _WER
    ),
    **dict.fromkeys(("objective", "keep_suppress_tokens"), _WER),
    "source_weights": "search the weight of each source: weight.NAME: {type: float, ...}",
    **dict.fromkeys(
        ("data", "data_config", "train_split", "audio_column", "text_column", "row_filter"), _DATA
    ),
    **dict.fromkeys(("language_column", "task_column"), _DATA),
    **dict.fromkeys(CLIP_SETTINGS, _DATA),
    **dict.fromkeys(("max_train_clips", "max_dropped_share", "data_seed", "split_by", "splits"), _DATA),
    **dict.fromkeys(("streaming", "shuffle_buffer"), _DATA),
    **dict.fromkeys(("epochs", "max_steps", "max_samples", "max_hours"), _BUDGET),
    "evaluations": "a search evaluates at its rungs; set them with scheduler: {rungs: ...}",
    **dict.fromkeys(("eval_batch_size", "dataloader_workers", "log_every_seconds"), _NO_EFFECT),
    **dict.fromkeys(("tf32", "torch_compile"), _NO_EFFECT),
    **dict.fromkeys(("micro_batch", "cache_dir", "output_dir"), _NO_EFFECT),
    "noise_dir": "all trials share the noises; search augment_noise",
    "impulse_dir": "all trials share the rooms; search augment_reverb",
    "deepspeed": "all trials of an experiment run on the same engine; give it with --deepspeed",
}

#: Of these, what decides whether validation WERs of two experiments compare; kept splits are each one's own file.
COMPARED = [
    name
    for name, why in NOT_SEARCHABLE.items()
    if name == "model" or (why in (_WER, _DATA) and name not in ("splits", "test_split"))
]

#: Fields that a space can neither search nor fix, and what to do instead.
SET_BY_SEARCH: dict[str, str] = {
    "evaluate_at": "set scheduler: {rungs: ..., reduction_factor: ...} instead",
    "workers": "give --workers-per-trial instead",
    "train_on": "a search is judged by validation; when it has ended use train --from EXPERIMENT --on train+validation",
}


def usual_value(name: str) -> Any:
    """What a setting is where nothing is said of it."""
    return 1.0 if name.startswith(WEIGHT_OF) else getattr(TrainConfig, name)


When: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]
"""Settings and the values of each under which a range is searched; empty: always."""


@dataclasses.dataclass(frozen=True)
class _Range:
    """A range of numbers, both ends included."""

    low: float | None
    """Smallest value; `None` is `auto` (learning rate only): a tenth of the default of the model's size."""
    high: float | None
    """Largest value; `None` is `auto` (learning rate only): ten times the default of the model's size."""
    log: bool = False
    """Sample on a logarithmic scale, as fits a learning rate."""
    step: float | None = None
    """Only `low`, `low + step`, ...; a `high` that is not on this grid is lowered to its last point."""
    prior: float | Literal["auto"] | None = None
    """Centre of a normal distribution, on a logarithmic scale a log-normal one, from which random proposals come.
    `auto` (learning rate only) is the default of the model's size; `None` draws from everywhere alike."""
    when: When = ()
    """Where it is searched."""
    prior_spread: float | None = None
    """Standard deviation of that distribution, on a logarithmic scale a factor above 1; `None` is a quarter of the
    range."""

    kind: ClassVar[str]
    number: ClassVar[type]

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.step:
            last = self.number(_last_on_grid(self.low, self.high, self.step))
            object.__setattr__(self, "high", last)

    def problems(self) -> list[str]:
        """What is wrong with the range, as far as the bounds are known."""
        low, high, step = self.low, self.high, self.step
        problems = []
        if low is not None and high is not None:
            if low == high:
                problems.append(
                    f"low and high are both {low:g}: nothing to search; write it as a fixed value"
                )
            elif low > high:
                problems.append(f"low={low:g} is above high={high:g}; swap them")
            elif step is not None and step > high - low and step > 0:
                problems.append(
                    f"step={step:g} is larger than the range from {low:g} to {high:g}; make it smaller"
                )
        if self.log and low is not None and low <= 0:
            problems.append(f"log: true needs low above 0, got low={low:g}; raise low or remove log")
        if self.log and step is not None:
            problems.append("log and step cannot be combined; remove one of them")
        if step is not None and step <= 0:
            problems.append(f"step={step:g} must be above 0")
        if (
            not problems
            and is_number(self.prior)
            and not _within(self.low, self.high, float(self.prior or 0))
        ):
            problems.append(f"prior={self.prior:g}: must lie in the range ({self._ends()})")
        least = 1 if self.log else 0
        if self.prior_spread is not None and self.prior_spread <= least:
            what = "a factor above 1, with log: true" if self.log else "above 0"
            problems.append(f"prior: spread={self.prior_spread:g}: must be {what}")
        return problems

    def contains(self, value: Any) -> bool:
        """Whether `value` lies in the range and on its grid; unknown bounds (`auto`) admit everything."""
        if not is_number(value) or not _within(self.low, self.high, value):
            return False
        step = self.step or (1 if self.number is int else None)
        if step is None or self.low is None:
            return True
        steps = (value - self.low) / step
        return bool(abs(steps - round(steps)) < 1e-8)  # Optuna's own tolerance

    def nearest(self, value: Any) -> Any:
        """The value of the range that is nearest to a usual one; its low end where that is no number."""
        low, high = self._known()
        if not is_number(value) or value <= low:
            return self.number(low)
        step = self.step or (1 if self.number is int else None)
        near = value if step is None else low + round((value - low) / step) * step
        return self.number(min(high, near))

    def resolve(self, default_learning_rate: float) -> Self:
        low, high = self.low, self.high
        if low is None:
            low = float(f"{default_learning_rate / AUTO_FACTOR:.6g}")
        if high is None:
            high = float(f"{default_learning_rate * AUTO_FACTOR:.6g}")
        prior = default_learning_rate if self.prior == AUTO else self.prior
        return dataclasses.replace(self, low=low, high=high, prior=prior)

    def drawn(self, share: float) -> Any:
        """The value below which the prior has this share of its weight; without a prior, this share of the range is.

        Args:
            share: from 0 to 1; drawn evenly it makes values of the prior's distribution.
        """
        low, high = self._known()
        half = (
            self.step or (1 if self.number is int else 0)
        ) / 2  # so that the ends of a grid get their share
        ends = (low - half, high + half, high if self.prior is None else float(self.prior))
        first, last, mean = (math.log(end) for end in ends) if self.log else ends
        value = first + share * (last - first)
        if self.prior is not None:
            normal = NormalDist(mean, self._standard_deviation(last - first))
            start, end = normal.cdf(first), normal.cdf(last)
            value = normal.inv_cdf(min(max(start + share * (end - start), 1e-12), 1 - 1e-12))
        return self.nearest(math.exp(value) if self.log else value)

    def _standard_deviation(self, width: float) -> float:
        if self.prior_spread is None:
            return width / 4
        return math.log(self.prior_spread) if self.log else self.prior_spread

    def points(self) -> Sequence[Any] | None:
        """All values in rising order; None for a range of real numbers."""
        if self.number is float and self.step is None:
            return None
        (low, high), step = self._known(), self.step or 1
        if self.number is int:
            return range(int(low), int(high) + 1, int(step))
        return [min(low + index * step, high) for index in range(round((high - low) / step) + 1)]

    def to_optuna(self) -> FloatDistribution | IntDistribution:
        """The same range for Optuna, both ends included; no bound may be `auto` any more."""
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high = self._known()
        if self.number is int:
            return IntDistribution(int(low), int(high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(low, high, log=self.log, step=self.step)

    def describe(self) -> str:
        step = "" if self.step is None else f", in steps of {self.step:g}"
        near = "the model's default" if self.prior == AUTO else self.prior
        prior = "" if near is None else f", most likely near {near if isinstance(near, str) else f'{near:g}'}"
        if self.prior_spread is not None:
            prior += f" (within {'a factor of ' if self.log else ''}{self.prior_spread:g})"
        whole = ", whole" if self.number is int else ""
        scale = ", log scale" if self.log else ""
        return self._ends() + whole + scale + step + prior + describe_when(self.when)

    def _ends(self) -> str:
        tenth = "a tenth" if self.high is None else "a tenth of the model's default"
        low = tenth if self.low is None else f"{self.low:g}"
        return f"{low} to " + ("ten times the model's default" if self.high is None else f"{self.high:g}")

    def to_dict(self) -> dict[str, Any]:
        bounds = {
            name: AUTO if value is None else value for name, value in (("low", self.low), ("high", self.high))
        }
        step = {} if self.step is None else {"step": self.step}
        prior: dict[str, Any] = {} if self.prior is None else {"prior": self.prior}
        if self.prior_spread is not None:
            prior = {"prior": {"center": self.prior, "spread": self.prior_spread}}
        return {"type": self.kind, **bounds, "log": self.log, **step, **prior, **_when_dict(self.when)}

    def _known(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            raise ValueError("the range has automatic bounds: call resolve() first")
        return self.low, self.high


class FloatParameter(_Range):
    kind = "float"
    number = float


class IntParameter(_Range):
    kind = "int"
    number = int


@dataclasses.dataclass(frozen=True)
class ChoiceParameter:
    """One of several values, without an order."""

    values: tuple[Any, ...]
    """What is chosen from; `None` is `null`, or `auto` where it stands for a learning rate."""
    when: When = ()
    """Where it is searched."""

    def problems(self) -> list[str]:
        """What is wrong with the values; whether the field allows each is checked where they are read."""
        if not self.values:
            return ["values is empty; list what to choose from"]
        twice = sorted({show(value) for value in self.values if self.values.count(value) > 1})
        if twice:
            return [f"values holds {', '.join(twice)} more than once; remove the double"]
        return []

    def contains(self, value: Any) -> bool:
        return value in self.values

    def nearest(self, value: Any) -> Any:
        """The usual value where it is a choice, else the nearest number, else the first choice."""
        if value in self.values or not is_number(value):
            return value if value in self.values else self.values[0]
        numbers = [choice for choice in self.values if is_number(choice)]
        return min(numbers, key=lambda choice: abs(choice - value), default=self.values[0])

    def resolve(self, default_learning_rate: float) -> ChoiceParameter:
        values = tuple(default_learning_rate if value is None else value for value in self.values)
        return dataclasses.replace(self, values=values)

    def drawn(self, share: float) -> Any:
        """The choice at a share of them, from 0 to below 1; drawn evenly it makes all alike."""
        return self.values[int(share * len(self.values))]

    def points(self) -> list[Any]:
        return list(self.values)

    def to_optuna(self) -> CategoricalDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def describe(self) -> str:
        return "one of " + ", ".join(show(value) for value in self.values) + describe_when(self.when)

    def to_dict(self) -> dict[str, Any]:
        return {"type": "choice", "values": list(self.values), **_when_dict(self.when)}


Parameter: TypeAlias = FloatParameter | IntParameter | ChoiceParameter


def hull(ranges: Sequence[Parameter]) -> Parameter:
    """One parameter that holds all values of several of one kind, under no condition."""
    first = ranges[0]
    if len(ranges) == 1:
        return dataclasses.replace(first, when=())
    if isinstance(first, ChoiceParameter):
        return ChoiceParameter(
            tuple(dict.fromkeys(value for each in ranges for value in each.points() or ()))
        )
    lows, highs = ([getattr(each, end) for each in ranges] for end in ("low", "high"))
    log = all(not isinstance(each, ChoiceParameter) and each.log for each in ranges)
    return type(first)(None if None in lows else min(lows), None if None in highs else max(highs), log)


def show(value: Any) -> str:
    """A value as a space file writes it: `null`, `true`, `1e-05`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_when(when: When) -> str:
    """A condition in words, as they follow the range."""
    parts = [f"{name} is {' or '.join(show(value) for value in values)}" for name, values in when]
    return f", where {' and '.join(parts)}" if parts else ""


def _when_dict(when: When) -> dict[str, Any]:
    plain = {name: values[0] if len(values) == 1 else list(values) for name, values in when}
    return {"when": plain} if plain else {}


def _last_on_grid(low: float, high: float, step: float) -> Decimal:
    """The last of `low`, `low + step`, ... up to `high`; in decimals, as 3 x 0.1 is above 0.3 in floats."""
    first, last, width = (Decimal(repr(number)) for number in (low, high, step))
    if width <= 0 or width > last - first:
        return last  # a mistake, which `problems` tells
    return first + (last - first) // width * width


def _within(low: float | None, high: float | None, value: float) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
