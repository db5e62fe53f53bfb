"""What stands for `python` where Ray starts its workers in tests: it has them forked (see `warm_workers.py`).

To whoever started it, it is the worker: what ends one of the two ends the other in the same way.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = (
    *("/ray/_private/workers/default_worker.py", "/ray/_private/log_monitor.py"),
    *("/ray/_private/runtime_env/agent/main.py", "/ray/autoscaler/_private/monitor.py"),
    "/ray/dashboard/agent.py",
)
"""Those of Ray that are forked; not its dashboard, which starts processes anew by itself."""
SETUP = "/ray/_private/workers/setup_worker.py"
CONTEXT = "--serialized-runtime-env-context="
PREFIX = "ray::F"
"""Of its name, which ends with the number of the process that it stands for."""
READ_BY_IMPORTS = ("CUDA_", "HF_", "HOME", "OMP_", "TORCH", "TRANSFORMERS_", "TZ", "XDG_")
"""Variables with these beginnings may be read when something else than Ray is imported."""
READ_LATER = ("HF_TOKEN",)


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """What two processes must have in common for their imports to have done the same, and to see the same files."""
    read = {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_BY_IMPORTS) and name not in READ_LATER
    }
    # A node of a test may have mounts of its own; a worker that is forked elsewhere would not have them.
    return {**read, "mounts": str(Path("/proc/self/ns/mnt").readlink())}


def main(python: str, address: str, environment: Mapping[str, str]) -> None:
    """Do what `python` would with this command's words; `environment` is that of the process that forks."""
    words = sys.argv[1:]
    forked = words[words[0] == "-u" :]
    if forked[0].endswith(SETUP) and (after := set_up(python, forked)):
        # As Ray does: the variables are on no command line any more.
        os.execv(sys.argv[0], [sys.argv[0], *after])
    if forked[0].endswith(PROGRAMS) and read_by_imports(os.environ) == environment:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(address)
        except OSError:  # it is gone
            connection.close()
        else:
            stand_for_worker(connection, forked)
    os.execv(python, [python, *words])


def set_up(python: str, words: Sequence[str]) -> list[str]:
    """What Ray's program for a worker's own environment runs, once that is set up; nothing where it does more."""
    given = next((word for word in words if word.startswith(CONTEXT)), CONTEXT + "{}")
    context = json.loads(given.removeprefix(CONTEXT))
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
    return [word for word in words[1:] if not word.startswith((CONTEXT, "--language="))]


def stand_for_worker(connection: socket.socket, words: list[str]) -> None:
    """Have a worker forked, and end as it does."""
    parent = os.getppid()
    request = {"words": words, "folder": str(Path.cwd()), "environment": {**os.environ}, "nice": os.nice(0)}
    interrupted = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    request["interrupted"] = interrupted
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    worker = int(connection.recv(64))
    Path("/proc/self/comm").write_text(f"{PREFIX}{worker}")
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
