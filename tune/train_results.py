"""The end of a single training on the screen: WER before and after, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from tune.display import clock, say, short_path, short_value
from tune.errors import error_line
from tune.experiments.results import RESULTS_FILE
from tune.runs.outcome import SearchOutcome
from tune.workers.ray_train import TRIAL

if TYPE_CHECKING:
    from tune.search.records import TrialRecord

KIND = "training"
ERROR_FILE = "error.txt"


class TrainingOutcome(SearchOutcome):
    """A training that has ended, or was interrupted."""

    @property
    def record(self) -> TrialRecord:
        """The training's only trial."""
        return self.trials[0]


def print_training_summary(outcome: TrainingOutcome, console: Console) -> None:
    """Print how it ended, WER before and after, and the commands that come next."""
    plan, record, baseline = outcome.plan, outcome.record, outcome.baseline
    name, storage = plan.name, plan.request.storage.option
    console.print()
    if outcome.interrupted:
        say(console, f"interrupted at epoch {record.epoch:.2f}; go on with it:")
        say(console, f"resume    tune-whisper train --resume {name}{storage}")
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
        say(console, f"resume    tune-whisper train --resume {name}{storage}")
    else:
        say(
            console,
            f"trained   {record.epoch:.2f} epochs, {record.samples_seen:,} samples in {clock(outcome.seconds)}",
        )
    if record.best_wer is None:
        console.print("[red]no evaluation was reached[/]")
        return
    settings = ", ".join(f"{key} {short_value(value)}" for key, value in record.config.items())
    say(console, f"before    WER {baseline:6.2f} %  {plan.base.model} untouched")
    console.print(f"[bold]after     WER {record.best_wer:6.2f} %  {escape(settings)}[/]", soft_wrap=True)
    if outcome.gained:
        gain = baseline - record.best_wer
        console.print(f"gain      {gain:10.2f} points: {100 * gain / baseline:.0f} % fewer errors")
    else:
        console.print("[yellow]no better than the untouched base model[/]: keep that one, or train otherwise")
    say(console, f"results   {plan.where}/{RESULTS_FILE}")
    say(console, f"compare   tune-whisper ui {name}{storage}")
    say(console, f"export    tune-whisper export {name} --output my-model{storage}")
