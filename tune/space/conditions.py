"""Conditions (`when`): which ranges count in a point, in what order settings are drawn, and which ranges never count.

A condition looks at what the training would have: the point's own value of a setting, else the fixed one, else the
setting's default. Of several ranges of one setting the first whose condition holds counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from trainer.yaml_nodes import Problems
from tune.space.parameters import ChoiceParameter, Parameter, describe_when, show, usual_value

Ranges: TypeAlias = Mapping[str, tuple[Parameter, ...]]
"""The searched fields, each with its ranges."""
Values: TypeAlias = Callable[[str, Parameter], Iterable[Any]]


def effective(name: str, point: Mapping[str, Any], fixed: Mapping[str, Any]) -> Any:
    """The value of a field that a trial with this point trains with; of an automatic learning rate None."""
    return point.get(name, fixed.get(name, usual_value(name)))


def active_index(ranges: Ranges, name: str, point: Mapping[str, Any], fixed: Mapping[str, Any]) -> int | None:
    """Index of the range of a field that counts in a point; None where the field is not searched there."""
    for index, parameter in enumerate(ranges.get(name, ())):
        if all(_is_among(effective(other, point, fixed), values) for other, values in parameter.when):
            return index
    return None


def _is_among(value: Any, values: Collection[Any]) -> bool:
    """Whether a value is one of a condition's; on a grid of real numbers 3 x 0.05 is 0.15."""
    if isinstance(value, float):
        return any(not isinstance(each, str | None) and math.isclose(value, each) for each in values)
    return value in values


def key_of(name: str, parameter: Parameter) -> str:
    """What Optuna calls a range: under a condition it has a distribution of its own (`dropout@spec_augment=true`)."""
    condition = ",".join(f"{other}={'|'.join(map(show, values))}" for other, values in parameter.when)
    return f"{name}@{condition}" if condition else name


def deciders(ranges: Ranges) -> set[str]:
    """Searched fields that conditions look at."""
    return {other for name in ranges for other in _needs(ranges, name)}


def in_order(ranges: Ranges) -> list[str]:
    """The searched fields, those first that conditions of others look at; without those of a circle."""
    order: list[str] = []
    while ready := [name for name in ranges if name not in order and _needs(ranges, name) <= {*order}]:
        order.append(ready[0])
    return order


def _needs(ranges: Ranges, name: str) -> set[str]:
    return {other for parameter in ranges[name] for other, _ in parameter.when if other in ranges}


def check_conditions(
    ranges: Mapping[str, tuple[Parameter, ...]],
    fixed: Mapping[str, Any],
    lines: Mapping[str, list[int]],
    known_gone: set[str],
    problems: Problems,
) -> dict[str, tuple[Parameter, ...]]:
    """The ranges that count in some point, conditions on fixed settings left out.

    Args:
        ranges: as the file has them, each right by itself.
        known_gone: fields that options fix or that have a problem; ranges that never count for that go silently.
    """
    before = len(problems.found)
    for name, own in ranges.items():
        for line, parameter in zip(lines[name], own, strict=True):
            for other, values in parameter.when:
                text = _cannot_be(other, values, ranges)
                if text:
                    problems.add(line, f"{name}: when: {other}{text}")
    order = in_order(ranges)
    if circle := [name for name in ranges if name not in order]:
        text = f"the conditions of {', '.join(circle)} depend on each other in a circle; remove one"
        problems.add(lines[circle[0]][0], f"{circle[0]}: when: {text}")
    if len(problems.found) > before:
        return dict(ranges)
    points = list(deciding_points(ranges, fixed))
    used = {(name, active_index(ranges, name, point, fixed)) for point in points for name in ranges}
    kept: dict[str, tuple[Parameter, ...]] = {}
    gone = set(known_gone)
    for name in order:
        left = []
        for index, (line, parameter) in enumerate(zip(lines[name], ranges[name], strict=True)):
            if (name, index) in used:
                when = tuple(condition for condition in parameter.when if condition[0] in kept)
                left.append(dataclasses.replace(parameter, when=when))
            elif gone.isdisjoint(other for each in ranges[name] for other, _ in each.when):
                never = [
                    f"{other} is {show(effective(other, {}, fixed))}"
                    for other, values in parameter.when
                    if other not in ranges and effective(other, {}, fixed) not in values
                ]
                reason = ", ".join(never) or "no trial has that, or an earlier range applies wherever one has"
                where = f"{describe_when(parameter.when)}: {reason}"
                problems.add(line, f"{name}: is never searched{where}; fix its when, or remove the range")
        if left:
            kept[name] = tuple(left)
        else:
            gone.add(name)
    return {name: kept[name] for name in ranges if name in kept}


def _cannot_be(other: str, values: tuple[Any, ...], ranges: Ranges) -> str:
    """What is wrong with a condition on a searched field; empty where nothing is."""
    if other == "learning_rate":
        return ": a condition cannot depend on it; name a choice, whole numbers or a fixed setting"
    for value in values:
        if other in ranges and not any(each.contains(value) for each in ranges[other]):
            return f"={show(value)}: is none of its searched values ({ranges[other][0].describe()})"
    if other in ranges and any(
        not isinstance(each, ChoiceParameter) and each.points() is None for each in ranges[other]
    ):
        return ": is a range of real numbers; name a choice, whole numbers or a fixed setting"
    return ""


def not_always_searched(ranges: Ranges, fixed: Mapping[str, Any]) -> set[str]:
    """Fields whose conditions hold in some points of the space only."""
    points = deciding_points(ranges, fixed)
    return {name for point in points for name in ranges if active_index(ranges, name, point, fixed) is None}


def possible_values(
    name: str, point: Mapping[str, Any], ranges: Ranges, fixed: Mapping[str, Any]
) -> Sequence[Any]:
    """What a choice can be in the trials of a point of the deciding settings."""
    index = None if name in point else active_index(ranges, name, point, fixed)
    return [effective(name, point, fixed)] if index is None else ranges[name][index].points() or []


def deciding_points(ranges: Ranges, fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Values of the deciding settings, all that conditions tell apart; of `method`, by which rates differ, all."""
    conditions = [condition for own in ranges.values() for each in own for condition in each.when]

    def distinct_values(name: str, parameter: Parameter) -> Sequence[Any]:
        points = parameter.points() or []
        if name == "method":
            return points
        named = [
            value
            for value in points
            if any(other == name and _is_among(value, values) for other, values in conditions)
        ]
        return named + next(([value] for value in points if value not in named), [])

    return points_of(ranges, fixed, {*deciders(ranges), "method"}, distinct_values)


def points_of(
    ranges: Ranges, fixed: Mapping[str, Any], names: Collection[str], values: Values
) -> Iterator[dict[str, Any]]:
    """All points of some fields, of each that is searched there with `values` of the range that counts."""

    def extended(point: dict[str, Any], left: list[str]) -> Iterator[dict[str, Any]]:
        if not left:
            yield {name: point[name] for name in ranges if name in point}
            return
        name, *later = left
        index = active_index(ranges, name, point, fixed)
        given = [{}] if index is None else ({name: value} for value in values(name, ranges[name][index]))
        for own in given:
            yield from extended(point | own, later)

    return extended({}, [name for name in in_order(ranges) if name in names])
