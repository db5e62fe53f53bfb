"""Progress from the trials to the driver between two evaluations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tune.util.errors import ExperimentError

Message = tuple[str, dict[str, float], float]
"""Trial id, metrics, Unix time in seconds."""


class Mailbox:
    """An actor that keeps the messages of all trials until the driver fetches them.

    Tune's own results go through the searcher and the scheduler, which must only see evaluations at rungs.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def put(self, trial_id: str, metrics: dict[str, float], timestamp: float) -> None:
        """Add one message."""
        self._messages.append((trial_id, metrics, timestamp))

    def drain(self) -> list[Message]:
        """All messages since the last call."""
        messages, self._messages = self._messages, []
        return messages


def start_mailbox() -> Any:
    """Start the actor, on this node, which outlives the others for the search; it takes no CPU of Ray's count."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Mailbox).remote()


def post(mailbox: Any, trial_id: str, metrics: Mapping[str, float]) -> None:
    """Send a message without waiting."""
    mailbox.put.remote(trial_id, dict(metrics), time.time())


class MailboxReader(threading.Thread):
    """Fetches messages every second and hands each to `receive`, then calls `fetched`, until `stop` is called."""

    def __init__(
        self,
        mailbox: Any,
        receive: Callable[[str, dict[str, float], float], None],
        fetched: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="mailbox-reader", daemon=True)
        self._mailbox = mailbox
        self._receive, self._fetched = receive, fetched
        self._done = threading.Event()
        self.error: Exception | None = None
        """Why no more messages are fetched; the search itself goes on without progress between rungs."""

    def run(self) -> None:
        """The thread's life."""
        while self.error is None and not self._done.wait(1.0):
            self._fetch()

    def stop(self) -> None:
        """Fetch what is left and end the thread."""
        self._done.set()
        self.join()
        if self.error is None:
            self._fetch()

    def _fetch(self) -> None:
        import ray

        try:
            for trial_id, metrics, timestamp in ray.get(self._mailbox.drain.remote()):
                self._receive(trial_id, metrics, timestamp)
            self._fetched()
        except (ray.exceptions.RayError, ExperimentError, OSError) as error:
            self.error = error
