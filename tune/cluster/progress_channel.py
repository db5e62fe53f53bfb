"""The way from trainings to the driver, the process that runs the search, and back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainer.training.report import Decision, Kept, Order

if TYPE_CHECKING:
    from ray.actor import ActorHandle

Message = tuple[str, str, dict[str, Any], float]
"""Trial id, kind, content, Unix time in seconds."""
PROGRESS = "progress"
"""The kind of what may wait for a second, and may be lost."""
START, EVALUATED, SAVED, FAILED = "start", "evaluated", "saved", "failed"
"""The other kinds: see the methods of `Driver`."""


@dataclasses.dataclass(frozen=True)
class Start:
    """From where a training can go on."""

    folder: str
    """Where its checkpoints go, within the experiment."""
    checkpoints: list[str]
    """Those that it can go on from, within the experiment, the first choice first."""


@dataclasses.dataclass
class Driver:
    """The driver, as the processes of a training reach it from any node."""

    channel: ActorHandle
    trial_id: str
    _answers: list[Any] = dataclasses.field(default_factory=list, init=False)
    """To progress, not read yet: what the training is asked to do."""

    def start(self) -> Start:
        return Start(**self._ask(START, {}))

    def report(self, metrics: Mapping[str, Any]) -> Decision:
        """What follows an evaluation; the log knows both when this returns."""
        return Decision(**self._ask(EVALUATED, metrics))

    def saved(self, checkpoint: str, samples_seen: int, epoch: float, keep: Kept) -> None:
        """Send word of a checkpoint that is complete; returns once that cannot be lost any more.

        Args:
            checkpoint: within the experiment.
        """
        content = {"checkpoint": checkpoint, "samples_seen": samples_seen, "epoch": epoch, "keep": keep}
        self._send(SAVED, content)

    def failed(self, report: str) -> None:
        """Send word of a failure of the workers; returns once that cannot be lost any more."""
        self._send(FAILED, {"report": report})

    def progress(self, metrics: Mapping[str, float]) -> None:
        """Send loss and learning rate without waiting."""
        message = (self.trial_id, PROGRESS, dict(metrics), time.time())
        self._answers.append(self.channel.put.remote(message))

    def order(self) -> Order | None:
        """What the driver asks for, by the answers to progress that have come."""
        if not self._answers:
            return None
        come, self._answers = ray.wait(self._answers, num_returns=len(self._answers), timeout=0)
        orders: list[Order | None] = ray.get(come)
        return "end" if "end" in orders else "save" if "save" in orders else None

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        ray.get(self.channel.put.remote((self.trial_id, kind, content, time.time())))

    def _ask(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        answer = ray.get(self.channel.ask.remote((self.trial_id, kind, dict(content), time.time())))
        assert isinstance(answer, dict)
        return answer


class ProgressChannel:
    """An actor between the trainings and the driver."""

    def __init__(self) -> None:
        self._messages: list[tuple[int | None, Message]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._urgent = asyncio.Event()
        self._orders: dict[str, Order] = {}

    async def put(self, message: Message) -> Order | None:
        """Add a message; what its trial is asked to do, to save once."""
        self._messages.append((None, message))
        if message[1] != PROGRESS:
            self._urgent.set()
        order = self._orders.get(message[0])
        if order == "save" and message[1] == PROGRESS:
            del self._orders[message[0]]
        return order

    async def order(self, order: Order, trial_ids: Collection[str]) -> None:
        """Have trials save where they are, and go on or end."""
        self._orders.update(dict.fromkeys(trial_ids, order))

    async def ask(self, message: Message) -> Any:
        """Add a question, and return the driver's answer once it is there."""
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._messages.append((number, message))
        self._urgent.set()
        return await answer

    async def wait(self, seconds: float) -> None:
        """Return when something waits that is not progress, at the latest after so many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), seconds)

    async def wake(self) -> None:
        """Let whoever waits return now."""
        self._urgent.set()

    async def drain(self) -> list[tuple[int | None, Message]]:
        """All messages since the last call, a question with its number."""
        messages, self._messages = self._messages, []
        self._urgent.clear()
        return messages

    async def answer(self, number: int, content: Any) -> None:
        """Answer a question; whoever asked may be gone."""
        answer = self._answers.pop(number)
        if not answer.done():
            answer.set_result(content)


def start_channel() -> Any:
    """Start the actor, on this node, which outlives the others for the search; it takes no CPU of Ray's count."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_concurrency=1000, scheduling_strategy=here)(ProgressChannel).remote()


class ProgressReader(threading.Thread):
    """Hands messages to `receive` as they come, progress once a second, and sends back what it answers to questions."""

    def __init__(
        self,
        channel: Any,
        receive: Callable[[str, str, dict[str, Any], float], Any],
        fetched: Callable[[], None],
    ) -> None:
        """`fetched` is called behind all messages that came together."""
        super().__init__(name="progress-reader", daemon=True)
        self._channel = channel
        self._receive, self._fetched = receive, fetched
        self._done = threading.Event()
        self._lock = threading.Lock()
        self.error: Exception | None = None
        """Why no more messages are fetched: whoever asks then waits for ever, so all must end."""

    def run(self) -> None:
        while self.error is None and not self._done.is_set():
            try:
                ray.get(self._channel.wait.remote(1.0))
            except Exception as error:  # noqa: BLE001 - Ray raises plain Exceptions too; whoever ends the trials raises it
                self.error = error
                return
            self.fetch()

    def stop(self) -> None:
        """Fetch what is left and end the thread."""
        self._done.set()
        if ray.is_initialized():  # else the thread does not wait any more, and a call would start another Ray
            self._channel.wake.remote()
        self.join()
        self.fetch()

    def fetch(self) -> None:
        """Hand on all that has come; when it returns, nothing of it is still on its way."""
        with self._lock:
            if self.error is not None:
                return
            try:
                for number, message in ray.get(self._channel.drain.remote()):
                    answer = self._receive(*message)
                    if number is not None:
                        self._channel.answer.remote(number, answer)
                self._fetched()
            except Exception as error:  # noqa: BLE001 - of `receive` too; whoever ends the trials raises it
                self.error = error
