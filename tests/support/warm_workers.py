"""Ray's processes, forked from one that has imported what a training needs, and what they need.

Nearly all of the time that a short trial takes on the CPU goes into imports, and the tests start hundreds of Ray's
workers. Each runs Ray's own program in a process of its own, and can be killed like any other.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from warm_python import PREFIX, read_by_imports

HERE = Path(__file__).resolve().parent
USED_BY_RAY = (
    "aiohttp.web",
    "grpc.aio",
    "jsonschema",
    "prometheus_client",
    "requests",
    "google.protobuf.json_format",
)
LARGEST = 1 << 20


class _System:
    """The module `sys`, but for the Python that other processes are started with."""

    def __init__(self, executable: str) -> None:
        self.executable = executable

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def listen(folder: Path) -> socket.socket:
    """A socket for requests in a folder, beside a `python` that sends them there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    words = (sys.executable, str(folder / "socket"), read_by_imports(os.environ))
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(HERE)!r})\nimport warm_python\n"
        f"warm_python.main(*{words!r})\n"
    )
    python.chmod(0o700)
    return listener


def use(folder: Path) -> None:
    """Let the Ray that this process starts start its workers with the `python` of a folder."""
    from ray._private import services

    services.sys = _System(str(folder / "python"))  # type: ignore[assignment]


def serve(listener: socket.socket) -> dict[str, Any]:
    """Import, and fork a process for each request: it is returned in that process, nothing here."""
    parent, before = os.getppid(), dict(os.environ)
    from trainer.imports import import_trainer

    import_trainer()
    for name in ("trainer.train", *USED_BY_RAY):
        importlib.import_module(name)
    assert "ray" not in sys.modules  # what it gives each of its workers is read as it is imported
    _set_environment(before)
    gc.freeze()  # pages that nobody writes stay shared
    forks = _Forks(listener)
    while os.getppid() == parent:
        for key, _ in forks.selector.select(1.0):
            if key.fileobj is listener:
                forks.selector.register(listener.accept()[0], selectors.EVENT_READ, forks.fork)
            elif request := key.data(key.fileobj):
                return request
    os._exit(0)


class _Forks:
    """The workers that run, and what stands for each of them."""

    def __init__(self, listener: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self._workers: dict[int, int] = {}
        """Their numbers, by descriptors of them."""

    def fork(self, connection: socket.socket) -> dict[str, Any] | None:
        """A worker for what stands for it at the other end."""
        message, streams, _, _ = socket.recv_fds(connection, LARGEST, 3)
        self.selector.unregister(connection)
        if not message:
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            connection.close()
            for descriptor in self.selector.get_map():
                os.close(descriptor)
            self.selector.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            request: dict[str, Any] = json.loads(message)
            return request
        for stream in streams:
            os.close(stream)
        worker = os.pidfd_open(pid)
        self._workers[worker] = pid
        self.selector.register(worker, selectors.EVENT_READ, functools.partial(self._ended, connection))
        self.selector.register(connection, selectors.EVENT_READ, functools.partial(self._kill, worker))
        with contextlib.suppress(OSError):  # killed already
            connection.send(str(pid).encode())
        return None

    def _kill(self, worker: int, connection: socket.socket) -> None:
        """What stood for it was killed."""
        self.selector.unregister(connection)
        if worker in self._workers:
            signal.pidfd_send_signal(worker, signal.SIGKILL)

    def _ended(self, connection: socket.socket, worker: int) -> None:
        """Tell how."""
        _, status = os.waitpid(self._workers.pop(worker), 0)
        self.selector.unregister(worker)
        os.close(worker)
        with contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        with contextlib.suppress(KeyError):  # it may be gone as well
            self.selector.unregister(connection)
        connection.close()


def _set_environment(environment: Mapping[str, str]) -> None:
    """Change what differs only: by where the first variable lies Ray finds the place for a process's title."""
    for name in {*os.environ} - {*environment}:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def become(request: dict[str, Any]) -> list[str]:
    """Take on the folder, the environment and the like; the program and its words."""
    words: list[str] = request["words"]
    environment: dict[str, str] = request["environment"]
    os.chdir(request["folder"])
    _set_environment(environment)
    if not request["interrupted"]:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    sys.path[:] = [path for path in sys.path if path != str(HERE)]
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else that of all would be the same
    return words


def family(process: psutil.Process) -> list[psutil.Process]:
    """The processes that a process has started, and those that they did; the forked workers among them."""
    found = []
    for child in process.children(recursive=True):
        found.append(child)
        with contextlib.suppress(psutil.NoSuchProcess, ValueError):
            name = child.name()
            if name.startswith(PREFIX):
                forked = psutil.Process(int(name.removeprefix(PREFIX)))
                found += [forked, *family(forked)]
    return found
