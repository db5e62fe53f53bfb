"""The search space: what is searched, what is fixed, what is tried first; loaded from a YAML file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.bounds import WEIGHT_OF
from trainer.config import TrainConfig
from trainer.mix import is_mix, read_mix
from trainer.yaml_nodes import nearest
from tune.space.conditions import (
    active_index,
    deciders,
    deciding_points,
    effective,
    key_of,
    points_of,
    possible_values,
)
from tune.space.parameters import AUTO, ChoiceParameter, FloatParameter, Parameter, hull, usual_value
from tune.space.reader import check_overrides, read_space
from tune.space.settings import SchedulerSettings, SearcherSettings
from tune.util.errors import SpaceError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_PACKAGED = Path(__file__).resolve().parents[2] / "search_spaces"


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """A validated search space. `None` as a learning rate is `auto`, until `resolve` puts in the number."""

    ranges: dict[str, tuple[Parameter, ...]]
    """The searched fields of `TrainConfig`, each with its ranges: the first whose `when` holds counts. A space file has
    at least one, a single training none.
    """
    fixed: dict[str, Any]
    """Fields of `TrainConfig` with one value for all trials."""
    try_first: list[dict[str, Any]]
    """Points that are tried before the searcher's own; each holds every parameter that is searched there."""
    scheduler: SchedulerSettings
    searcher: SearcherSettings
    path: Path
    source_text: str
    """The file as it was written, comments and all."""
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict, compare=False)
    """Where in it each setting stands."""

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Each searched field with all that it may be anywhere in the space."""
        return {name: hull(ranges) for name, ranges in self.ranges.items()}

    def searched_in(self, point: Mapping[str, Any], name: str) -> Parameter | None:
        """The range of a field that counts in a point; None where the field is not searched there."""
        index = active_index(self.ranges, name, point, self.fixed)
        return None if index is None else self.ranges[name][index]

    def draw(self, choose: Callable[[str, Parameter], Any]) -> dict[str, Any]:
        """A point, field by field, what others depend on first: `choose` draws a value of the range there."""
        return next(points_of(self.ranges, self.fixed, self.ranges, lambda name, one: [choose(name, one)]))

    def all_points(
        self,
        names: Collection[str] | None = None,
        real: Callable[[FloatParameter], float] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Every point of a space that has no range of real numbers; none where it has one.

        Args:
            names: fields to which, with those that decide on any, points are confined; None for all.
            real: the one value that is taken of a range of real numbers each time, so that there are points with it.
        """
        names = self.ranges if names is None else {*names, *deciders(self.ranges)}

        def values(_: str, parameter: Parameter) -> Sequence[Any]:
            points = parameter.points()
            if points is None and real is not None and isinstance(parameter, FloatParameter):
                return [real(parameter)]
            return points or []

        ranges = (parameter for name, own in self.ranges.items() if name in names for parameter in own)
        if real is not None or all(parameter.points() is not None for parameter in ranges):
            yield from points_of(self.ranges, self.fixed, names, values)

    def outside(self, point: Mapping[str, Any]) -> list[str]:
        """Fields that are searched there, and of which the point has no value of the space."""
        counts = {name: self.searched_in(point, name) for name in self.ranges}
        return [
            name
            for name, parameter in counts.items()
            if parameter is not None and (name not in point or not parameter.contains(point[name]))
        ]

    def point_of(self, config: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any] | None:
        """The point of the space at which a trial is; None where it lies outside.

        Args:
            config: the trial's own settings, perhaps of another space.
            shared: settings of the experiment, which a trial has where its own do not say otherwise.
        """
        point = self.draw(lambda name, _: config.get(name, shared.get(name)))
        others = (name for name in config if name not in point)
        if self.outside(point) or any(config[name] != shared.get(name, config[name]) for name in others):
            return None
        return point

    def usual_weights(self, data: str) -> dict[str, float]:
        """The weights of the data's sources as its data file has them, by the names under which they are searched.

        Raises:
            SpaceError: the space has weights of other sources.
        """
        names = [name for name in (*self.ranges, *self.fixed) if name.startswith(WEIGHT_OF)]
        mix = read_mix(data) if is_mix(data) else None
        known = {f"{WEIGHT_OF}{source.name}": source.weight for source in mix.sources} if mix else {}
        sources = "no sources; give a data file (.yaml) with --data, or remove it"
        sources = f"the sources {mix.names}; name one of them" if mix else sources
        problems = [
            f"{self.path}:{self.lines.get(name, 1)}: {name}: data={data!r} has {sources}"
            for name in names
            if name not in known
        ]
        if problems:
            raise SpaceError("\n".join(problems))
        return known

    @property
    def methods(self) -> list[str]:
        searched = self.parameters["method"].points() if "method" in self.parameters else None
        values = searched or [self.fixed.get("method", TrainConfig.method)]
        return sorted(values, key=lambda value: value != TrainConfig.method)

    def resolve(
        self, default_learning_rate: float, by_method: Mapping[str, float] | None = None
    ) -> SearchSpace:
        """The space with numbers in place of `auto`: the model's default, and that of each `method` with another.

        Raises:
            SpaceError: with this model a range is empty, a point to try first lies outside, or one `auto` stands for
                several methods whose defaults differ.
        """
        name, fixed = "learning_rate", dict(self.fixed)
        defaults, problems = self._defaults(default_learning_rate, by_method or {})
        ranges = dict(self.ranges)
        if name in ranges:
            own = enumerate(ranges[name])
            ranges[name] = tuple(
                parameter.resolve(defaults.get(index, default_learning_rate)) for index, parameter in own
            )
        if name in fixed and fixed[name] is None:
            fixed[name] = defaults.get(None, default_learning_rate)
        resolved = dataclasses.replace(self, ranges=ranges, fixed=fixed)
        problems += [
            f"{name}: {problem}" for parameter in ranges.get(name, ()) for problem in parameter.problems()
        ]
        points = []
        for number, point in enumerate(self.try_first, start=1):
            index = active_index(self.ranges, name, point, self.fixed)
            default = defaults.get(index, default_learning_rate)
            points.append({**point, name: default} if point.get(name, 0) is None else point)
            if index is None or points[-1] is point or problems or ranges[name][index].contains(default):
                continue
            text = f"try_first: point {number}: {name}: auto is {default:g} here"
            allowed = ranges[name][index].describe()
            problems.append(f"{text}, outside the searched range ({allowed}); write a number")
        if problems:
            raise SpaceError("\n".join(f"{self.path}: {problem}" for problem in problems))
        return dataclasses.replace(resolved, try_first=_without_doubles(points))

    def unsearched_rate(
        self, default_learning_rate: float, by_method: Mapping[str, float] | None = None
    ) -> float:
        """What an automatic learning rate is where it is not searched; arguments are those of `resolve`."""
        return self._defaults(default_learning_rate, by_method or {})[0].get(None, default_learning_rate)

    def _defaults(
        self, usual: float, by_method: Mapping[str, float]
    ) -> tuple[dict[int | None, float], list[str]]:
        """What `auto` is in each range of the learning rate, by its index, and where it is not searched, by `None`.

        Only those that differ from the usual one; and the problems, a line each.
        """
        name = "learning_rate"
        by_range: dict[int | None, dict[float, str]] = {}
        for point in deciding_points(self.ranges, self.fixed):
            index = active_index(self.ranges, name, point, self.fixed)
            for method in possible_values("method", point, self.ranges, self.fixed):
                by_range.setdefault(index, {}).setdefault(by_method.get(method, usual), method)
        problems, known = [], {}
        for index, rates in by_range.items():
            automatic = (
                self.fixed.get(name) is None if index is None else _is_automatic(self.ranges[name][index])
            )
            (rate, method), *others = rates.items()
            if automatic and others:
                both = " and ".join(f"{each:g} where method is {which}" for each, which in rates.items())
                what = "auto" if index is not None or name in self.fixed else "its usual value"
                problems.append(
                    f"{name}: {what} is {both}; give each a range of its own, as when: {{method: {method}}} does"
                )
            elif automatic and rate != usual:
                known[index] = rate
        return known, problems

    def with_recipe(
        self,
        default_learning_rate: float,
        by_method: Mapping[str, float] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> SearchSpace:
        """The resolved space with the usual settings of the model's size as the first point to try.

        Where several methods are searched, it has the usual one; the usual settings of the others are the last points.
        Values outside the space are moved to its nearest ones.
        Arguments are those of `resolve`, and what `usual_weights` gives.
        """

        def nearest(method: str, rate: float) -> dict[str, Any]:
            usual = {"learning_rate": rate, "method": method, **(weights or {})}
            return self.draw(lambda name, one: one.nearest(usual.get(name, usual_value(name))))

        recipes = []
        for method in self.methods:
            # Under a condition the method may be another one there.
            found = effective("method", nearest(method, default_learning_rate), self.fixed)
            recipes.append(nearest(method, (by_method or {}).get(found, default_learning_rate)))
        usual, *others = recipes
        return dataclasses.replace(self, try_first=_without_doubles([usual, *self.try_first, *others]))

    def to_optuna(self) -> dict[str, BaseDistribution]:
        """All ranges as Optuna's distributions, by what Optuna calls them (see `named`)."""
        return {
            key_of(name, parameter): parameter.to_optuna()
            for name, ranges in self.ranges.items()
            for parameter in ranges
        }

    def named(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Of a trial's settings those that are searched, as Optuna calls them.

        A range under a condition is a parameter of its own there (`mask_time_prob@spec_augment=true`), since it has a
        distribution of its own; everywhere else the setting has its plain name.
        """
        active = ((name, self.searched_in(config, name)) for name in config if name in self.ranges)
        return {key_of(name, parameter): config[name] for name, parameter in active if parameter is not None}

    def describe(self) -> list[tuple[str, str]]:
        return [
            (name, "; ".join(parameter.describe() for parameter in ranges))
            for name, ranges in self.ranges.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; written as YAML they are a space file that loads to the same space."""
        written = {name: [one.to_dict() for one in ranges] for name, ranges in self.ranges.items()}
        return {
            "parameters": {name: own[0] if len(own) == 1 else own for name, own in written.items()},
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
    return sorted(path.stem for path in _PACKAGED.glob("*.yaml"))


def load_space(
    name_or_path: str,
    overrides: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> SearchSpace:
    """Load and validate a search space.

    Args:
        name_or_path: a file, or the name of a packaged space, each with or without `.yaml`.
        overrides: values of `--set` and other options; a searched parameter that is named here becomes fixed.
        defaults: what is fixed where the file does not name it.

    Raises:
        SpaceError: the file is missing, unreadable or wrong; every problem has a line of its own.
    """
    path = _find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SpaceError(f"{path}: cannot be read: {reason}") from error
    return parse_space(text, path, overrides, defaults)


def parse_space(
    text: str,
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> SearchSpace:
    """The same of a text; `path` is where it is said to be."""
    valid, override_problems = check_overrides(overrides or {})
    read = read_space(text, valid, defaults or {})
    lines = [f"{path}:{line}: {problem}" for line, problem in sorted(read.problems.found, key=itemgetter(0))]
    if lines or override_problems:
        raise SpaceError("\n".join(lines + override_problems))
    points = _without_doubles(read.points)
    return SearchSpace(read.ranges, read.fixed, points, read.scheduler, read.searcher, path, text, read.lines)


def space_of_one(settings: Mapping[str, Any]) -> SearchSpace:
    """The space of a single training, in which nothing is searched."""
    nowhere = Path("settings")
    return SearchSpace({}, dict(settings), [], SchedulerSettings(), SearcherSettings(), nowhere, "")


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


def _is_automatic(parameter: Parameter) -> bool:
    if isinstance(parameter, ChoiceParameter):
        return None in parameter.values
    return parameter.prior == AUTO or None in (parameter.low, parameter.high)


def _without_doubles(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points that were different may be the same once a parameter is fixed or `auto` is a number."""
    return [point for index, point in enumerate(points) if point not in points[:index]]
