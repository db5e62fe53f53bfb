"""`python -m tune.job_driver`: the command `tune-whisper` as the driver of a Ray job, so that stopping ends it cleanly.

Ray blocks SIGINT in what it starts, and a head that was itself started in the background (`nohup ray start ... &`)
hands down that it is ignored. A search ends cleanly by this signal, also when SIGTERM asks it to.
"""

from __future__ import annotations

import signal
import sys

from tune.cli import main


def run() -> int:
    """Let SIGINT through again and run the command; returns the exit code."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
