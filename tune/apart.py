"""An object in a process of its own, so that what it does takes none of this process's time.

Python runs one thread at a time. A database client of pure Python that works in a thread holds up the thread that
decides on trials, by far more than its own work: whoever gives the interpreter up, for the length of one system
call, waits up to 5 ms to get it back. In another process it does not, and what it imports is imported there while
this one waits for Ray to start.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Container, Iterator
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar, cast

from tune.mlflow_store import hide_password

T = TypeVar("T")

_LAST_CALL_SECONDS = 1.0
"""How long the end of a block waits for a call that nobody else waits for any more."""
_PR_SET_PDEATHSIG = 1
"""Of Linux' prctl: the signal that a process gets when the one that forked it has ended."""


class GoneError(Exception):
    """The process that held the object has ended."""


@contextlib.contextmanager
def apart(
    make: Callable[[], T],
    *,
    gone: Callable[[T], Exception] = lambda _: GoneError(),
    repeatable: Container[str] = (),
) -> Iterator[T]:
    """What `make` makes, in a process that ends with the block, or with this process, however that ends.

    Methods called on it run there, one at a time, and come back with what they return or raise; attributes are out
    of reach. `make` runs there at once, and what it raises every call raises. Ctrl-C during a call kills the process.

    The process is forked: enter the block before this one has threads that hold locks (before Ray, that is).

    Args:
        make: makes the object.
        gone: the process was killed. Takes a new object, made here, which all later calls go to; returns what the
            call that found out raises.
        repeatable: methods that are called again, on the new object, when they find out.
    """
    holder = _Apart(make, gone, repeatable)
    try:
        yield cast("T", holder)
    finally:
        holder._close()


class _Apart(Generic[T]):
    """See `apart`."""

    def __init__(
        self, make: Callable[[], T], gone: Callable[[T], Exception], repeatable: Container[str]
    ) -> None:
        self._make, self._gone, self._repeatable = make, gone, repeatable
        self._here: T | None = None
        self._closed = False
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
                if self._here is None:
                    try:
                        done, answer = self._ask((method, args, kwargs))
                    except (EOFError, OSError) as error:
                        self._take_over(method, error)
                    else:
                        if done:
                            return answer
                        raise answer
                return getattr(self._here, method)(*args, **kwargs)

        return call

    def _ask(self, message: Any) -> tuple[bool, Any]:
        try:
            self._connection.send(message)
            answer: tuple[bool, Any] = self._connection.recv()
        except KeyboardInterrupt:
            self._kill()  # half an answer may be on its way; and what is undone now must not be done meanwhile
            raise
        return answer

    def _take_over(self, method: str, error: Exception) -> None:
        """Make the object here, since the process has ended."""
        if self._closed:
            raise GoneError from error
        here = self._make()
        if method in self._repeatable:
            self._here = here
            return
        failure = self._gone(here)
        self._here = here
        raise failure from error

    def _close(self) -> None:
        """Every call that was made has been answered, or is not waited for."""
        ours = False
        try:
            ours = self._lock.acquire(timeout=_LAST_CALL_SECONDS)
        finally:
            self._closed = True
            self._kill()
            if ours:  # else a thread reads from it, and finds its end
                self._connection.close()
                self._lock.release()

    def _kill(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, parents: Connection, make: Callable[[], Any]) -> None:
    """The process's whole life: until nobody holds the other end."""
    # At once, also in the middle of a call: it holds what it was forked with, a search's lock and its terminal.
    with contextlib.suppress(AttributeError):  # elsewhere than on Linux it ends after the call
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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
            method, args, kwargs = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # nothing of the search's own is to be ended here
        answer: tuple[bool, Any] = False, failure
        if failure is None:
            try:
                answer = True, getattr(target, method)(*args, **kwargs)
                pickle.dumps(answer)
            except Exception as error:  # noqa: BLE001 - raised over there
                answer = False, _sendable(error)
        with contextlib.suppress(OSError):  # nobody is there to hear it
            connection.send(answer)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; in words where it cannot be pickled."""
    error.add_note(hide_password("".join(traceback.format_exception(error))))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its class does on the way
        words = hide_password("".join(traceback.format_exception_only(type(error), error)).splitlines()[0])
        told = RuntimeError(words)
        told.add_note(error.__notes__[-1])
        return told
    return error
