"""The process that others are forked from (see `worker_forks.py`): `python fork_server.py FD PID`.

FD is the socket to ask, PID the number of the process that has started it, with which it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tune.cluster.worker_forks import LARGEST, ROOT

READ_BY_IMPORTS = ("CUDA_", "HF_", "HOME", "OMP_", "TORCH", "TRANSFORMERS_", "TZ", "XDG_")
"""Variables with these beginnings may be read when something is imported."""
_READ_LATER = (
    *("HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_URI"),
    *("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"),
)
_OF_RAY = ("google.protobuf.json_format", "jsonschema", "msgpack", "requests", "rich", "setproctitle")


class Server:
    """Forks a process for each request, and tells whoever asked how it ends.

    Args:
        listener: where requests come: JSON with the words, folder and environment, and stdin, stdout and stderr.
        read: beginnings of the variables that its own imports may have read.
        folder: of the program that has made it, which others do not import from.
        parent: who has started it, and may have ended since.
    """

    def __init__(
        self, listener: socket.socket, read: tuple[str, ...], folder: str, parent: int | None = None
    ) -> None:
        self._parent = os.getppid() if parent is None else parent
        self._read, self._folder = read, folder
        self._environment = dict(os.environ)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._connect(listener))
        self._processes: dict[int, int] = {}
        """Their numbers, by descriptors of them."""

    def serve(self) -> dict[str, Any]:
        """Until the end of whoever has started it; a request is returned in the process that is forked for it."""
        _set_environment(self._environment)  # imports may have changed it
        gc.freeze()  # pages that nobody writes stay shared
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(1.0):
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # its process and who had asked for it died together, and this was the other's end too
                if request := key.data(key.fileobj):
                    return dict(request)
        return {}

    def _connect(self, listener: socket.socket) -> None:
        self._selector.register(listener.accept()[0], selectors.EVENT_READ, self._fork)

    def _fork(self, connection: socket.socket) -> dict[str, Any] | None:
        message, streams, _, _ = socket.recv_fds(connection, LARGEST, 3)
        self._selector.unregister(connection)
        if not message:  # it was only asked whether this server has begun
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            connection.close()
            for key in list(self._selector.get_map().values()):
                # By the object that owns it: closed once more at that one's end, another file would have its number.
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
                else:
                    os.close(key.fd)
            self._selector.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            request: dict[str, Any] = json.loads(message)
            return request
        for stream in streams:
            os.close(stream)
        process = os.pidfd_open(pid)
        self._processes[process] = pid
        self._selector.register(process, selectors.EVENT_READ, functools.partial(self._ended, connection))
        self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._kill, process))
        with contextlib.suppress(OSError):  # gone already
            connection.send(str(pid).encode())
        return None

    def _kill(self, process: int, connection: socket.socket) -> None:
        """Whoever asked is gone."""
        self._selector.unregister(connection)
        if process in self._processes:
            signal.pidfd_send_signal(process, signal.SIGKILL)

    def _ended(self, connection: socket.socket, process: int) -> None:
        _, status = os.waitpid(self._processes.pop(process), 0)
        self._selector.unregister(process)
        os.close(process)
        with contextlib.suppress(OSError):
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection)
        connection.close()

    def become(self, request: dict[str, Any]) -> list[str]:
        """Take on the folder, the environment and the like of a request; the program and its words."""
        words: list[str] = request["words"]
        environment: dict[str, str] = request["environment"]
        # In a group of its own: Ray 2.57 and newer end the whole group of a worker that ends.
        if request.get("session"):
            os.setsid()
        else:
            os.setpgrp()
        with contextlib.suppress(
            OSError, ValueError
        ):  # what Ray gives to its workers, after this server began
            if "files" in request:
                resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
            if "oom" in request:
                Path("/proc/self/oom_score_adj").write_text(request["oom"])
        os.chdir(request["folder"])
        interrupted = request.get("interrupted", True)
        signal.signal(signal.SIGINT, signal.default_int_handler if interrupted else signal.SIG_IGN)
        if self._read_of(environment) != self._read_of(os.environ):
            os.execve(sys.executable, [sys.executable, *words], environment)
        _set_environment(environment)
        if nice := request.get("nice", 0):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        with contextlib.suppress(ValueError):
            sys.path.remove(self._folder)
        sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # else that of all would be the same
        return words

    def _read_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        read = environment.items()
        return {
            name: value for name, value in read if name.startswith(self._read) and name not in _READ_LATER
        }


def _set_environment(environment: Mapping[str, str]) -> None:
    """Change what differs only: by where the first variable lies Ray finds the place for a process's title."""
    for name in {*os.environ} - {*environment}:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def run(words: list[str]) -> None:
    """What Python does with these words."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")


def run_and_end(words: list[str]) -> None:
    """`run`, then end this process with Python's exit code; unless that failed, without freeing any object.

    Python would write to each object that the server has imported, and so copy the memory of all of them in every
    process that ends. Threads are waited for, functions of `atexit` run, and what was written is flushed; but not files
    that nobody has closed.
    """
    code = 0
    try:
        run(words)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except (KeyboardInterrupt, SystemExit):  # a signal's, as Ray sends: Python tells of it and keeps the code
        traceback.print_exc()
    atexit._run_exitfuncs()
    # Where nobody takes what is left to be written, Python itself says so.
    with contextlib.suppress(AttributeError, OSError, ValueError):
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            stream.flush()  # type: ignore[union-attr]
        ctypes.CDLL(None).fflush(None)  # what native libraries have printed
        os._exit(code & 0xFF)
    sys.exit(code)


def import_for_workers(*more: str) -> None:
    """Import what a training needs, and of what Ray imports all but itself: it reads then what each worker is given."""
    from trainer.imports import import_trainer

    import_trainer()
    importlib.import_module("trainer.train")
    for name in (*_OF_RAY, *more):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert "ray" not in sys.modules


def _main(descriptor: str, parent: str) -> None:
    import torch

    if torch.cuda.device_count():
        os._exit(0)  # nobody is forked: that was never tried with a GPU
    listener = socket.socket(fileno=int(descriptor))
    folder = Path(listener.getsockname()).parent
    server = Server(listener, READ_BY_IMPORTS, str(ROOT), int(parent))
    import_for_workers()
    asked = server.serve()
    if not asked:
        shutil.rmtree(folder, ignore_errors=True)  # whoever had started it was killed
        os._exit(0)
    run_and_end(server.become(asked))


if __name__ == "__main__":
    _main(*sys.argv[1:])
