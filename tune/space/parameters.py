"""The three kinds of searched parameters: a float range, a range of whole numbers, a choice of values.

`None` stands for `auto` wherever a learning rate is expected: the model is not known while the file is read.
"""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

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
    "early_eval_clips": _WER,
    **dict.fromkeys(
        ("data", "data_config", "train_split", "audio_column", "text_column", "row_filter"), _DATA
    ),
    **dict.fromkeys(("max_train_clips", "max_dropped_share", "data_seed"), _DATA),
    **dict.fromkeys(("epochs", "max_steps"), _BUDGET),
    "evaluations": "a search evaluates at its rungs; set them with scheduler: {rungs: ...}",
    **dict.fromkeys(("eval_batch_size", "dataloader_workers", "log_every_seconds"), _NO_EFFECT),
    **dict.fromkeys(("tf32", "torch_compile", "reuse_baseline", "encoder_cache"), _NO_EFFECT),
    **dict.fromkeys(("micro_batch", "cache_dir", "output_dir"), _NO_EFFECT),
    "deepspeed": "all trials of an experiment run on the same engine; give it with --deepspeed",
}


#: Fields that a space can neither search nor fix, and what to do instead.
SET_BY_SEARCH: dict[str, str] = {
    "evaluate_at": "set scheduler: {rungs: ..., reduction_factor: ...} instead",
    "workers": "give --workers-per-trial instead",
}


@dataclasses.dataclass(frozen=True)
class FloatParameter:
    """A range of numbers, both ends included."""

    low: float | None
    """Smallest value; `None` is `auto` (learning rate only): a tenth of the default of the model's size."""
    high: float | None
    """Largest value; `None` is `auto` (learning rate only): ten times the default of the model's size."""
    log: bool = False
    """Sample on a logarithmic scale, as fits a learning rate."""
    step: float | None = None
    """Only `low`, `low + step`, ...; a `high` that is not on this grid is lowered to its last point."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.step:
            object.__setattr__(self, "high", float(_last_on_grid(self.low, self.high, self.step)))

    def problems(self) -> list[str]:
        """What is wrong with the range, as far as the bounds are known."""
        return _range_problems(self.low, self.high, self.log, self.step)

    def contains(self, value: Any) -> bool:
        """Whether `value` lies in the range and on its grid; unknown bounds (`auto`) admit everything."""
        return _range_contains(self.low, self.high, self.step, value)

    def nearest(self, value: Any) -> Any:
        """The value of the range that is nearest to a usual one; its low end where that is no number."""
        return float(_nearest(self.low, self.high, self.step, value))

    def resolve(self, default_learning_rate: float) -> FloatParameter:
        """The range with `auto` bounds replaced by numbers."""
        low, high = self.low, self.high
        if low is None:
            low = float(f"{default_learning_rate / AUTO_FACTOR:.6g}")
        if high is None:
            high = float(f"{default_learning_rate * AUTO_FACTOR:.6g}")
        return dataclasses.replace(self, low=low, high=high)

    def to_optuna(self) -> FloatDistribution:
        """The same range for Optuna.

        Raises:
            ValueError: a bound is still `auto`; call `resolve` first.
        """
        from optuna.distributions import FloatDistribution

        if self.low is None or self.high is None:
            raise ValueError("the range has automatic bounds: call resolve() first")
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def describe(self) -> str:
        """The range in words."""
        tenth = "a tenth" if self.high is None else "a tenth of the model's default"
        low = tenth if self.low is None else f"{self.low:g}"
        high = "ten times the model's default" if self.high is None else f"{self.high:g}"
        return f"{low} to {high}" + _describe_scale(self.log, self.step)

    def to_dict(self) -> dict[str, Any]:
        """The parameter as a space file writes it."""
        bounds = {
            name: AUTO if value is None else value for name, value in (("low", self.low), ("high", self.high))
        }
        step = {} if self.step is None else {"step": self.step}
        return {"type": "float", **bounds, "log": self.log, **step}


@dataclasses.dataclass(frozen=True)
class IntParameter:
    """A range of whole numbers, both ends included."""

    low: int
    """Smallest value."""
    high: int
    """Largest value, included."""
    log: bool = False
    """Sample on a logarithmic scale."""
    step: int = 1
    """Only `low`, `low + step`, ...; a `high` that is not on this grid is lowered to its last point."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "high", int(_last_on_grid(self.low, self.high, self.step)))

    def problems(self) -> list[str]:
        """What is wrong with the range."""
        return _range_problems(self.low, self.high, self.log, None if self.step == 1 else self.step)

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the whole numbers of the range."""
        return _range_contains(self.low, self.high, self.step, value)

    def nearest(self, value: Any) -> Any:
        """The whole number of the range that is nearest to a usual one; its low end where that is no number."""
        return int(_nearest(self.low, self.high, self.step, value))

    def resolve(self, default_learning_rate: float) -> IntParameter:
        """The same range: there are no automatic whole numbers."""
        return self

    def to_optuna(self) -> IntDistribution:
        """The same range for Optuna, whose upper end is included too."""
        from optuna.distributions import IntDistribution

        return IntDistribution(self.low, self.high, log=self.log, step=self.step)

    def describe(self) -> str:
        """The range in words."""
        return f"{self.low} to {self.high}, whole" + _describe_scale(
            self.log, None if self.step == 1 else self.step
        )

    def to_dict(self) -> dict[str, Any]:
        """The parameter as a space file writes it."""
        step = {} if self.step == 1 else {"step": self.step}
        return {"type": "int", "low": self.low, "high": self.high, "log": self.log, **step}


@dataclasses.dataclass(frozen=True)
class ChoiceParameter:
    """One of several values, without an order."""

    values: tuple[Any, ...]
    """What is chosen from; `None` is `null`, or `auto` where it stands for a learning rate."""

    def problems(self) -> list[str]:
        """What is wrong with the values; whether the field allows each is checked where they are read."""
        if not self.values:
            return ["values is empty; list what to choose from"]
        twice = sorted({show(value) for value in self.values if self.values.count(value) > 1})
        if twice:
            return [f"values holds {', '.join(twice)} more than once; remove the double"]
        return []

    def contains(self, value: Any) -> bool:
        """Whether `value` is one of the choices."""
        return value in self.values

    def nearest(self, value: Any) -> Any:
        """The usual value where it is a choice, else the nearest number, else the first choice."""
        if value in self.values or not _is_number(value):
            return value if value in self.values else self.values[0]
        numbers = [choice for choice in self.values if _is_number(choice)]
        return min(numbers, key=lambda choice: abs(choice - value), default=self.values[0])

    def resolve(self, default_learning_rate: float) -> ChoiceParameter:
        """The choice with `auto` replaced by the number (for a learning rate only)."""
        return ChoiceParameter(
            tuple(default_learning_rate if value is None else value for value in self.values)
        )

    def to_optuna(self) -> CategoricalDistribution:
        """The same choice for Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)

    def describe(self) -> str:
        """The values in words."""
        return "one of " + ", ".join(show(value) for value in self.values)

    def to_dict(self) -> dict[str, Any]:
        """The parameter as a space file writes it."""
        return {"type": "choice", "values": list(self.values)}


