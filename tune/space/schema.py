"""A JSON Schema of space files, made from the settings' own definitions, for editors that complete and check."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.bounds import AUTOMATIC, BOUNDS, POSITIVE
from trainer.config import TrainConfig, field_docs, field_type, field_words
from tune.space.parameters import AUTO, NOT_SEARCHABLE, SET_BY_SEARCH
from tune.space.reader import SECTIONS, TRY_FIRST
from tune.space.settings import LIMITS, SchedulerSettings, SearcherSettings

_Schema = dict[str, Any]
_AUTOMATIC = ("learning_rate", *AUTOMATIC)
"""Fields that can be `auto`."""
_WEIGHT = "weight"
_TYPES = {bool: "boolean", int: "integer", float: "number"}


def space_schema() -> _Schema:
    """The schema, draft 2020-12, as plain values. What only shows in the whole of a file is left to the program."""
    docs = field_docs(TrainConfig)
    names = [name for name in docs if name not in SET_BY_SEARCH]
    values = {name: _value(name) for name in names}
    searchable = [name for name in names if name not in NOT_SEARCHABLE]
    settings = {
        name: {
            "description": docs[name],
            "anyOf": [_ref(name), *(_searched(name, field_type(name)[0]) if name in searchable else ())],
        }
        for name in names
    }
    values[_WEIGHT] = {"type": "number", "minimum": 0}
    weight = {
        "description": "How often each clip of the source comes in an epoch, on average.",
        "anyOf": [_ref(_WEIGHT), *_searched(_WEIGHT, float)],
    }
    points = {"type": "array", "items": _mapping({name: _ref(name) for name in searchable})}
    of_section = {name: _section(settings) for name in SECTIONS}
    of_section["fixed"] = _section({name: _ref(name) for name in names})
    when = {
        name: {"anyOf": [_ref(name), {"type": "array", "items": _ref(name), "minItems": 1}]}
        for name in names
        if name != "learning_rate"
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tune-whisper search space",
        **_mapping(
            {
                **settings,
                **of_section,
                **dict.fromkeys(TRY_FIRST, points),
                "scheduler": _mapping(_settings(SchedulerSettings)),
                "searcher": _mapping(_settings(SearcherSettings)),
                "sources": {"type": "object", "additionalProperties": _mapping({_WEIGHT: weight})},
            }
        ),
        "$defs": {**values, "when": {**_mapping(when), "minProperties": 1}},
    }


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/$defs/{name}"}


def _mapping(properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _section(properties: _Schema) -> _Schema:
    """An empty one is harmless."""
    return {**_mapping(properties), "type": ["object", "null"]}


def _value(name: str) -> _Schema:
    """What a field may be."""
    kind, allowed, optional = field_type(name)
    found: _Schema = {"type": _TYPES.get(kind, ["string", "number", "boolean"]), **_bounds(name)}
    if allowed:
        found = {"enum": list(allowed)}
    others = [{"const": word} for word in (*field_words(name), *([AUTO] if name in _AUTOMATIC else []))]
    others += [{"type": "null"}] if optional else []
    return {"anyOf": [found, *others]} if others else found


def _bounds(name: str) -> _Schema:
    low, high = BOUNDS.get(name, (None, None))
    if name in POSITIVE:
        return {"exclusiveMinimum": 0}
    ends = {"minimum": low, "maximum": high}
    return {key: end for key, end in ends.items() if end is not None}


def _searched(name: str, kind: type) -> list[_Schema]:
    """A range or a choice, or several under conditions; `kind` is the type of the field."""
    when = {"when": _ref("when")}
    choice = {"type": "array", "items": _ref(name), "minItems": 1, "uniqueItems": True}
    kinds = [
        _mapping({"type": {"const": "choice"}, "values": choice, **when}) | {"required": ["type", "values"]}
    ]
    for number, json_type in (("float", "number"), ("int", "integer")):
        if kind not in (int, float) or (kind is int and number == "float"):
            continue
        automatic = [{"const": AUTO}] if name == "learning_rate" and number == "float" else []
        bound = {"anyOf": [{"type": json_type, **_bounds(name)}, *automatic]}
        mean = {"anyOf": [{"type": "number"}, *automatic]}
        prior = {
            **_mapping({"mean": mean, "spread": {"type": "number", "exclusiveMinimum": 0}}),
            "required": ["mean"],
        }
        keys = {
            "type": {"const": number},
            **{"low": bound, "high": bound, "log": {"type": "boolean"}},
            **{"step": {"type": json_type, "exclusiveMinimum": 0}, "prior": {"anyOf": [mean, prior]}, **when},
        }
        logarithmic = {"properties": {"log": {"const": True}}, "required": ["log"]}
        positive = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": AUTO}]}
        factor = {"properties": {"spread": {"exclusiveMinimum": 1}}}
        kinds.append(
            {
                **_mapping(keys),
                "required": ["type", "low", "high"],
                "if": logarithmic,
                "then": {"properties": {"low": positive, "step": False, "prior": factor}},
            }
        )
    return [*kinds, {"type": "array", "items": {"anyOf": kinds}, "minItems": 1}]


def _settings(section: type[SchedulerSettings] | type[SearcherSettings]) -> _Schema:
    docs = field_docs(section)
    found: _Schema = {}
    for field in dataclasses.fields(section):
        low, high = LIMITS.get(field.name, (None, None))
        ends = {} if low is None else {"minimum": low, "maximum": high}
        found[field.name] = {
            "description": docs[field.name],
            **{"type": _TYPES[type(field.default)], "default": field.default, **ends},
        }
    return found
