"""Ray's workers forked from one process that has imported what a training needs, and shares it with all of them.

The imports take some seconds of a processor and 300 MB in each process. Here they happen once, while Ray starts and
features are computed. Ray starts each worker by a `python` of ours, which asks that process (`fork_server.py`) for a
fork, and then stands for it: signals go to the worker, and the end of either is the other's. Where nobody can be
forked (no answer, a GPU, other variables that imports read), that `python` becomes the worker as it would be without.

Read with nothing but Python's own modules: `stand_in` runs before each worker.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LARGEST = 1 << 20
"""Bytes of a request."""
WORKER = "/ray/_private/workers/default_worker.py"
"""Ray's program of a worker."""
_SETUP = "/ray/_private/workers/setup_worker.py"
_CONTEXT = "--serialized-runtime-env-context="
STANDING = "ray::F"
"""Of a stand-in's name, which ends with the number of the process that it stands for."""
ROOT = Path(__file__).resolve().parents[2]
_SOCKET = "workers"
"""Where the process is asked, beside the `python`."""
_GPUS = ("/dev/nvidiactl", "/dev/kfd")
"""Where one of these is, nobody is forked: that was never tried with a GPU."""
_ANSWER_SECONDS = 30.0
"""Ray waits twice as long for a worker."""
_LONGEST = 120
"""Of a script's first line, which some systems cut."""
_MALLOC = "GLIBC_TUNABLES"
"""Read by glibc, and by nothing else, when a process starts; forks keep what it then said."""
_MALLOC_SETTINGS = ("hugetlb=1", "mmap_threshold=268435456", "trim_threshold=1073741824")
"""Huge pages, and memory that one step of a training has freed is the next one's: else, on a CPU, glibc gives some of
it back to the system after each step, which clears it anew for the next. Allocations of 256 MiB and more still go back,
and so does the end of a heap above 1 GiB.
"""


_begun: list[tuple[contextlib.ExitStack, Path | None]] = []


def begin_forks(environment: Mapping[str, str]) -> None:
    """Start now what the next block of `worker_forks` has; until one follows, or this process ends, there is one."""
    if not _begun:
        _begun.append(_start(environment))
        atexit.register(_begun[0][0].close)


@contextlib.contextmanager
def worker_forks(environment: Mapping[str, str]) -> Iterator[Path | None]:
    """The `python` for Ray's workers, beside the process that they are forked from, which ends with the block.

    None where this system cannot do so, or Ray is started with another one already.

    Args:
        environment: of that process.
    """
    stack, python = _begun.pop() if _begun else _start(environment)
    with stack:
        yield python


def _start(environment: Mapping[str, str]) -> tuple[contextlib.ExitStack, Path | None]:
    taken = (Path(sys.executable).parent / _SOCKET).is_socket()
    # The first line of a script names a program without blanks.
    unfit = len(sys.executable) > _LONGEST or any(letter.isspace() for letter in sys.executable)
    if taken or unfit or any(map(os.path.exists, _GPUS)):
        return contextlib.ExitStack(), None
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix="tune-whisper-forks-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            os.close(os.pidfd_open(os.getpid()))
            python = write_python(folder / "python", {folder / _SOCKET: (WORKER,)})
            if not os.access(python, os.X_OK):  # nothing there may be run
                return contextlib.ExitStack(), None
            with listen(folder / _SOCKET) as listener:
                server = _serve(listener, environment)
        except (
            AttributeError,
            OSError,
        ):  # no Linux, one that forbids it, a full disk, a path too long for a socket
            return contextlib.ExitStack(), None
        stack.callback(server.wait)
        stack.callback(server.kill)
        return stack.pop_all(), python


