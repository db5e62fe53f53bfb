"""An object in a process of its own, so that what it does takes none of this process's time.

Python runs one thread at a time. A database client of pure Python that works in a thread holds up the thread that
decides on trials, by far more than its own work: whoever gives the interpreter up, for the length of one system
call, waits up to 5 ms to get it back. In another process it does not, and what it imports is imported there while
this one waits for Ray to start.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class GoneError(Exception):
    """The process that held the object has ended."""


@contextlib.contextmanager
def apart(make: Callable[[], T], *, gone: Callable[[T], Exception] = lambda _: GoneError()) -> Iterator[T]:
    """What `make` makes, in a process that ends with the block, or with this process, however that ends.

    Methods called on it run there, one at a time, and come back with what they return or raise, which must be
    picklable; attributes are out of reach. `make` runs there at once, and what it raises every call raises.

    The process is forked: enter the block before this one has threads that hold locks (before Ray, that is).

    Args:
        make: makes the object.
        gone: the process was killed. Takes a new object, made here, which all later calls go to; returns what the
            call that found out raises.
    """
    holder = _Apart(make, gone)
    try:
        yield cast("T", holder)
    finally:
        holder._close()


class _Apart(Generic[T]):
    """See `apart`."""

    def __init__(self, make: Callable[[], T], gone: Callable[[T], Exception]) -> None:
        self._make, self._gone = make, gone
        self._here: T | None = None
        self._calls = 0
        self._lock = threading.Lock()
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._connection, make), daemon=True)
        self._process.start()
        theirs.close()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._here is not None:
                    return getattr(self._here, method)(*args, **kwargs)
                try:
                    done, answer = self._ask(method, args, kwargs)
                except (EOFError, OSError) as error:
                    here = self._make()
                    failure = self._gone(here)
                    self._here = here
                    raise failure from error
            if done:
                return answer
            raise answer

        return call

    def _ask(self, method: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        self._calls += 1
        self._connection.send((self._calls, method, args, kwargs))
        while True:
            number, done, answer = self._connection.recv()
            if number == self._calls:  # else Ctrl-C ended the wait for it
                return done, answer

    def _close(self) -> None:
        self._connection.close()  # which ends it once it has done what it does
        self._process.join(timeout=1.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _serve(connection: Connection, parents: Connection, make: Callable[[], Any]) -> None:
    """The process's whole life: until nobody holds the other end."""
    parents.close()
    # Both are for the search, which still has things to write.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    failure, target = None, None
    try:
        target = make()
    except Exception as error:  # noqa: BLE001 - every call raises it over there
        failure = _sendable(error)
    while True:
        try:
            number, method, args, kwargs = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # nothing of the search's own is to be ended here
        try:
            if failure is not None:
                raise failure
            answer = number, True, getattr(target, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised over there
            answer = number, False, _sendable(error)
        with contextlib.suppress(OSError):  # nobody is there to hear it
            connection.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; in words where it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its class does on the way
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
