"""Reading of one setting of a space file: `{type: float, low: 1e-5, high: 1e-3}`, or a plain value."""

from __future__ import annotations

from typing import Any

import yaml

from trainer.config import ConfigError, check_value, field_type
from tune.space.parameters import (
    AUTO,
    NOT_SEARCHABLE,
    ChoiceParameter,
    FloatParameter,
    IntParameter,
    Parameter,
)
from tune.util.yaml_nodes import Problems, items, nearest, scalar

_SUB_KEYS = {
    "float": ("type", "low", "high", "log", "step"),
    "int": ("type", "low", "high", "log", "step"),
    "choice": ("type", "values"),
}
#: Names that other tools use.
_OTHER_SUB_KEYS = {
    **{"min": "low", "lower": "low", "max": "high", "upper": "high", "q": "step"},
    **{"choices": "values", "options": "values", "categories": "values"},
}
_OTHER_TYPES = {
    **{"uniform": "float", "number": "float", "loguniform": "float with log: true", "integer": "int"},
    **{"categorical": "choice", "bool": "choice with values: [true, false]"},
}

#: Stands for a value that a problem has been noted for.
BAD: Any = object()


def checked(name: str, value: Any) -> Any:
    """`value` as the field `name` holds it; `auto` becomes `None`, for the learning rate only.

    Raises:
        ConfigError: the field does not allow the value.
    """
    return None if value == AUTO and name == "learning_rate" else check_value(name, value)


def read_value(name: str, node: yaml.Node, problems: Problems, where: str) -> Any:
    """A plain value as the field `name` holds it, or `BAD` after a problem."""
    kind, allowed, _ = field_type(name)
    # Norwegian is written `no`, which YAML 1.1 reads as false: text fields take what is written.
    raw = scalar(node, as_text=kind is str and not allowed)
    try:
        return checked(name, raw)
    except ConfigError as error:
        problems.add(node, where + str(error).removeprefix(f"{name}="))
        return BAD


def read_parameter(
    name: str, key_node: yaml.Node, node: yaml.MappingNode, problems: Problems
) -> Parameter | None:
    """One searched parameter, or `None` after a problem."""
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
            near = _OTHER_SUB_KEYS.get(key) or nearest(key, _SUB_KEYS[kind]) or key
            nodes.setdefault(near, value)  # so that it is not said to be missing as well
            hint = (
                f"did you mean {near}?"
                if near in _SUB_KEYS[kind]
                else f"{kind} has {', '.join(_SUB_KEYS[kind])}"
            )
            problems.add(sub_key_node, f"{name}: unknown key {key!r}; {hint}")
    parameter: Parameter | None
    if kind == "choice":
        parameter = _choice(name, key_node, nodes, problems)
    else:
        parameter = _range(name, key_node, nodes, kind, problems)
    for problem in parameter.problems() if parameter is not None else ():
        problems.add(key_node, f"{name}: {problem}")
    return None if len(problems.found) > before else parameter


def _wrong_type(kind: Any) -> str:
    if kind is None:
        return "type is missing; add type: float, int or choice"
    near = _OTHER_TYPES.get(str(kind).lower()) or nearest(str(kind), _SUB_KEYS)
    return f"type={kind!r}: must be float, int or choice" + (f"; did you mean {near}?" if near else "")


def _choice(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], problems: Problems
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
    return ChoiceParameter(allowed) if allowed or not values else None


def _range(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], kind: str, problems: Problems
) -> FloatParameter | IntParameter | None:
    field_kind = field_type(name)[0]
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
    step = _step(name, nodes["step"], kind, problems) if "step" in nodes else None
    if BAD in (low, high):
        return None
    step = None if step is BAD else step
    if kind == "int":
        return IntParameter(low, high, log, 1 if step is None else step)
    return FloatParameter(low, high, log, step)


def _bound(
    name: str, key_node: yaml.Node, nodes: dict[str, yaml.Node], problems: Problems, *, sub: str, kind: str
) -> Any:
    """A bound as a number, `None` for `auto`, `BAD` after a problem."""
    node = nodes.get(sub)
    raw = None if node is None else scalar(node)
    if node is None or raw is None:
        problems.add(key_node if node is None else node, f"{name}: {sub} is missing; add {sub}: and a number")
        return BAD
    if raw == AUTO and (name != "learning_rate" or kind == "int"):
        problems.add(
            node, f"{name}: {sub}: auto is known for a learning_rate of type: float only; write a number"
        )
        return BAD
    value = read_value(name, node, problems, f"{name}: {sub}=")
    if kind == "int" and isinstance(value, float):  # whole numbers for a field that takes any number
        if not value.is_integer():
            problems.add(node, f"{name}: {sub}={raw}: type: int takes whole numbers only; write type: float")
            return BAD
        return int(value)
    return value


def _step(name: str, node: yaml.Node, kind: str, problems: Problems) -> Any:
    """A step as a number, or `BAD` after a problem. Its sign and size are judged together with the range."""
    raw = scalar(node)
    try:
        number = float("nan" if isinstance(raw, bool) else raw)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if abs(number) < float("inf") and (kind == "float" or number.is_integer()):
        return int(number) if kind == "int" else number
    allowed = "a whole number of at least 1" if kind == "int" else "a number above 0"
    problems.add(node, f"{name}: step={raw!r}: must be {allowed}")
    return BAD
