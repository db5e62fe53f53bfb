"""`tune-whisper` as a process of its own, forked from one that has imported what it needs (see `warm_server.py`).

Half of the time that a short search's driver takes on the CPU goes into imports, and the tests start a hundred of them.
Each is a process as any other: it has its own environment, folder and output, and can be interrupted and killed.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import warm_workers
from warm_server import PID_DIGITS

HERE = Path(__file__).resolve().parent
TUNE = ("-m", "tune")


class Command:
    """A started command, to be used like `subprocess.Popen`; `communicate` gives what no `output` got."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        output: IO[Any] | None = None,
        merged: bool = False,
        session: bool = False,
        program: Sequence[str] = TUNE,
    ) -> None:
        """
        Args:
            output: where stdout and stderr go; without it they are kept for `communicate`.
            merged: keep both as one.
            session: start it in a session of its own.
            program: what Python runs: `-m` and a module, `-c` and code, or a script.
        """
        self.words = [*program, *words]
        self.returncode: int | None = None
        self._kept = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115  (open as long as this object)
        out = output.fileno() if output else self._kept[0].fileno()
        error = out if output or merged else self._kept[1].fileno()
        request = {
            "words": self.words,
            "folder": str(cwd),
            "environment": {**(os.environ if environment is None else environment)},
            "session": session,
        }
        self._fate, told = os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            descriptors = [nothing.fileno(), out, error, told]
            socket.send_fds(_server()[0], [json.dumps(request).encode()], descriptors)
        os.close(told)
        self.pid = int(os.read(self._fate, PID_DIGITS))

    def poll(self) -> int | None:
        """The exit code, negative for a signal, if it has ended."""
        if self.returncode is None and select.select([self._fate], [], [], 0.0)[0]:
            self.returncode = int(os.read(self._fate, 64))
            os.close(self._fate)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._fate], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.words, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait; what it wrote to stdout and to stderr."""
        self.wait(timeout)
        for file in self._kept:
            file.seek(0)
        out, error = (file.read().decode() for file in self._kept)
        return out, error

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def tune_whisper(
    *words: str, cwd: Path, timeout: float = 560, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = Command(*words, cwd=cwd, environment={**os.environ, **environment})
    try:
        out, error = command.communicate(timeout)
    finally:
        command.kill()
    return subprocess.CompletedProcess(command.words, command.wait(), out, error)


def ray_command() -> list[str]:
    """`ray`, whose nodes have their workers forked."""
    folder = _workers()
    code = "import sys, warm_workers, pathlib; warm_workers.use(pathlib.Path(sys.argv.pop(1)));"
    code += "sys.path.pop(1); from ray.scripts.scripts import main; sys.exit(main())"
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); {code}", str(folder)]


def fork_workers() -> None:
    """Have the workers forked of the Ray that this process itself starts."""
    warm_workers.use(_workers())


@functools.cache
def _workers() -> Path:
    """The folder where Ray's processes are forked, which has begun: Ray waits half a minute for some of them."""
    folder = _server()[1]
    while not (folder / "python").exists():
        time.sleep(0.1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as question:
        question.connect(str(folder / "socket"))
        question.shutdown(socket.SHUT_WR)
        question.recv(1)  # nothing, once it has come to us
    return folder


@functools.cache
def _server() -> tuple[socket.socket, Path]:
    """One for each process that runs tests, and its folder; it ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="warm-", dir="/tmp"))  # the first line of a script must be short
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, str(HERE / "warm_server.py"), str(theirs.fileno()), str(folder)],
        cwd=HERE.parents[1],
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    return ours, folder
