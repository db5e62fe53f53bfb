"""The command `tune-whisper`: arguments in, exit code out. Imports nothing heavy on the way to `--help`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from trainer.config import ConfigError, UserError
from tune.commands.search import search
from tune.util.environment import use_ray_token
from tune.util.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR

COMMANDS = {
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
    "schema": "tune.commands.schema:schema",
    "cluster": "tune.commands.cluster:cluster",
}
"""The functions behind the command words; each takes the words after its own and returns the exit code."""


def _find_command(word: str) -> Callable[[list[str]], int] | None:
    """The function of a command, imported only now: Ray and what else they need takes seconds."""
    if word not in COMMANDS:
        return None
    module, name = COMMANDS[word].split(":")
    command: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
    return command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; mistakes of the user are one line each and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    use_ray_token()
    command = _find_command(words[0]) if words else None
    try:
        if words and command is None and not words[0].startswith("-"):
            raise ConfigError(
                f"{words[0]!r}: no such command; there are {', '.join(COMMANDS)}, and --space starts a search"
            )
        return command(words[1:]) if command else search(words)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
