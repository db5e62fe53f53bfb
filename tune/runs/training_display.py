"""What a training shows on the screen: a live line on a terminal, a line now and then elsewhere, and in the end the
best WER beside the baseline, and what to do next.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from trainer.scoring.objectives import objective_value
from tune.experiments.folder import RESULTS_FILE
from tune.experiments.options import TRIAL
from tune.experiments.results import REPORT_FOLDER
from tune.runs.outcome import Outcome, print_measured, print_no_gain
from tune.search.records import Trial
from tune.util.console import LiveDisplay, clock, say, short_path, short_value
from tune.util.errors import error_line

ERROR_FILE = "error.txt"


class TrainDisplay(LiveDisplay):
    def __init__(
        self,
        console: Console,
        record: Trial,
        *,
        budget: int,
        baseline: float,
        trouble: Callable[[], str | None],
    ) -> None:
        super().__init__(console, trouble)
        self._record, self._budget, self._baseline = record, budget, baseline
        self._first: tuple[float, int] | None = None
        """When the workers first reported, and the samples seen by then."""

    def restart(self) -> None:
        """Forget the pace: the workers start anew."""
        self._first = None

    def update(self) -> None:
        if self._first is None:
            self._first = time.monotonic(), self._record.samples_now

    def parts(self) -> list[str]:
        """Where the training stands: epoch, loss, rates, time left."""
        record = self._record
        if self._first is None:
            return ["starting the workers ..."]
        parts = [f"{record.samples_now:,} of {self._budget:,} samples, epoch {record.epoch_now:.2f}"]
        if "loss" in record.progress:
            parts.append(f"loss {record.progress['loss']:.4f}")
        if "learning_rate" in record.progress:
            parts.append(f"lr {record.progress['learning_rate']:.3g}")
        if record.value is not None:  # the best may be one whose checkpoint is still being written
            best = min(wer for _, wer in record.evaluations)
            parts.append(f"WER {record.value:.2f} %, best {best:.2f} %, baseline {self._baseline:.2f} %")
        seen = record.samples_now
        if self._first[1] < seen < self._budget:
            pace = (time.monotonic() - self._first[0]) / (seen - self._first[1])
            parts.append(f"about {clock((self._budget - seen) * pace)} left")
        return parts


def print_training_summary(outcome: Outcome, console: Console) -> None:
    """Print how it ended, the best WER beside the baseline, and the commands that come next."""
    plan, record, baseline = outcome.plan, outcome.trials[0], objective_value(outcome.state.base_rates)
    name, storage = plan.name, plan.storage.option
    console.print()
    print_no_gain(outcome.state, console)
    if outcome.state.something_is_left:
        say(console, f"interrupted at epoch {record.epoch_now:.2f}; go on with it:")
        say(console, f"resume    {plan.resume_command}")
    elif record.status == "diverged":
        console.print(
            f"[red]diverged[/] after {record.samples_seen:,} samples: the loss is not a finite number; lower the "
            f"learning rate: tune-whisper train --from {escape(name)} --trial {TRIAL}{escape(storage)} "
            "--set learning_rate=...",
            soft_wrap=True,
        )
    elif record.status == "failed":
        error = error_line(record.error or "").rstrip(".")
        where = short_path(plan.folder / ERROR_FILE)
        console.print(
            f"[red]failed[/]: {escape(error)}; the whole error is in {escape(where)}", soft_wrap=True
        )
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
    prepared = outcome.state.prepared
    if prepared and prepared.base.train_on != "train":  # beside kept splits the plan has train
        say(console, "measured  on the held-out test split; trained on train and validation")
    say(console, f"baseline  WER {baseline:6.2f} %  {plan.base.model} before fine-tuning")
    console.print(f"[bold]best      WER {record.best_value:6.2f} %  {escape(settings)}[/]", soft_wrap=True)
    print_measured(outcome, console)
    say(console, f"results   {plan.where}/{RESULTS_FILE}")
    say(console, f"report    {plan.where}/{REPORT_FOLDER}/report.html")
    say(console, f"compare   tune-whisper ui {name}{storage}")
    say(console, f"export    tune-whisper export {name} --output my-model{storage}")
