"""The names of `tune.util.console` for modules that are not in their rooms yet."""

from tune.search.records import best_rate
from tune.util.console import (
    SHORT_NAMES,
    LiveDisplay,
    clock,
    key_settings,
    make_console,
    say,
    say_notes,
    short_path,
    short_value,
)

__all__ = [
    "SHORT_NAMES",
    "LiveDisplay",
    "best_rate",
    "clock",
    "key_settings",
    "make_console",
    "say",
    "say_notes",
    "short_path",
    "short_value",
]
