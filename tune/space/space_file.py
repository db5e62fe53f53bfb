"""Reading of a space file: YAML nodes with their lines, every problem collected, none raised before the end.

    learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}   # a mapping is searched
    weight_decay: 0.01                                               # a plain value is fixed
    try_first:
      - {learning_rate: 1e-4}
    scheduler: {rungs: 3}
    searcher: {startup_trials: 10}

The sections `space:` (or `parameters:`) and `fixed:` may hold what otherwise stands at the top level.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import yaml

from trainer.config import TrainConfig, nearest_field
from tune.space.parameter_reader import BAD, read_parameter, read_value
from tune.space.parameters import SET_BY_SEARCH, Parameter, show
from tune.space.settings import SchedulerSettings, SearcherSettings, check_setting
from tune.util.yaml_nodes import Problems, compose, items, line_of, nearest, scalar

FIELDS = tuple(field.name for field in dataclasses.fields(TrainConfig))
_SECTIONS = ("space", "parameters", "fixed")
_TRY_FIRST = ("try_first", "points_to_try", "points")
_RESERVED = (*_SECTIONS, *_TRY_FIRST, "scheduler", "searcher")
_Settings = TypeVar("_Settings", SchedulerSettings, SearcherSettings)


@dataclasses.dataclass
class SpaceFile:
    """What a space file says, and what is wrong with it."""

    parameters: dict[str, Parameter] = dataclasses.field(default_factory=dict)
    """The searched fields."""
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The fixed fields."""
    try_first: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Points to try first, each with all searched parameters."""
    scheduler: SchedulerSettings = dataclasses.field(default_factory=SchedulerSettings)
    """When trials are stopped."""
    searcher: SearcherSettings = dataclasses.field(default_factory=SearcherSettings)
    """How points are proposed."""
    lines: dict[str, int] = dataclasses.field(default_factory=dict)
    """Line of each field that the file names, also of those with a problem."""
    problems: Problems = dataclasses.field(default_factory=Problems)
    """Everything that is wrong."""


def read_space_file(text: str) -> SpaceFile:
    """Read the text of a space file; problems are collected in the result, not raised."""
    file = SpaceFile()
    root = compose(text, file.problems)
    if isinstance(root, yaml.MappingNode):
        _top_level(root, file)
    elif root is not None:
        file.problems.add(root, "the top level must be a mapping such as learning_rate: {type: float, ...}")
    return file


def _top_level(root: yaml.MappingNode, file: SpaceFile) -> None:
    points: yaml.Node | None = None
    for key, key_node, node in items(root, file.problems):
        if key in _SECTIONS:
            _section(key, node, file)
        elif key in _TRY_FIRST:
            if points is not None:
                file.problems.add(
                    key_node, f"{key}: points to try first are given twice; put them into one list"
                )
            points = node
        elif key == "scheduler":
            file.scheduler = _settings(key, file.scheduler, node, file.problems)
        elif key == "searcher":
            file.searcher = _settings(key, file.searcher, node, file.problems)
        else:
            _entry(key, key_node, node, file)
    if points is not None:  # last: they are checked against the parameters
        _points(points, file)


def _section(section: str, node: yaml.Node, file: SpaceFile) -> None:
    if not isinstance(node, yaml.MappingNode):
        if scalar(node) is not None:  # an empty section is harmless
            file.problems.add(node, f"{section}: must be a mapping of settings")
        return
    for key, key_node, value in items(node, file.problems, f"{section}: "):
        if section == "fixed" and isinstance(value, yaml.MappingNode):
            file.problems.add(
                value, f"fixed: {key}: must be a plain value; a searched range stands outside of fixed"
            )
        else:
            _entry(key, key_node, value, file)


def _entry(key: str, key_node: yaml.Node, node: yaml.Node, file: SpaceFile) -> None:
    """One setting: searched where its value is a mapping, else fixed."""
    if key not in FIELDS:
        near = nearest(key, _RESERVED) or nearest_field(key)
        hint = f"did you mean {near}?" if near else "see the fields of TrainConfig in trainer/config.py"
        file.problems.add(key_node, f"{key}: unknown setting; {hint}")
        return
    if key in SET_BY_SEARCH:
        file.problems.add(key_node, f"{key}: is set by the search; {SET_BY_SEARCH[key]}")
        return
    if key in file.lines:
        file.problems.add(key_node, f"{key}: given twice, first in line {file.lines[key]}; remove one")
        return
    file.lines[key] = line_of(key_node)
    if isinstance(node, yaml.MappingNode):
        parameter = read_parameter(key, key_node, node, file.problems)
        if parameter is not None:
            file.parameters[key] = parameter
    elif isinstance(node, yaml.SequenceNode):
        file.problems.add(node, f"{key}: a list; to choose from it, write {{type: choice, values: [...]}}")
    else:
        value = read_value(key, node, file.problems, f"{key}=")
        if value is not BAD:
            file.fixed[key] = value


def _points(node: yaml.Node, file: SpaceFile) -> None:
    if not isinstance(node, yaml.SequenceNode):
        file.problems.add(node, "try_first: must be a list of points, as in - {learning_rate: 1e-4}")
        return
    for number, point in enumerate(node.value, start=1):
        where = f"try_first: point {number}: "
        if isinstance(point, yaml.MappingNode):
            file.try_first.append(_point(where, point, file))
        else:
            file.problems.add(point, f"{where}must be a mapping such as {{learning_rate: 1e-4}}")


def _point(where: str, node: yaml.MappingNode, file: SpaceFile) -> dict[str, Any]:
    """One point. A parameter that it leaves out takes its usual value, so that every run tries the same."""
    point: dict[str, Any] = {}
    named = set()
    for key, key_node, value_node in items(node, file.problems, where):
        named.add(key)
        if key in file.fixed:
            file.problems.add(key_node, f"{where}{key}: is fixed in line {file.lines[key]}; remove it here")
        elif key not in file.lines:
            near = nearest(key, file.parameters)
            hint = f"did you mean {near}?" if near else f"searched are {', '.join(file.parameters) or 'none'}"
            file.problems.add(key_node, f"{where}{key}: is not searched in this file; {hint}")
        else:
            value = read_value(key, value_node, file.problems, f"{where}{key}=")
            parameter = file.parameters.get(key)  # none where its range has a problem
            if value is not BAD:
                point[key] = value
                if parameter is not None and not _admits(key, parameter, value):
                    text = f"{where}{key}={show(value)}: outside the searched range ({parameter.describe()})"
                    file.problems.add(value_node, text)
    for name, parameter in file.parameters.items():
        if name not in named:
            point[name] = usual = getattr(TrainConfig, name)
            if not _admits(name, parameter, usual):
                text = f"{where}{name} is missing, and the usual {show(usual)} is out of range; add {name}"
                file.problems.add(node, text)
    return point


def _admits(name: str, parameter: Parameter, value: Any) -> bool:
    """Whether a point may hold `value`; an automatic learning rate is judged when the model is known."""
    return (value is None and name == "learning_rate") or parameter.contains(value)


def _settings(section: str, settings: _Settings, node: yaml.Node, problems: Problems) -> _Settings:
    names = [field.name for field in dataclasses.fields(settings)]
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{section}: must be a mapping with some of {', '.join(names)}")
        return settings
    for key, key_node, value_node in items(node, problems, f"{section}: "):
        if key not in names:
            near = nearest(key, names)
            hint = f"did you mean {near}?" if near else f"settings are {', '.join(names)}"
            problems.add(key_node, f"{section}: unknown setting {key!r}; {hint}")
            continue
        raw = scalar(value_node)
        try:
            settings = dataclasses.replace(settings, **{key: check_setting(getattr(settings, key), key, raw)})
        except ValueError as error:
            problems.add(value_node, f"{section}: {key}={raw!r}: {error}")
    return settings
