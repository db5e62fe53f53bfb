"""A driver in a process of its own that does nothing but write a log, to be killed.

`python follower_driver.py FOLDER URI` starts a follower and begins; then it goes a step further with each line that it
is told: a trial; the end of the search without waiting for the follower.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
from made_logs import MadeLog

from tune.tracking.process import FollowerProcess


class Driver:
    """The process, begun."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(folder), uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        self._heard()

    def step(self) -> None:
        """Let it go on, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self._heard()

    def _heard(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n", "the driver ended"

    @property
    def follower(self) -> psutil.Process:
        """Its follower."""
        return follower_of(self.process.pid)

    def kill(self) -> None:
        """SIGKILL to it alone."""
        self.process.kill()
        self.process.communicate()


def follower_of(pid: int | None = None) -> psutil.Process:
    """The follower that a process, or this one, has now."""
    (found,) = followers(pid)
    return found


def followers(pid: int | None = None) -> list[psutil.Process]:
    """All of them."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "tune.tracking.follower" in child.cmdline():
                found.append(child)
    return found


def drive(folder: Path, uri: str) -> None:
    """The process' life."""
    made = MadeLog(folder, uri)
    follower = FollowerProcess(made.orders(patience=60.0))
    follower.start()
    follower.begin()
    follower.wait()
    made.session(trials=2)
    print("done", flush=True)
    for number, _ in enumerate(sys.stdin, start=1):
        if number < 3:
            made.trial(f"{number:03d}", 50.0, 30.0, 10.0 + number)
        else:
            made.finish()
        print("done", flush=True)


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2])
