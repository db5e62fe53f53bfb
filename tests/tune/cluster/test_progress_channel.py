"""The channel between trials and driver, in a Ray of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from tune.cluster.progress_channel import Driver, ProgressReader, start_channel


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


def ask_later(channel: Any, content: dict[str, Any]) -> Any:
    """A question that is on its way."""
    return channel.ask.remote(("001", "question", content, 0.0))


def test_questions_are_answered_and_messages_come_in_their_order() -> None:
    channel, heard = start_channel(), []

    def receive(trial: str, kind: str, content: dict[str, Any], timestamp: float) -> Any:
        number = int(content.get("n") or content["report"])
        heard.append((trial, kind, number))
        return {"twice": 2 * number}

    reader = ProgressReader(channel, receive)
    reader.start()
    driver = Driver(channel, "001")
    driver.progress({"n": 1})
    driver.failed("2")
    assert ray.get(ask_later(channel, {"n": 3}), timeout=30) == {"twice": 6}
    driver.failed("4")
    reader.stop()
    assert ("001", "progress", 1) in heard
    assert [n for _, kind, n in heard if kind != "progress"] == [2, 3, 4]
    assert reader.error is None


def test_whatever_goes_wrong_with_a_message_is_known() -> None:
    """A trial that asks waits for its answer: the search must end where none can come."""
    channel = start_channel()

    def receive(*message: Any) -> Any:
        raise KeyError("a mistake of ours")

    reader = ProgressReader(channel, receive)
    reader.start()
    ask_later(channel, {})
    deadline = time.monotonic() + 30
    while reader.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    reader.stop()
    assert isinstance(reader.error, KeyError)


def test_a_channel_that_is_gone_is_an_error_for_all() -> None:
    channel = start_channel()
    reader = ProgressReader(channel, lambda *_: None)
    reader.start()
    waiting = channel.ask.remote(("001", "question", {}, 0.0))
    assert ray.get(waiting, timeout=30) is None
    ray.kill(channel)
    deadline = time.monotonic() + 30
    with pytest.raises(ray.exceptions.RayError):
        while time.monotonic() < deadline:  # it takes Ray a moment
            Driver(channel, "001").failed("")
    reader.join(30)
    assert isinstance(reader.error, ray.exceptions.RayError)
