"""What a training shows on the screen: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from tune.display import LiveDisplay, clock, say, short_path, short_value

if TYPE_CHECKING:
    from tune.cluster import TrialResources
    from tune.experiments.training_plan import TrainPlan
    from tune.search.records import TrialRecord

_EVERY_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""


def print_train_plan(plan: TrainPlan, console: Console) -> None:
    """The head of the output: what is trained, on what, with which settings."""
    base = plan.base
    say(console, f"training {plan.name} in {short_path(plan.folder)}")
    say(console, f"model {base.model} · data {base.data} · language {base.language} · {base.task}")
    say(console, ", ".join(f"{name} {short_value(value)}" for name, value in plan.trial_config.items()))
    for note in plan.notes:
        say(console, note)


def describe_workers(plan: TrainPlan, resources: TrialResources) -> str:
    """The workers and the effective batch, in one line."""
    base = plan.base
    workers = "1 worker" if base.workers == 1 else f"{base.workers} workers"
    each = f"{resources.gpus_per_worker:g} GPU and {resources.cpus_per_worker:g} CPU each"
    return (
        f"{workers} with {each}{', DeepSpeed' if base.deepspeed else ''}; effective batch "
        f"{base.train_batch_size} x {base.gradient_accumulation_steps} x {base.workers} = "
        f"{base.effective_batch_size} (micro-batch x accumulation x workers)"
    )


class TrainDisplay(LiveDisplay):
    """Shows the training while it runs."""

    def __init__(
        self, console: Console, *, budget: int, baseline: float, trouble: Callable[[], str | None]
    ) -> None:
        super().__init__(console)
        self._budget = budget
        self._baseline = baseline
        self._trouble = trouble
        self._record: TrialRecord | None = None
        self._learning_rate: float | None = None
        self._told = self._started
        self._first: tuple[float, int] | None = None

    def _render(self) -> Text:
        return Text(self.summary(), style="bold")

    def restart(self) -> None:
        """Forget the pace: the workers start anew."""
        self._first = None

    def update(self, record: TrialRecord, metrics: Mapping[str, float]) -> None:
        """Take in where the training stands."""
        self._record = record
        self._learning_rate = metrics.get("learning_rate", self._learning_rate)
        if self._first is None:
            self._first = time.monotonic(), record.samples_now
        if self._live is None and time.monotonic() - self._told >= _EVERY_SECONDS:
            self.told()

    def told(self) -> None:
        """Say where the training stands, where no live line shows it."""
        if self._live is None:
            self.event(escape(self.summary()))
            self._told = time.monotonic()

    def summary(self) -> str:
        """Where the training stands: epoch, loss, rates, time left."""
        record = self._record
        if record is None:
            return "starting the workers ..."
        parts = [f"{record.samples_now:,} of {self._budget:,} samples, epoch {record.epoch_now:.2f}"]
        if "loss" in record.progress:
            parts.append(f"loss {record.progress['loss']:.4f}")
        if self._learning_rate is not None:
            parts.append(f"lr {self._learning_rate:.3g}")
        if record.wer is not None and record.best_wer is not None:
            parts.append(
                f"WER {record.wer:.2f} %, best {record.best_wer:.2f} %, baseline {self._baseline:.2f} %"
            )
        left = self._left(record)
        if left is not None:
            parts.append(f"about {clock(left)} left")
        trouble = self._trouble()
        return " · ".join([*parts, *([trouble] if trouble else [])])

    def _left(self, record: TrialRecord) -> float | None:
        """Seconds to the end at the pace since the workers' first word; None before there is one."""
        if self._first is None or record.samples_now <= self._first[1] or record.samples_now >= self._budget:
            return None
        pace = (time.monotonic() - self._first[0]) / (record.samples_now - self._first[1])
        return (self._budget - record.samples_now) * pace
