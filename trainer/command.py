"""How a command of the command line ends: by exit code, with a line for each mistake, never a traceback of its use."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from trainer.errors import UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class _OutputError(Exception):
    """Standard output cannot be written; no `OSError`, which argparse swallows and commands take for one of a file."""


class _Output:
    """Standard output, whose errors can be told from those of files and sockets."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._told():
            return int(self._stream.write(text))

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _OutputError(error) from error

    def drop(self) -> None:
        """Throw away what it still holds, of which Python would complain when it exits."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def run_command(command: Callable[[], int]) -> int:
    """The exit code of a command, which imports what it needs itself: Ctrl-C may come while it does.

    Mistakes of the user are told in a line each (2), Ctrl-C in one (130), and so is a standard output that cannot be
    written, such as a file on a full disk (1). Where nobody reads on (`| head`), the command ends quietly (1).
    """
    usual = sys.stdout
    output = _Output(usual)
    try:
        if usual is not None:  # as where it was closed before the start
            sys.stdout = output  # type: ignore[assignment]
        try:
            return command()
        finally:
            if usual is not None:
                output.flush()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return EXIT_USER_ERROR
    except _OutputError as error:
        (reason,) = error.args
        if not isinstance(reason, BrokenPipeError):
            print(f"error: standard output cannot be written: {reason.strerror}", file=sys.stderr)
        output.drop()
        return EXIT_FAILED
    except BaseException as error:
        if not _is_interrupt(error):
            raise
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        sys.stdout = usual


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or what a library made of it: NumPy then says that its C extensions cannot be imported."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
