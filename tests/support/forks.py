"""Processes forked from one that has imported what they need: commands, Ray's workers, trainings.

Half of the time that a short search takes on the CPU goes into imports, and the tests start hundreds of processes. Each
is a process as any other: it has its own environment, folder and output, and can be interrupted and killed.

Two servers (`fork_server.py`) belong to each process that runs tests: `commands`, which has imported what the driver
of a search and its follower need, and `workers`, which has imported what a training needs, but not Ray. A client
connects to a server's socket and sends what to run; it is told the process's number and, later, its exit code; if the
client goes, so does the process. Ray starts its workers, and a driver its follower, with a `python` of ours, which is
such a client (`stand_in`).
"""

from __future__ import annotations

import contextlib
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
from typing import IO, TYPE_CHECKING, Any

from tune.cluster.worker_forks import STANDING, WORKER, ask, listen, with_malloc_settings, write_python

if TYPE_CHECKING:
    import psutil

    from trainer.config import TrainConfig

HERE = Path(__file__).resolve().parent
TUNE = ("-m", "tune")
KINDS = ("commands", "workers")
TRAINING_SECONDS = 560.0
RAYS_PROGRAMS = (
    *(WORKER, "/ray/_private/log_monitor.py"),
    *("/ray/_private/runtime_env/agent/main.py", "/ray/autoscaler/_private/monitor.py"),
    "/ray/dashboard/agent.py",
)
"""Those of Ray that are forked; not its dashboard, which starts processes anew by itself."""
FOLLOWER = ("tune.tracking.follower",)


class Command:
    """A started process, to be used like `subprocess.Popen`; `communicate` gives what no `output` got."""

    def __init__(
        self,
        *words: str,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        output: IO[Any] | None = None,
        merged: bool = False,
        session: bool = False,
        program: Sequence[str] = TUNE,
        kind: str = "commands",
    ) -> None:
        """
        Args:
            output: where stdout and stderr go; without it they are kept for `communicate`.
            merged: keep both as one.
            session: start it in a session of its own.
            program: what Python runs: `-m` and a module, `-c` and code, or a script.
            kind: the server that forks it.
        """
        self.words = [*program, *words]
        self.returncode: int | None = None
        self._kept = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115  (open as long as this object)
        out = output.fileno() if output else self._kept[0].fileno()
        error = out if output or merged else self._kept[1].fileno()
        environment = {**(os.environ if environment is None else environment)}
        request = {"words": self.words, "folder": str(cwd), "environment": environment, "session": session}
        with Path(os.devnull).open("rb") as nothing:
            self._connection, self.pid = ask(ready(kind) / kind, request, [nothing.fileno(), out, error])

    def poll(self) -> int | None:
        """The exit code, negative for a signal, if it has ended."""
        if self.returncode is None and select.select([self._connection], [], [], 0.0)[0]:
            self.returncode = int(self._connection.recv(64))
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._connection], [], [], timeout)
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


def run_workers(action: str, config: TrainConfig, folder: Path) -> str:
    """Do an action of `distributed_run.py` in as many processes as the config says; what they printed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    workers = []
    for rank in range(config.workers):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": config.workers}
        variables |= {"LOCAL_WORLD_SIZE": config.workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {name: str(value) for name, value in variables.items()} if config.workers > 1 else {}
        with (folder / f"log-{rank}").open("wb") as log:
            workers.append(
                Command(
                    *(action, str(folder)),
                    cwd=Path.cwd(),
                    environment={**os.environ, **told},
                    output=log,
                    program=[str(HERE / "distributed_run.py")],
                    kind="workers",
                )
            )
    deadline = time.monotonic() + TRAINING_SECONDS
    while any(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
        if any(worker.returncode for worker in workers):
            break  # one failed, and the others wait for it
        time.sleep(0.1)
    for worker in workers:
        worker.kill()
        worker.wait(30)
    printed = "".join((folder / f"log-{rank}").read_text() for rank in range(config.workers))
    assert [worker.returncode for worker in workers] == [0] * config.workers, printed[-6000:]
    return printed


def ray_command() -> list[str]:
    """`ray`, whose nodes have their workers forked."""
    code = "import sys, forks, pathlib; forks.start_rays_with(pathlib.Path(sys.argv.pop(1)));"
    code += "sys.path.pop(1); from ray.scripts.scripts import main; sys.exit(main())"
    python = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(HERE)!r}); {code}"]
    return [*python, str(ready("workers"))]


def fork_workers() -> None:
    """Have the workers forked of the Ray that this process itself starts."""
    start_rays_with(ready("workers"))


@functools.cache
def servers() -> Path:
    """The folder with the sockets of both servers of this process, beside Ray's `python`; they end with it."""
    folder = Path(tempfile.mkdtemp(prefix="forks-", dir="/tmp"))  # the first line of a script must be short
    write_python(folder / "python", {folder / "workers": RAYS_PROGRAMS, folder / "commands": FOLLOWER})
    listeners = {kind: listen(folder / kind) for kind in KINDS}
    numbers = [listener.fileno() for listener in listeners.values()]
    subprocess.Popen(
        [sys.executable, str(HERE / "fork_server.py"), str(folder), *map(str, numbers)],
        cwd=HERE.parents[1],
        env=with_malloc_settings(os.environ),
        pass_fds=numbers,
        start_new_session=True,
    )
    for listener in listeners.values():
        listener.close()
    return folder


@functools.cache
def ready(kind: str) -> Path:
    """The servers' folder, once one of them has begun: whoever asks for a process waits half a minute at most."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as question:
        question.connect(str(servers() / kind))
        question.shutdown(socket.SHUT_WR)
        question.recv(1)  # nothing, once it has come to us
    return servers()


class _System:
    """The module `sys`, but for the Python that other processes are started with."""

    def __init__(self, executable: str) -> None:
        self.executable = executable

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def start_rays_with(folder: Path) -> None:
    """Let the Ray that this process starts, and nothing else, start its workers with the `python` of a folder."""
    from ray._private import services

    services.sys = _System(str(folder / "python"))  # type: ignore[assignment]


def family(process: psutil.Process) -> list[psutil.Process]:
    """The processes that a process has started, and those that they did; the forked workers among them."""
    import psutil

    found = []
    for child in process.children(recursive=True):
        found.append(child)
        with contextlib.suppress(psutil.NoSuchProcess):
            for forked in stood_for(child):
                found += [forked, *family(forked)]
    return found


def stood_for(process: psutil.Process) -> list[psutil.Process]:
    """The forked worker that a process stands for, if it does."""
    import psutil

    number = process.name().removeprefix(STANDING)
    ended = process.status() == psutil.STATUS_ZOMBIE  # another process may have that number by now
    return [psutil.Process(int(number))] if number.isdigit() and not ended else []
