"""Ray Train's events, sent on to the driver. Import it only where Ray Train V2 is on (see `train_workers`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray.train

from tune.mailbox import post
from tune.train_messages import EVALUATION, FAILURE, root_failure


class SendToDriver(ray.train.UserCallback):
    """Runs in Ray Train's controller; what it sends is on the storage by then."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """Send the first worker's evaluation."""
        post(self._mailbox, EVALUATION, metrics[0])

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        """Send what went wrong."""
        post(self._mailbox, FAILURE + root_failure(worker_exceptions), {})
