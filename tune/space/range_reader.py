"""Reading of one setting of a space file: `{type: float, low: 1e-5, high: 1e-3}`, or a plain value."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from trainer.bounds import convert, read_weight
from trainer.config import TrainConfig, check_value, field_type, unknown_field_message
from trainer.errors import ConfigError
from trainer.yaml_nodes import Problems, items, nearest, scalar
from tune.space.parameters import (
    AUTO,
    NOT_SEARCHABLE,
    SET_BY_SEARCH,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    When,
)

FIELDS = tuple(field.name for field in dataclasses.fields(TrainConfig))
_RANGE_KEYS = ("type", "low", "high", "log", "step", "prior", "when")
_SUB_KEYS = {"float": _RANGE_KEYS, "int": _RANGE_KEYS, "choice": ("type", "values", "when")}

#: Stands for a value that a problem has been noted for.
BAD: Any = object()


def checked(name: str, value: Any) -> Any:
    """`value` as the field `name` holds it; `auto` becomes `None`, for the learning rate only.

    Raises:
        ConfigError: the field does not allow the value.
    """
    if name in FIELDS:
        return None if value == AUTO and name == "learning_rate" else check_value(name, value)
    weight = read_weight(value)
    if weight is None:
        raise ConfigError(f"{name}={value!r}: must be a number from 0 to 1000")
    return weight


def _kind(name: str) -> type:
    return field_type(name)[0] if name in FIELDS else float


def read_value(name: str, node: yaml.Node, problems: Problems, where: str) -> Any:
    """A plain value as the field `name` holds it, or `BAD` after a problem."""
    # Norwegian is written `no`, which YAML 1.1 reads as false: text fields take what is written.
    as_text = _kind(name) is str and not field_type(name)[1]
    try:
        return checked(name, scalar(node, as_text=as_text))
    except ConfigError as error:
        problems.add(node, where + str(error).removeprefix(f"{name}="))
        return BAD


def read_parameter(
    name: str, key_node: yaml.Node, node: yaml.MappingNode, problems: Problems
) -> Parameter | None:
    """One range or choice, or `None` after a problem, which is told at `key_node` where it has no place of its own."""
    before = len(problems.found)
    entries = {key: (sub_key_node, value) for key, sub_key_node, value in items(node, problems, f"{name}: ")}
    if name in NOT_SEARCHABLE:
        problems.add(key_node, f"{name}: can be fixed but not searched: {NOT_SEARCHABLE[name]}")
        return None
    kind = scalar(entries["type"][1]) if "type" in entries else None
    if not isinstance(kind, str) or kind not in _SUB_KEYS:
        problems.add(entries["type"][1] if "type" in entries else key_node, f"{name}: {_wrong_type(kind)}")
        return None
    nodes = {key: value for key, (_, value) in entries.items()}
    for key, (sub_key_node, value) in entries.items():
        if key not in _SUB_KEYS[kind]:
            near = nearest(key, _SUB_KEYS[kind])
            nodes.setdefault(near or key, value)  # so that it is not said to be missing as well
            hint = f"did you mean {near}?" if near else f"{kind} has {', '.join(_SUB_KEYS[kind])}"
            problems.add(sub_key_node, f"{name}: unknown key {key!r}; {hint}")
    when = _when(name, nodes["when"], problems) if "when" in entries else ()
    parameter: Parameter | None
    if kind == "choice":
        parameter = _choice(name, key_node, nodes, when, problems)
    else:
        parameter = _range(name, key_node, nodes, kind, when, problems)
    for problem in parameter.problems() if parameter is not None else ():
        problems.add(key_node, f"{name}: {problem}")
    return None if len(problems.found) > before else parameter


def _wrong_type(kind: Any) -> str:
    if kind is None:
        return "type is missing; add type: float, int or choice"
    near = nearest(str(kind), _SUB_KEYS)
    return f"type={kind!r}: must be float, int or choice" + (f"; did you mean {near}?" if near else "")


def _choice(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], when: When, problems: Problems
) -> ChoiceParameter | None:
    node = nodes.get("values")
    if node is None:
        problems.add(key_node, f"{name}: values is missing; add values: [...]")
        return None
    if not isinstance(node, yaml.SequenceNode):
        problems.add(node, f"{name}: values must be a list, as in values: [...]")
        return None
    values = [read_value(name, value, problems, f"{name}: values: ") for value in node.value]
    allowed = tuple(value for value in values if value is not BAD)
    return ChoiceParameter(allowed, when) if allowed or not values else None


def _range(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], kind: str, when: When, problems: Problems
) -> FloatParameter | IntParameter | None:
    field_kind = _kind(name)
    if field_kind not in (int, float):
        values = "[true, false]" if field_kind is bool else "[...]"
        problems.add(key_node, f"{name}: has no range; write {{type: choice, values: {values}}}")
        return None
    if kind == "float" and field_kind is int:
        problems.add(key_node, f"{name}: takes whole numbers only; write type: int instead of type: float")
        return None
    low, high = (_bound(name, key_node, nodes, problems, sub=sub, kind=kind) for sub in ("low", "high"))
    log = scalar(nodes["log"]) if "log" in nodes else False
    if not isinstance(log, bool):
        problems.add(nodes["log"], f"{name}: log={log!r}: must be true or false")
        log = False  # the bounds are still judged
    step: Any = None
    if "step" in nodes:  # its sign and size are judged together with the range, and so is the prior
        allowed = "a whole number of at least 1" if kind == "int" else "a number above 0"
        step = _number(name, "step", nodes["step"], int if kind == "int" else float, allowed, problems)
    prior, spread = _prior(name, nodes["prior"], kind, problems) if "prior" in nodes else (None, None)
    if BAD in (low, high):
        return None
    if step is BAD or (kind == "int" and step == 1):
        step = None
    parameter = IntParameter if kind == "int" else FloatParameter
    return parameter(
        low, high, log, step, None if prior is BAD else prior, when, None if spread is BAD else spread
    )


def _prior(name: str, node: yaml.Node, kind: str, problems: Problems) -> tuple[Any, Any]:
    """Centre and spread: the centre alone, or a mapping of both."""
    spread: Any = None
    if isinstance(node, yaml.MappingNode):
        entries = {key: value for key, _, value in items(node, problems, f"{name}: prior: ")}
        if set(entries) != {"center", "spread"}:
            problems.add(
                node, f"{name}: prior: must be a number, or have both keys, as in {{center: 1, spread: 2}}"
            )
            return BAD, BAD
        spread = _number(name, "prior: spread", entries["spread"], float, "a number", problems)
        node = entries["center"]
    if scalar(node) == AUTO and _auto_allowed(name, kind):
        return AUTO, spread
    return _number(name, "prior", node, float, "a number of the range", problems), spread


def _bound(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], problems: Problems, *, sub: str, kind: str
) -> Any:
    """A bound as a number, `None` for `auto`, `BAD` after a problem."""
    node = nodes.get(sub)
    raw = None if node is None else scalar(node)
    if node is None or raw is None:
        problems.add(key_node if node is None else node, f"{name}: {sub} is missing; add {sub}: and a number")
        return BAD
    if raw == AUTO and not _auto_allowed(name, kind):
        problems.add(
            node, f"{name}: {sub}: auto is known for a learning_rate of type: float only; write a number"
        )
        return BAD
    value = read_value(name, node, problems, f"{name}: {sub}=")
    if isinstance(value, str):  # a word that the field knows, such as audio_window's batch
        problems.add(node, f"{name}: {sub}={value!r}: must be a number")
        return BAD
    if kind == "int" and isinstance(value, float):  # whole numbers for a field that takes any number
        if not value.is_integer():
            problems.add(node, f"{name}: {sub}={raw}: type: int takes whole numbers only; write type: float")
            return BAD
        return int(value)
    return value


def _auto_allowed(name: str, kind: str) -> bool:
    return name == "learning_rate" and kind == "float"


def _number(name: str, sub: str, node: yaml.Node, kind: type, allowed: str, problems: Problems) -> Any:
    """A number, or `BAD` after a problem."""
    number = convert(kind, scalar(node))
    if number is None:
        problems.add(node, f"{name}: {sub}={scalar(node)!r}: must be {allowed}")
        return BAD
    return number


def _when(name: str, node: yaml.Node, problems: Problems) -> When:
    """A condition; what it says of searched settings is judged when all are known."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        problems.add(
            node, f"{name}: when: must be a mapping of settings and values, as in {{spec_augment: true}}"
        )
        return ()
    conditions = []
    for key, key_node, value_node in items(node, problems, f"{name}: when: "):
        if key not in FIELDS:
            problems.add(key_node, f"{name}: when: {key}: {unknown_field_message(key)}")
        elif key in SET_BY_SEARCH:
            problems.add(
                key_node, f"{name}: when: {key}: is set by the search, so no condition can depend on it"
            )
        else:
            nodes = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            if not nodes:
                problems.add(value_node, f"{name}: when: {key}: is an empty list; name a value")
            values = [read_value(key, each, problems, f"{name}: when: {key}=") for each in nodes]
            conditions.append((key, tuple(value for value in values if value is not BAD)))
    return tuple(conditions)
