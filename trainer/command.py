"""How a command of the command line ends: by exit code, with a line for each mistake, never a traceback of its use."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable

from trainer.errors import UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def run_command(command: Callable[[], int]) -> int:
    """The exit code of a command, which imports what it needs itself: Ctrl-C may come while it does.

    Mistakes of the user are told in a line each (2), Ctrl-C in one (130), and so is a standard output that cannot be
    written, such as a file on a full disk (1). Where nobody reads on (`| head`), the command ends quietly (1).
    """
    # It warns of a missing kernel for 4-bit layers, where it is only imported; nothing here has such layers.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:  # as where it was closed before the start
                sys.stdout.flush()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return EXIT_USER_ERROR
    except BaseException as error:
        if _is_interrupt(error):
            print("interrupted", file=sys.stderr)
            return EXIT_INTERRUPTED
        if not isinstance(error, OSError) or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        if error.errno == errno.ENOSPC:
            print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own flush at the exit
        return EXIT_FAILED


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or what a library made of it: NumPy then says that its C extensions cannot be imported."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
