"""The process that `warm_process.py` forks commands from: it has imported what a search needs and waits for words.

`python warm_server.py FD FOLDER`: over that socket come requests of one message each, JSON with the program and its
words, folder and environment, and four file descriptors: the child's stdin, stdout and stderr, and a pipe for its fate.
The folder is where Ray's workers are asked for (see `warm_workers.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import selectors
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import warm_workers
from mlflow_tables import copy_tables

MODULES = (
    *("tune.commands.search", "tune.runs.search", "tune.runs.finish", "tune.tracking.process"),
    *(
        "tune.report.writer",
        "tune.commands.export",
        "tune.commands.train",
        "tune.commands.inspect",
        "trainer.data.prepared",
    ),
    *("transformers.models.whisper.processing_whisper", "transformers.models.auto.configuration_auto"),
    *(
        "transformers.models.whisper.feature_extraction_whisper",
        "transformers.models.whisper.tokenization_whisper",
    ),
    *(
        "tune.report.search_page",
        "tune.report.analysis",
        "plotly.graph_objects",
    ),
    *("ray.dashboard.optional_deps", "ray.autoscaler.v2.utils", "trainer.inspection.quick"),
    *("ray.dag", "ray.tune", "mlflow.store.tracking.sqlalchemy_store", "optuna.storages._rdb.storage"),
)
READ_BY_IMPORTS = ("CUDA", "HF_", "HOME", "MLFLOW_", "OMP_", "RAY_", "TORCH", "TRANSFORMERS_", "TZ", "XDG_")
"""Variables with these beginnings may be read when something is imported."""
READ_LATER = (
    "HF_TOKEN",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_URI",
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "RAY_USAGE_STATS_ENABLED",
)
LARGEST = 1 << 20
PID_DIGITS = 10
"""What the pipe tells first; the exit code may follow before anybody has read it."""


def serve(control: socket.socket, folder: Path) -> dict[str, Any]:
    """Fork a child for each request; the request is returned in the child, nothing in the parent.

    Args:
        control: where requests come.
        folder: of `warm_workers.py`; it is gone in the end.
    """
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not control:
                pid, fate = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                # Nobody may wait for it any more.
                with contextlib.suppress(BrokenPipeError):
                    os.write(fate, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(fate)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, LARGEST, 4)
            if not message:
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
            *streams, fate = descriptors
            pid = os.fork()
            if pid == 0:
                control.close()
                os.close(fate)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                request: dict[str, Any] = json.loads(message)
                return request
            os.write(fate, f"{pid:0{PID_DIGITS}}".encode())
            for stream in streams:
                os.close(stream)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, fate))


def become(request: dict[str, Any]) -> list[str]:
    """Take on the folder, the environment and the session; the program and its words."""
    words: list[str] = request["words"]
    environment: dict[str, str] = request["environment"]
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    if _read(environment) != _read(dict(os.environ)):
        os.execve(sys.executable, [sys.executable, *words], environment)
    os.environ.clear()
    os.environ.update(environment)
    return words


def _read(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_BY_IMPORTS) and name not in READ_LATER
    }


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


if __name__ == "__main__":
    control = socket.socket(fileno=int(sys.argv[1]))
    folder = Path(sys.argv[2])
    listener = warm_workers.listen(folder)
    if os.fork() == 0:
        control.close()
        run(warm_workers.become(warm_workers.serve(listener)))
        sys.exit()
    listener.close()

    from tune.tracking.mlflow_connection import quiet_mlflow

    before = dict(os.environ)
    quiet_mlflow()
    for name in MODULES:
        importlib.import_module(name)
    copy_tables()
    os.environ.clear()
    os.environ.update(before)
    # Not below `serve`'s frames: the child ends like any other program, with all that is registered for its end.
    asked = serve(control, folder)
    warm_workers.use(folder)
    run(become(asked))
