"""Ray's head lost in mid-search: the driver says so and ends, instead of waiting for an answer."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

from tune.util.errors import EXIT_FAILED

_LOOK_SECONDS = 1.0
_PATIENCE = 30.0
"""A head that is restarted with its state elsewhere (Ray's fault tolerance of the GCS) comes back within it."""
_OWN_PATIENCE = 5.0
"""The head that a search has started for itself does not come back."""


@contextlib.contextmanager
def head_watched(advice: str, *, own: bool) -> Iterator[None]:
    """End this process with one line on stderr where Ray's head does not answer during the block.

    Any call to a head that is lost stands still inside of Ray, out of reach of Python's exceptions and signals,
    until Ray itself aborts the process after a minute, with words about its own insides. So a thread ends it, as
    SIGKILL would: all that a search needs to go on is on disk at any moment.

    Args:
        advice: what to do, the line's end.
        own: whether this process has started the head.
    """
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    done = threading.Event()
    patience = _OWN_PATIENCE if own else _PATIENCE
    watch = threading.Thread(
        target=_watch, args=(host, int(port), patience, advice, done), name="head-watch", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        done.set()


def _watch(host: str, port: int, patience: float, advice: str, done: threading.Event) -> None:
    answered = time.monotonic()
    while not done.wait(_LOOK_SECONDS):
        if _answers(host, port):
            answered = time.monotonic()
        elif time.monotonic() - answered >= patience:
            print(f"error: Ray's head at {host}:{port} is gone; {advice}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(EXIT_FAILED)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=10.0):
            return True
    except OSError:
        return False
