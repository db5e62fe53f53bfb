"""Errors of commands in the words of Python: a keyword where the command has a flag."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.errors import UserError

ARGUMENTS = "TUNE_WHISPER_ARGUMENTS"
"""Environment variable with more arguments for the command that a process runs, a list in JSON: those that may
hold passwords."""
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s:;,'\"]|:(?=\S))+"
_SAID = re.compile(
    r"tune-whisper(?: (?P<helped>[a-z]+))? --help"
    rf"|tune-whisper(?: (?P<command>[a-z]+))?(?P<options>(?: --[a-z-]+[ =]{_VALUE})+)"
    r"|--set (?P<key>\w+)(?:=(?P<value>[^\s:;,)]+))?"
    # What follows is a value where it looks like one: 4, NAME, 'x', a/b, or a word before a colon.
    r"|--(?P<flag>[a-z][a-z-]*)(?P<given> (?=[\dA-Z'\"./]|[^\s:;,]+:))?"
)
_VALUES = {"null": "None", "true": "True", "false": "False"}


@contextlib.contextmanager
def in_keywords(function: Callable[..., Any], space: Path | None = None) -> Iterator[None]:
    """Raise user errors of the block with the function's keywords in place of the command's flags.

    Args:
        function: that the user has called.
        space: a file that stands for the mapping that the user gave.
    """
    try:
        yield
    except UserError as error:
        text = str(error)
        if space is not None:
            text = re.sub(rf"{re.escape(str(space))}(:\d+)?", "space", text)
        error.args = (_SAID.sub(lambda said: _keyword(said, function), text),)
        raise


def _keyword(said: re.Match[str], function: Callable[..., Any]) -> str:
    if said["options"]:
        options = re.findall(rf" --([a-z-]+)[ =]({_VALUE})", said["options"])
        given = ", ".join(f"{_names(flag)[-1]}={_unquoted(value)!r}" for flag, value in options)
        return f"{said['command'] or 'search'}({given})"
    if said["key"]:
        value = said["value"]
        return f'settings["{said["key"]}"]' + (f"={_VALUES.get(value, value)}" if value else "")
    if not said["flag"]:
        return f"help({said['helped'] or 'search'})"
    keywords = inspect.signature(function).parameters
    known = [name for name in _names(said["flag"]) if name in keywords]
    return known[0] + ("=" if said["given"] else "") if known else said[0]


def _unquoted(value: str) -> str:
    """The inverse of `shlex.quote`; backslashes, as in folders of Windows, stay."""
    return re.sub(r"'([^']*)'|\"([^\"]*)\"", r"\1\2", value)


def _names(flag: str) -> list[str]:
    renamed = {"from": ["from_experiment"], "format": ["format", "formats"]}
    return renamed.get(flag, [flag.replace("-", "_")])