Parameter: TypeAlias = FloatParameter | IntParameter | ChoiceParameter


def show(value: Any) -> str:
    """A value as a space file writes it: `null`, `true`, `1e-05`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _last_on_grid(low: float, high: float, step: float) -> Decimal:
    """The last of `low`, `low + step`, ... up to `high`; in decimals, as 3 x 0.1 is above 0.3 in floats."""
    first, last, width = (Decimal(repr(number)) for number in (low, high, step))
    if width <= 0 or width > last - first:
        return last  # a mistake, which `problems` tells
    return first + (last - first) // width * width


def _range_problems(low: float | None, high: float | None, log: bool, step: float | None) -> list[str]:
    problems = []
    if low is not None and high is not None:
        if low == high:
            problems.append(f"low and high are both {low:g}: nothing to search; write it as a fixed value")
        elif low > high:
            problems.append(f"low={low:g} is above high={high:g}; swap them")
        elif step is not None and step > high - low and step > 0:
            problems.append(
                f"step={step:g} is larger than the range from {low:g} to {high:g}; make it smaller"
            )
    if log and low is not None and low <= 0:
        problems.append(f"log: true needs low above 0, got low={low:g}; raise low or remove log")
    if log and step is not None:
        problems.append("log and step cannot be combined; remove one of them")
    if step is not None and step <= 0:
        problems.append(f"step={step:g} must be above 0")
    return problems


def _range_contains(low: float | None, high: float | None, step: float | None, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if (low is not None and value < low) or (high is not None and value > high):
        return False
    if step is None or low is None:
        return True
    steps = (value - low) / step
    return abs(steps - round(steps)) < 1e-8  # Optuna's own tolerance


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nearest(low: float | None, high: float | None, step: float | None, value: Any) -> float:
    if low is None or high is None:
        raise ValueError("the range has automatic bounds: call resolve() first")
    if not _is_number(value) or value <= low:
        return low
    if value >= high:
        return high
    return float(value) if step is None else min(high, low + round((value - low) / step) * step)


def _describe_scale(log: bool, step: float | None) -> str:
    return (", log scale" if log else "") + (f", in steps of {step:g}" if step is not None else "")
