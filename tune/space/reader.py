"""Reading of a space file: YAML nodes with their lines, every problem collected, none raised before the end.

    spec_augment: {type: choice, values: [false, true]}              # a mapping is searched
    mask_time_prob: {type: float, low: 0.02, high: 0.2, when: {spec_augment: true}}
    learning_rate:                                                   # so are several ranges; the first that holds
      - {type: float, low: 1e-6, high: 1e-4, log: true, when: {method: full}}
      - {type: float, low: 1e-5, high: 1e-3, log: true, prior: 1e-4}
    weight_decay: 0.01                                               # a plain value is fixed
    try_first:
      - {learning_rate: 1e-4}
    scheduler: {rungs: 3}
    searcher: {startup_trials: 10}
    weight.fleurs: {type: float, low: 0.25, high: 4, log: true}      # of a source of the data

The sections `parameters:` and `fixed:` may hold what otherwise stands at the top level.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml

from trainer.bounds import WEIGHT_OF
from trainer.config import BUDGETS, field_type, nearest_field, unknown_field_message
from trainer.errors import ConfigError
from trainer.optimizers import ADAM_SETTINGS, WITH_ADAM, WITH_METHOD
from trainer.yaml_nodes import Problems, compose, items, line_of, nearest, scalar
from tune.space.conditions import active_index, check_conditions, deciding_points, possible_values
from tune.space.parameters import (
    SET_BY_SEARCH,
    ChoiceParameter,
    Parameter,
    describe_when,
    show,
    usual_value,
)
from tune.space.range_reader import BAD, FIELDS, checked, read_parameter, read_value
from tune.space.settings import SchedulerSettings, SearcherSettings, check_setting

_SECTIONS = ("parameters", "fixed")
_RESERVED = (*_SECTIONS, "try_first", "scheduler", "searcher")
_SECTION_OF = {
    field.name: section
    for section, settings in (("scheduler", SchedulerSettings), ("searcher", SearcherSettings))
    for field in dataclasses.fields(settings)
}
"""Where settings of the search stand in a space file."""
_ONLY_WITH = {
    **dict.fromkeys(ADAM_SETTINGS, ("optimizer", WITH_ADAM)),
    "decay_ratio": ("scheduler_type", ("warmup_stable_decay",)),
    **{name: ("method", methods) for name, methods in WITH_METHOD.items()},
}
"""Settings that do nothing but with these values of another."""
_Settings = TypeVar("_Settings", SchedulerSettings, SearcherSettings)


def read_space(text: str, overrides: Mapping[str, Any], defaults: Mapping[str, Any]) -> SpaceReader:
    """Read a space file; problems are collected in the result, not raised.

    Args:
        overrides: values of options, as `check_overrides` has them, which go before its own.
        defaults: the same of what it does not name.
    """
    reader = SpaceReader()
    root = compose(text, reader.problems)
    if isinstance(root, yaml.MappingNode):
        reader.read(root)
    elif root is not None:
        reader.problems.add(root, "the top level must be a mapping such as learning_rate: {type: float, ...}")
    reader.apply({name: defaults[name] for name in defaults.keys() - reader.lines.keys()} | {**overrides})
    return reader


def parse_set(items: list[str]) -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, split at the first `=` and converted to the type of the field.

    Raises:
        ConfigError: a key is unknown or given twice, or a value is not allowed; one line a problem.
    """
    raw: dict[str, Any] = {}
    problems = []
    for item in items:
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            problems.append(f"--set {item}: must be KEY=VALUE, as in learning_rate=1e-4")
        elif key in raw:
            problems.append(f"--set {item}: {key} is given twice; remove one")
        else:
            raw[key] = None if value == "null" and key in FIELDS and field_type(key)[2] else value
    valid, wrong = check_overrides(raw, "--set ")
    if problems or wrong:
        raise ConfigError("\n".join(problems + wrong))
    return valid


