"""`tune-whisper schema`: a JSON Schema of space files, for editors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tune.commands.options import Parser
from tune.util.errors import ConfigError

_EPILOG = """\
example:
  tune-whisper schema --output space.schema.json

Editors with a YAML language server then complete and check a space file that begins with this line:
  # yaml-language-server: $schema=space.schema.json
"""


def schema_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper schema`."""
    parser = Parser(
        prog="tune-whisper schema",
        description="Print a JSON Schema of space files, with which editors complete and check them.",
        epilog=_EPILOG,
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write it to a file instead")
    return parser


def schema(words: list[str]) -> int:
    """Run `tune-whisper schema`.

    Raises:
        ConfigError: the file cannot be written.
    """
    arguments = schema_parser().parse_args(words)
    from tune.space.schema import space_schema

    text = json.dumps(space_schema(), indent=1, ensure_ascii=False) + "\n"
    if arguments.output is None:
        print(text, end="")
        return 0
    try:
        arguments.output.expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output {arguments.output}: cannot be written: {error.strerror}") from error
    return 0
