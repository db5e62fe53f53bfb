"""The command `tune-whisper`: arguments in, exit code out. Imports nothing heavy on the way to `--help`."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from trainer.command import run_command
from trainer.errors import ConfigError

_SEARCH = "tune.commands.search:search"
COMMANDS = {
    "search": _SEARCH,
    "inspect": "tune.commands.inspect:inspect",
    "train": "tune.commands.train:train",
    "evaluate": "tune.commands.evaluate:evaluate",
    "export": "tune.commands.export:export",
    "register": "tune.commands.register:register",
    "ui": "tune.commands.ui:ui",
    "report": "tune.commands.report:report",
    "sync": "tune.commands.sync:sync",
    "transcribe": "tune.commands.transcribe:transcribe",
    "push": "tune.commands.export:push",
    "submit": "tune.commands.jobs:submit",
    "status": "tune.commands.jobs:status",
    "logs": "tune.commands.jobs:logs",
    "stop": "tune.commands.jobs:stop",
    "list": "tune.commands.list:list_all",
    "cluster": "tune.commands.cluster:cluster",
}
"""The functions behind the command words; each takes the words after its own and returns the exit code. Without a word
it is a search.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line each and exit code 2."""
    atexit.register(
        gc.freeze
    )  # else Python looks at each of millions of objects once more: a second and more
    if "_ARGCOMPLETE" in os.environ:
        _complete(os.environ["COMP_LINE"])
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(lambda: _run(words))


def _run(words: list[str]) -> int:
    from tune.util.environment import set_ray_variables

    set_ray_variables()
    word = words[0] if words else ""
    if word in COMMANDS:
        return _find(COMMANDS[word])(words[1:])
    if word and not word.startswith("-"):
        from trainer.yaml_nodes import nearest

        hint = f"did you mean {alike}? " if (alike := nearest(word, COMMANDS)) else ""
        raise ConfigError(f"{word!r}: no such command; {hint}there are {', '.join(COMMANDS)}")
    return _find(_SEARCH)(words)


def _complete(line: str) -> None:
    """Write how the last word can end, and leave: a shell asks after `register-python-argcomplete tune-whisper`."""
    import argcomplete

    from tune.commands.search import search_parser

    words = f"{line}.".split()  # a space at the end begins another word
    command, parser = words[1] if len(words) > 2 else "", search_parser()
    if command in COMMANDS and command != "search":
        module = importlib.import_module(COMMANDS[command].partition(":")[0])
        make = getattr(module, f"{command}_parser", None)
        parser = make() if make else module.job_parser(command)
    if command in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # the word from which on this parser reads
    else:
        parser.add_argument("command", nargs="?", choices=COMMANDS)
    argcomplete.autocomplete(parser)


def _find(place: str) -> Callable[[list[str]], int]:
    """The function of a command, imported only now: Ray and what else they need takes seconds."""
    module, name = place.split(":")
    command: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
    return command