def _serve(listener: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    program = str(ROOT / "tune" / "cluster" / "fork_server.py")
    return subprocess.Popen(
        [sys.executable, program, str(listener.fileno()), str(os.getpid())],
        env=with_malloc_settings(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,  # what interrupts the search leaves its workers to the search
    )


def with_malloc_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a server: its forks allocate memory as trainings need it, unless the user says how.

    The variable comes last: by where the first one lies Ray finds the place for a process's title.
    """
    settings = ":".join(f"glibc.malloc.{each}" for each in _MALLOC_SETTINGS)
    return {**environment, _MALLOC: environment.get(_MALLOC, settings)}


def listen(address: Path) -> socket.socket:
    """Where a server is asked for forks."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen(64)
    return listener


def write_python(script: Path, served: Mapping[Path, Sequence[str]]) -> Path:
    """A `python` that has the servers at these addresses fork programs with these ends, and runs all others."""
    words = (sys.executable, _mounts(), {str(address): tuple(ends) for address, ends in served.items()})
    script.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tune.cluster.worker_forks import stand_in\nstand_in(*{words!r})\n"
    )
    script.chmod(0o700)
    return script


@contextlib.contextmanager
def started_with(python: Path | None) -> Iterator[None]:
    """A Ray that is started meanwhile starts its workers with this `python`: Ray takes it from `sys.executable`."""
    before = sys.executable
    sys.executable = str(python or before)
    try:
        yield
    finally:
        sys.executable = before


def ask(address: Path, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[socket.socket, int]:
    """A process with these streams; over the connection comes its exit code, and its end is the process's end.

    Raises:
        OSError: there is no server, it forks nobody, or it is still busy with its imports.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(address))
    socket.send_fds(connection, [json.dumps(request).encode()], streams)
    connection.settimeout(_ANSWER_SECONDS)
    answer = connection.recv(64)
    connection.settimeout(None)
    if not answer:
        raise ConnectionError(str(address))
    return connection, int(answer)


def stand_in(python: str, mounts: str, served: Mapping[str, tuple[str, ...]]) -> None:
    """Do what `python` would with this command's words; the servers, by their addresses, see `mounts`."""
    words = sys.argv[1:]
    forked = words[words[:1] == ["-u"] :]
    program = "".join(forked[1:2] if forked[:1] == ["-m"] else forked[:1])
    if program.endswith(_SETUP) and (after := _set_up(python, forked)):
        # As Ray does: the variables are on no command line any more.
        os.execv(sys.argv[0], [sys.argv[0], *after])
    address = next((address for address, ends in served.items() if program.endswith(ends)), None)
    if address is not None and _mounts() == mounts:
        interrupted = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        request: dict[str, Any] = {"words": forked, "folder": str(Path.cwd()), "environment": {**os.environ}}
        request |= {"nice": os.nice(0), "interrupted": interrupted}
        request |= {"files": resource.getrlimit(resource.RLIMIT_NOFILE)}
        request |= {"oom": Path("/proc/self/oom_score_adj").read_text()}
        with contextlib.suppress(OSError):  # the server is gone
            _stand_for(*ask(Path(address), request, [0, 1, 2]), interrupted)
    os.execv(python, [python, *words])


def _mounts() -> str:
    """Which mounts this process sees: a node may have its own, and a forked worker has those of the server."""
    return str(Path("/proc/self/ns/mnt").readlink())


def _set_up(python: str, words: Sequence[str]) -> list[str]:
    """What Ray's program for a worker's own environment runs, once that is set up; nothing where it does more."""
    given = next((word for word in words if word.startswith(_CONTEXT)), _CONTEXT + "{}")
    context = json.loads(given.removeprefix(_CONTEXT))
    first, variables = context.get("command_prefix") or [], context.get("env_vars") or {}
    if first and (len(first), first[0], first[-1]) != (3, "cd", "&&"):
        return []
    if context.get("override_worker_entrypoint") or context.get("py_executable", python) != python:
        return []
    if any("$" in value for value in variables.values()):
        return []
    os.environ.update(variables)
    if first:
        os.chdir(first[1])
    return [word for word in words[1:] if not word.startswith((_CONTEXT, "--language="))]


def _stand_for(connection: socket.socket, worker: int, interrupted: bool) -> None:
    """End as the worker does; to whoever started this process, it is the worker."""
    parent = os.getppid()
    Path("/proc/self/comm").write_text(f"{STANDING}{worker}")
    for number in (signal.SIGTERM, *([signal.SIGINT] if interrupted else [])):
        signal.signal(number, lambda number, _: os.kill(worker, number))
    while not select.select([connection], [], [], 1.0)[0]:
        # What a node has started does not outlive it; what `ray start` has started outlives that.
        if "RAY_RAYLET_PID" in os.environ and os.getppid() != parent:
            os._exit(1)
    code = int(connection.recv(64) or b"1")
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
