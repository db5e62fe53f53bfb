"""What a training shows on the screen: a live line on a terminal, a line now and then elsewhere, and in the end WER
before and after, and what to do next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from trainer.scoring.objectives import objective_value
from tune.experiments.folder import RESULTS_FILE
from tune.experiments.options import TRIAL
from tune.runs.outcome import Outcome, print_no_gain, print_sources
from tune.util.console import LiveDisplay, clock, say, short_path, short_value
from tune.util.errors import error_line

if TYPE_CHECKING:
    from tune.search.records import Trial

ERROR_FILE = "error.txt"
_EVERY_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""


class TrainDisplay(LiveDisplay):
    """Shows the training while it runs."""

    def __init__(
        self, console: Console, *, budget: int, baseline: float, trouble: Callable[[], str | None]
    ) -> None:
        super().__init__(console)
        self._budget, self._baseline, self._trouble = budget, baseline, trouble
        self._record: Trial | None = None
        self._learning_rate: float | None = None
        self._told = self._started
        self._first: tuple[float, int] | None = None

    def __rich__(self) -> Text:
        return Text(self.summary(), style="bold")

    def restart(self) -> None:
        """Forget the pace: the workers start anew."""
        self._first = None

    def update(self, record: Trial, metrics: Mapping[str, float]) -> None:
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
        if record.value is not None:  # the best may be one whose checkpoint is still being written
            best = min(wer for _, wer in record.evaluations)
            parts.append(f"WER {record.value:.2f} %, best {best:.2f} %, baseline {self._baseline:.2f} %")
        left = self._left(record)
        if left is not None:
            parts.append(f"about {clock(left)} left")
        return " · ".join([*parts, *filter(None, [self._trouble()])])

    def _left(self, record: Trial) -> float | None:
        """Seconds to the end at the pace since the workers' first word; None before there is one."""
        if self._first is None or record.samples_now <= self._first[1] or record.samples_now >= self._budget:
            return None
        pace = (time.monotonic() - self._first[0]) / (record.samples_now - self._first[1])
        return (self._budget - record.samples_now) * pace


def print_training_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended, WER before and after, and the commands that come next."""
    plan, record, baseline = outcome.plan, outcome.trials[0], objective_value(outcome.state.base_rates)
    name, storage = plan.name, plan.storage.option
    console.print()
    print_no_gain(outcome.state, console)
    if outcome.state.something_is_left:
        say(console, f"interrupted at epoch {record.epoch_now:.2f}; go on with it:")
        say(console, f"resume    {plan.resume_command}")
    elif record.status == "diverged":
        console.print(
            f"[red]diverged[/] after {record.samples_seen:,} samples: the loss is no finite number; lower the "
            f"learning rate: tune-whisper train --from {escape(name)} --trial {TRIAL} --set learning_rate=...",
            soft_wrap=True,
        )
    elif record.status == "failed":
        error = error_line(record.error or "").rstrip(".")
        where = short_path(plan.folder / ERROR_FILE)
        console.print(f"[red]failed[/]: {escape(error)}; all of it is in {escape(where)}", soft_wrap=True)
        say(console, f"resume    {plan.resume_command}")
    else:
        say(
            console,
            f"trained   {record.epoch:.2f} epochs, {record.samples_seen:,} samples in {clock(outcome.state.seconds)}",
        )
    if record.best_value is None:
        console.print("[red]no evaluation was reached[/]")
        return
    settings = ", ".join(f"{key} {short_value(value)}" for key, value in record.config.items())
    if plan.base.train_on != "train":
        say(
            console,
            "measured  on the test split, by which nothing was chosen; trained on train and validation",
        )
    say(console, f"before    WER {baseline:6.2f} %  {plan.base.model} untouched")
    console.print(f"[bold]after     WER {record.best_value:6.2f} %  {escape(settings)}[/]", soft_wrap=True)
    print_sources(outcome, console)
    if outcome.gained:
        gain = baseline - record.best_value
        console.print(f"gain      {gain:10.2f} points: {100 * gain / baseline:.0f} % fewer errors")
    say(console, f"results   {plan.where}/{RESULTS_FILE}")
    say(console, f"compare   tune-whisper ui {name}{storage}")
    say(console, f"export    tune-whisper export {name} --output my-model{storage}")
