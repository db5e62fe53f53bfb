"""What all commands share on the command line: how help looks and how mistakes are told."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from trainer.config import ConfigError
from tune.storage import DEFAULT_STORAGE, Storage

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with defaults on wide lines, the epilog as written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=110)


class Parser(argparse.ArgumentParser):
    """Tells mistakes as every other one is told: one line, exit code 2, no usage in front of it."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        super().__init__(
            prog=prog, description=description, formatter_class=Formatter, allow_abbrev=False, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def check_least(request: Any, **least: int) -> None:
    """Check numbers that a request may hold, by the names of its fields, against the least that each can be.

    Raises:
        ConfigError: one of them is below.
    """
    for name, number in least.items():
        given = getattr(request, name)
        if given is not None and given < number:
            raise ConfigError(f"--{name.replace('_', '-')} {given}: must be at least {number}")


def add_storage(parser: Any) -> None:
    """`--storage`, the place of all experiments; it is parsed to a `Storage`."""
    parser.add_argument(
        "--storage",
        type=Storage.parse,
        default=DEFAULT_STORAGE,
        metavar="DIR",
        help="folder of all experiments, s3://bucket/prefix or gs://bucket/prefix (default: ./experiments)",
    )
