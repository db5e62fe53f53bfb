"""The search space: what is searched, what is fixed, what is tried first; loaded from a YAML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from tune.space.overrides import check_overrides, parse_set
from tune.space.parameters import (
    AUTO,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameter,
)
from tune.space.settings import SchedulerSettings, SearcherSettings
from tune.space.space_file import SpaceFile, read_space_file
from tune.util.errors import SpaceError
from tune.util.yaml_nodes import nearest

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = [
    "ChoiceParameter",
    "FloatParameter",
    "IntParameter",
    "Parameter",
    "SchedulerSettings",
    "SearchSpace",
    "SearcherSettings",
    "load_space",
    "packaged_spaces",
    "parse_set",
]

_PACKAGED = Path(__file__).resolve().parents[2] / "search_spaces"


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """A validated search space. `None` as a learning rate is `auto`, until `resolve` puts in the number."""

    parameters: dict[str, Parameter]
    """The searched fields of `TrainConfig`; at least one."""
    fixed: dict[str, Any]
    """Fields of `TrainConfig` with one value for all trials."""
    try_first: list[dict[str, Any]]
    """Points that are tried before the searcher's own; each holds every searched parameter."""
    scheduler: SchedulerSettings
    """When trials are stopped early."""
    searcher: SearcherSettings
    """How points are proposed."""
    path: Path
    """The file that the space was read from."""
    source_text: str
    """The file as it was written, comments and all."""

    def resolve(self, default_learning_rate: float) -> SearchSpace:
        """The space with numbers in place of `auto`.

        Args:
            default_learning_rate: the default of the model's size.

        Raises:
            SpaceError: with this model a range is empty, or a point to try first lies outside.
        """
        parameters, fixed = dict(self.parameters), dict(self.fixed)
        searched = parameters.get("learning_rate")
        problems = []
        if searched is not None:
            parameters["learning_rate"] = resolved = searched.resolve(default_learning_rate)
            problems = [f"learning_rate: {problem}" for problem in resolved.problems()]
        if "learning_rate" in fixed and fixed["learning_rate"] is None:
            fixed["learning_rate"] = default_learning_rate
        points = []
        for number, point in enumerate(self.try_first, start=1):
            points.append(point)
            if point.get("learning_rate", 0) is None:
                points[-1] = {**point, "learning_rate": default_learning_rate}
                if not problems and not parameters["learning_rate"].contains(default_learning_rate):
                    text = f"try_first: point {number}: learning_rate: auto is {default_learning_rate:g} here"
                    allowed = parameters["learning_rate"].describe()
                    problems.append(f"{text}, outside the searched range ({allowed}); write a number")
        if problems:
            raise SpaceError("\n".join(f"{self.path}: {problem}" for problem in problems))
        points = _without_doubles(points)
        return dataclasses.replace(self, parameters=parameters, fixed=fixed, try_first=points)

    def with_recipe(self, default_learning_rate: float) -> SearchSpace:
        """The resolved space with the usual settings of the model's size as the last point to try first.

        Those outside the space are moved to its nearest values.
        """
        recipe = {
            name: parameter.nearest(
                default_learning_rate if name == "learning_rate" else getattr(TrainConfig, name)
            )
            for name, parameter in self.parameters.items()
        }
        return dataclasses.replace(self, try_first=_without_doubles([*self.try_first, recipe]))

    def to_optuna(self) -> dict[str, BaseDistribution]:
        """The searched parameters as Optuna's distributions, for `OptunaSearch(space=...)`.

        Ray's own domains are not used on the way: they refuse bounds that are no multiples of the step.

        Raises:
            ValueError: a bound is still `auto`; call `resolve` first.
        """
        return {name: parameter.to_optuna() for name, parameter in self.parameters.items()}

    def describe(self) -> list[tuple[str, str]]:
        """Each searched parameter with its range in words."""
        return [(name, parameter.describe()) for name, parameter in self.parameters.items()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; written as YAML they are a space file that loads to the same space."""
        return {
            "parameters": {name: parameter.to_dict() for name, parameter in self.parameters.items()},
            "fixed": dict(self.fixed),
            "try_first": [
                {
                    key: AUTO if value is None and key == "learning_rate" else value
                    for key, value in point.items()
                }
                for point in self.try_first
            ],
            "scheduler": dataclasses.asdict(self.scheduler),
            "searcher": dataclasses.asdict(self.searcher),
        }


def packaged_spaces() -> list[str]:
    """Names of the spaces that come with the program."""
    return sorted(path.stem for path in _PACKAGED.glob("*.yaml"))


def load_space(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> SearchSpace:
    """Load and validate a search space.

    Args:
        name_or_path: a file, or the name of a packaged space, each with or without `.yaml`.
        overrides: values of `--set` and other options; a searched parameter that is named here becomes fixed.

    Raises:
        SpaceError: the file is missing, unreadable or wrong; every problem has a line of its own.
    """
    path = _find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise SpaceError(f"{path}: cannot be read: {reason}") from error
    file = read_space_file(text)
    valid, override_problems = check_overrides(overrides or {})
    _apply_overrides(file, valid)
    if not file.problems.found:
        _check_whole(file, valid)
    lines = [f"{path}:{line}: {problem}" for line, problem in sorted(file.problems.found, key=itemgetter(0))]
    if lines or override_problems:
        raise SpaceError("\n".join(lines + override_problems))
    points = _without_doubles(file.try_first)
    return SearchSpace(file.parameters, file.fixed, points, file.scheduler, file.searcher, path, text)


def _find(name_or_path: str) -> Path:
    """The file that is meant: a path first, then a packaged name."""
    given = Path(name_or_path).expanduser()
    candidates = [given, given.with_name(given.name + ".yaml")] if given.name else [given]
    if given.name == name_or_path:  # a bare name
        candidates += [_PACKAGED / given.name, _PACKAGED / f"{given.name}.yaml"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    reason = "is a folder, not a file" if given.is_dir() else "no such file"
    near = nearest(given.stem, packaged_spaces())
    hint = f"did you mean {near}? " if near else ""
    raise SpaceError(f"{name_or_path}: {reason}; {hint}packaged spaces are {', '.join(packaged_spaces())}")


def _apply_overrides(file: SpaceFile, overrides: dict[str, Any]) -> None:
    for key in overrides:
        file.parameters.pop(key, None)
        for point in file.try_first:
            point.pop(key, None)
    # One budget replaces the other: the file's max_steps does not forbid --epochs.
    for budget, other in (("epochs", "max_steps"), ("max_steps", "epochs")):
        if overrides.get(budget) is not None and other not in overrides:
            file.fixed.pop(other, None)
    file.fixed.update(overrides)


def _check_whole(file: SpaceFile, overrides: dict[str, Any]) -> None:
    """Problems between settings that are right each by itself."""
    fixed, parameters = file.fixed, file.parameters
    if fixed.get("epochs") is not None and fixed.get("max_steps") is not None and "epochs" in file.lines:
        file.problems.add(
            file.lines["epochs"], "epochs and max_steps: only one budget can be given; remove one"
        )
    if not parameters:
        reason = "every searched parameter is fixed by an option" if overrides else "nothing is searched"
        text = f"{reason}; at least one setting needs a range such as {{type: float, low: 0, high: 1}}"
        file.problems.add(1, text)
    for name, text in _without_effect(file):
        file.problems.add(file.lines[name], f"{name}: is searched without effect: {text}")


def _without_effect(file: SpaceFile) -> list[tuple[str, str]]:
    """Searched parameters that another setting switches off: the search would model noise."""
    fixed, searched = file.fixed, file.parameters
    found = []
    if "warmup_ratio" in searched and (fixed.get("warmup_steps") is not None or "warmup_steps" in searched):
        found.append(("warmup_ratio", "warmup_steps goes before it; remove one, or fix warmup_ratio"))
    for name in ("mask_time_prob", "mask_feature_prob"):
        if name in searched and "spec_augment" not in searched and not fixed.get("spec_augment"):
            found.append((name, f"spec_augment is false; set it to true, or fix {name}"))
    return found


def _without_doubles(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points that were different may be the same once a parameter is fixed or `auto` is a number."""
    kept: list[dict[str, Any]] = []
    for point in points:
        if point not in kept:
            kept.append(point)
    return kept
