"""Dataclasses as JSON has them, made into what they were."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

_UNIONS = (types.UnionType, typing.Union)


def restored(kind: Any, value: Any) -> Any:
    """A value of this type from what `dataclasses.asdict` and JSON made of it.

    Lists become tuples where the type says so, and mappings dataclasses; keys that these do not know are left out.
    Numbers and texts are not looked at.

    Raises:
        AttributeError, TypeError: the value is not of this type.
    """
    make = _maker(kind)
    return value if make is None or value is None else make(value)


@functools.cache
def _maker(kind: Any) -> Callable[[Any], Any] | None:
    """What makes values of a type that are there; None where they stay as they are."""
    if dataclasses.is_dataclass(kind):
        return _dataclass_maker(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return tuple
    own = _maker(inner[-1 if origin is dict else 0]) if origin in (list, dict, *_UNIONS) else None
    if own is None or origin in _UNIONS:  # with None
        return own
    if origin is list:
        return lambda values: [own(each) for each in values]
    return lambda values: {name: own(each) for name, each in values.items()}


def _dataclass_maker(kind: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(kind)
    known = frozenset(field.name for field in dataclasses.fields(kind) if field.init)
    makers = {name: maker for name in known if (maker := _maker(hints[name])) is not None}

    def make(values: dict[str, Any]) -> Any:
        own = values if values.keys() <= known else {name: values[name] for name in values if name in known}
        made = {name: maker(own[name]) for name, maker in makers.items() if own.get(name) is not None}
        return kind(**{**own, **made} if made else own)

    return make
