"""Values of `--set KEY=VALUE` and of other options, which go before those of a space file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.config import ConfigError, field_type, unknown_field_message
from tune.space.parameter_reader import checked
from tune.space.parameters import SET_BY_SEARCH
from tune.space.space_file import FIELDS


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
    if valid.get("epochs") is not None and valid.get("max_steps") is not None:
        problems.append(f"{prefix}epochs and max_steps: only one budget can be given; remove one")
    return valid, problems