def check_overrides(overrides: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
    """The values as the fields hold them, and the problems with the others, one line each."""
    valid: dict[str, Any] = {}
    problems = []
    for key, value in overrides.items():
        if section := _SECTION_OF.get(key):
            problems.append(
                f"{prefix}{key}={value}: is a setting of a search; write it in a space file, under {section}:"
            )
            continue
        if key not in FIELDS:
            problems.append(f"{prefix}{key}={value}: {unknown_field_message(key)}")
            continue
        if key in SET_BY_SEARCH:
            problems.append(f"{prefix}{key}: is set by the search; {SET_BY_SEARCH[key]}")
            continue
        try:
            valid[key] = checked(key, value)
        except ConfigError as error:
            problems.append(f"{prefix}{error}")
    if len(budgets := [name for name in BUDGETS if valid.get(name) is not None]) > 1:
        problems.append(f"{prefix}{' and '.join(budgets)}: only one budget can be given; remove one")
    return valid, problems


class SpaceReader:
    """What a space file says, and what is wrong with it."""

    def __init__(self) -> None:
        self.ranges: dict[str, tuple[Parameter, ...]] = {}
        """The searched fields, each with its ranges."""
        self.fixed: dict[str, Any] = {}
        self.points: list[dict[str, Any]] = []
        """Points to try first, each with all settings that are searched there."""
        self.scheduler = SchedulerSettings()
        self.searcher = SearcherSettings()
        self.problems = Problems()
        self.lines: dict[str, int] = {}
        """Line of each field that the file names, also of those with a problem."""
        self._range_lines: dict[str, list[int]] = {}
        self._points: list[tuple[yaml.MappingNode, dict[str, yaml.Node], dict[str, Any]]] = []
        """Of each point as it is written: its node, those of its values, and the values."""

    def read(self, root: yaml.MappingNode) -> None:
        points: yaml.Node | None = None
        for key, key_node, node in items(root, self.problems):
            if key in _SECTIONS:
                self._section(key, node)
            elif key == "try_first":
                points = node
            elif key == "scheduler":
                self.scheduler = _settings(key, self.scheduler, node, self.problems)
            elif key == "searcher":
                self.searcher = _settings(key, self.searcher, node, self.problems)
            else:
                self._entry(key, key_node, node)
        if points is not None:  # last: they are checked against the parameters
            self._read_points(points)

    def apply(self, overrides: Mapping[str, Any]) -> None:
        """Put values of options in place of the file's, then check what only shows in the whole."""
        searched = set(self.ranges)
        for key in overrides:
            self.ranges.pop(key, None)
        # One budget replaces the other: the file's max_steps does not forbid --epochs.
        if any(overrides.get(budget) is not None for budget in BUDGETS):
            for other in BUDGETS:
                if other not in overrides:
                    self.fixed.pop(other, None)
        self.fixed.update(overrides)
        deciding = {other for each in self.ranges.values() for one in each for other, _ in one.when}
        decided = {key: value for key, value in overrides.items() if key in deciding}
        wrong = self.lines.keys() - searched - self.fixed.keys()
        self.ranges = check_conditions(
            self.ranges, self.fixed, self._range_lines, {*overrides, *wrong}, self.problems
        )
        left_out = searched - self.ranges.keys()
        for number, (node, nodes, point) in enumerate(self._points, start=1):
            before = len(self.problems.found)
            given = {key: value for key, value in point.items() if key not in left_out}
            completed = self._completed(f"try_first: point {number}: ", node, given, nodes)
            of_other_branch = any(point.get(key, value) != value for key, value in decided.items())
            if of_other_branch and len(self.problems.found) > before:
                del self.problems.found[before:]  # an option has cut off the branch that it was for
            else:
                self.points.append(completed)
        if not self.problems.found:
            self._check_whole(overrides)

    def _section(self, section: str, node: yaml.Node) -> None:
        if not isinstance(node, yaml.MappingNode):
            if scalar(node) is not None:  # an empty section is harmless
                self.problems.add(node, f"{section}: must be a mapping of settings")
            return
        for key, key_node, value in items(node, self.problems, f"{section}: "):
            ranges = value.value if isinstance(value, yaml.SequenceNode) else [value]
            if section == "fixed" and any(isinstance(each, yaml.MappingNode) for each in ranges):
                self.problems.add(
                    value, f"fixed: {key}: must be a plain value; write a searched range outside of fixed"
                )
            else:
                self._entry(key, key_node, value)

    def _entry(self, key: str, key_node: yaml.Node, node: yaml.Node) -> None:
        """One setting: searched where its value is a mapping or a list of such, else fixed."""
        if section := _SECTION_OF.get(key):
            self.problems.add(key_node, f"{key}: write it under {section}:")
        elif key not in FIELDS and not key.startswith(WEIGHT_OF):
            near = nearest(key, _RESERVED) or nearest_field(key)
            hint = f"did you mean {near}?" if near else "see the fields of TrainConfig in trainer/config.py"
            self.problems.add(key_node, f"{key}: unknown setting; {hint}")
        elif key in SET_BY_SEARCH:
            self.problems.add(key_node, f"{key}: is set by the search; {SET_BY_SEARCH[key]}")
        elif key in self.lines:
            self.problems.add(key_node, f"{key}: given twice, first in line {self.lines[key]}; remove one")
        else:
            self._value_or_ranges(key, key_node, node)

    def _value_or_ranges(self, key: str, key_node: yaml.Node, node: yaml.Node) -> None:
        self.lines[key] = line_of(key_node)
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if isinstance(node, yaml.ScalarNode):
            value = read_value(key, node, self.problems, f"{key}=")
            if value is not BAD:
                self.fixed[key] = value
        elif not nodes or not all(isinstance(each, yaml.MappingNode) for each in nodes):
            self.problems.add(
                node, f"{key}: a list; to choose from it, write {{type: choice, values: [...]}}"
            )
        else:
            # A problem with a range is reported where its name stands; of several, where each begins.
            positions = [key_node] if isinstance(node, yaml.MappingNode) else nodes
            read = [
                read_parameter(key, position, each, self.problems)
                for position, each in zip(positions, nodes, strict=True)
            ]
            ranges = tuple(parameter for parameter in read if parameter is not None)
            if len({type(parameter) for parameter in ranges}) > 1:
                self.problems.add(key_node, f"{key}: its ranges must be of one type")
            elif len(ranges) == len(nodes):
                self.ranges[key] = ranges
                self._range_lines[key] = [line_of(position) for position in positions]

    def _read_points(self, node: yaml.Node) -> None:
        if not isinstance(node, yaml.SequenceNode):
            self.problems.add(node, "try_first: must be a list of points, as in - {learning_rate: 1e-4}")
            return
        for number, point in enumerate(node.value, start=1):
            where = f"try_first: point {number}: "
            if isinstance(point, yaml.MappingNode):
                self._point(where, point)
            else:
                self.problems.add(point, f"{where}must be a mapping such as {{learning_rate: 1e-4}}")

    def _point(self, where: str, node: yaml.MappingNode) -> None:
        point: dict[str, Any] = {}
        nodes: dict[str, yaml.Node] = {}
        for key, key_node, value_node in items(node, self.problems, where):
            nodes[key] = value_node
            if key in self.fixed:
                text = f"{where}{key}: is fixed in line {self.lines[key]}; remove it here"
                self.problems.add(key_node, text)
            elif key not in self.lines:
                near = nearest(key, self.ranges)
                hint = f"did you mean {near}?" if near else f"searched are {', '.join(self.ranges) or 'none'}"
                self.problems.add(key_node, f"{where}{key}: is not searched in this file; {hint}")
            else:
                point[key] = read_value(key, value_node, self.problems, f"{where}{key}=")
        self._points.append((node, nodes, point))

    def _completed(
        self, where: str, node: yaml.MappingNode, given: dict[str, Any], nodes: Mapping[str, yaml.Node]
    ) -> dict[str, Any]:
        """A point with the usual value of each parameter that it leaves out, so that every run tries the same."""
        point = {key: value for key, value in given.items() if value is not BAD}
        for name in self.ranges if BAD not in given.values() else ():
            index = active_index(self.ranges, name, point, self.fixed)
            if index is None:
                if name in point:
                    condition = describe_when(self.ranges[name][0].when).removeprefix(", ")
                    text = f"{where}{name}: is searched only {condition}; remove it here"
                    self.problems.add(nodes[name], text)
                continue
            parameter = self.ranges[name][index]
            value = point.setdefault(name, usual_value(name))
            # An automatic learning rate is judged when the model is known.
            if (value is None and name == "learning_rate") or parameter.contains(value):
                continue
            if name in given:
                text = f"{name}={show(value)}: outside the searched range ({parameter.describe()})"
            else:
                text = f"{name} is missing, and the usual {show(value)} is out of range; add {name}"
            self.problems.add(nodes.get(name, node), where + text)
        return {name: point[name] for name in (*given, *self.ranges) if name in point}

    def _check_whole(self, overrides: Mapping[str, Any]) -> None:
        """Problems between settings that are right each by itself."""
        fixed = self.fixed
        budgets = [name for name in BUDGETS if fixed.get(name) is not None]
        if len(budgets) > 1 and budgets[0] in self.lines:
            text = f"{' and '.join(budgets)}: only one budget can be given; remove one"
            self.problems.add(self.lines[budgets[0]], text)
        if not self.ranges:
            reason = "every searched parameter is fixed by an option" if overrides else "nothing is searched"
            text = f"{reason}; at least one setting needs a range such as {{type: float, low: 0, high: 1}}"
            self.problems.add(1, text)
        for name, text in self._without_effect():
            match self.ranges[name]:
                case (ChoiceParameter(values=(_,)),):  # no more searched than a fixed one
                    continue
            self.problems.add(self.lines[name], f"{name}: is searched without effect: {text}")

    def _without_effect(self) -> Iterator[tuple[str, str]]:
        """Searched parameters that another setting switches off: the search would model noise."""
        ranges, fixed = self.ranges, self.fixed
        points = list(deciding_points(ranges, fixed))

        def where(name: str) -> list[dict[str, Any]]:
            return [point for point in points if active_index(ranges, name, point, fixed) is not None]

        steps = where("warmup_steps") if ranges.get("warmup_steps") != (ChoiceParameter((None,)),) else []
        if where("warmup_ratio") and (
            fixed.get("warmup_steps") is not None
            or any(
                point in steps and point.get("warmup_steps", 0) is not None for point in where("warmup_ratio")
            )
        ):
            yield "warmup_ratio", "warmup_steps overrides it; remove one, or fix warmup_ratio"
        for name, (switch, values) in _ONLY_WITH.items():
            able = [value for point in where(name) for value in possible_values(switch, point, ranges, fixed)]
            needed, idle = " or ".join(values), [value for value in able if value not in values]
            if able and not {*values} & {*able}:
                yield name, f"{switch} is {show(able[0])}; set it to {needed}, or fix {name}"
            elif idle:
                when = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
                yield name, f"{switch} can be {idle[0]}; add when: {{{switch}: {when}}}"
        for name in ranges:
            switch, off = ("spec_augment", "false") if name.startswith("mask_") else ("augment", "0")
            depends = name.startswith(("mask_", "augment_"))
            if depends and where(name) and switch not in ranges and not fixed.get(switch):
                on = "true" if switch == "spec_augment" else "a share of the clips"
                yield name, f"{switch} is {off}; set it to {on}, or fix {name}"
            elif name.startswith("augment") and where(name) and fixed.get("augment_strength") == 0:
                yield name, "augment_strength is 0; set it to a number above 0, or remove the augmentation"


def _settings(section: str, settings: _Settings, node: yaml.Node, problems: Problems) -> _Settings:
    names = [field.name for field in dataclasses.fields(settings)]
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{section}: must be a mapping with some of {', '.join(names)}")
        return settings
    for key, key_node, value_node in items(node, problems, f"{section}: "):
        if key not in names:
            near = nearest(key, names)
            hint = f"did you mean {near}?" if near else f"settings are {', '.join(names)}"
            if other := _SECTION_OF.get(key):
                hint = f"write it under {other}:"
            problems.add(key_node, f"{section}: unknown setting {key!r}; {hint}")
            continue
        raw = scalar(value_node)
        try:
            settings = dataclasses.replace(settings, **{key: check_setting(getattr(settings, key), key, raw)})
        except ValueError as error:
            problems.add(value_node, f"{section}: {key}={raw!r}: {error}")
    return settings
