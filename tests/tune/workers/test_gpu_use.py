"""A trial's GPU, as it is sent with its losses."""

from typing import Any

from tune.workers.trainable import gpu_figures, with_gpu_use


def test_it_is_sent_with_losses_every_ten_seconds() -> None:
    sent: list[Any] = []
    use = {"system/gpu_0_utilization_percentage": 90.0}
    progress = with_gpu_use(sent.append, lambda: use)
    for _ in range(2):
        progress({"loss": 1.0}, None)
    assert sent == [{"loss": 1.0, **use}, {"loss": 1.0}]


def test_a_machine_without_a_gpu_sends_nothing_of_it() -> None:
    assert gpu_figures() == {}
