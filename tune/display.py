"""What a search shows on the screen: a live table on a terminal, a line an event elsewhere."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tune.live_lines import LiveLines
from tune.search.names import trial_order

if TYPE_CHECKING:
    from typing_extensions import Self

    from tune.experiments.plan import SearchPlan
    from tune.search.records import Records, TrialRecord

SHORT_NAMES = {
    "learning_rate": "lr",
    "warmup_ratio": "warmup",
    "train_batch_size": "batch",
    "gradient_accumulation_steps": "accum",
    "weight_decay": "decay",
    "label_smoothing": "smoothing",
}
_STATUS = {
    "running": "[cyan]running[/]",
    "completed": "[green]completed[/]",
    "early_stopped": "[yellow]stopped early[/]",
    "failed": "[red]failed[/]",
    "interrupted": "[yellow]interrupted[/]",
    "diverged": "[red]diverged[/]",
}


def make_console(*, error: bool = False) -> Console:
    """A console for people: 120 columns where the output is no terminal, no automatic colours of numbers."""
    console = Console(highlight=False, stderr=error)
    return console if console.is_terminal else Console(highlight=False, stderr=error, width=120)


def short_path(path: Path) -> str:
    """A path as people read it: relative where it lies below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(console: Console, text: str) -> None:
    """Print one line as it is: paths and names may hold what rich takes for markup, and are not broken."""
    console.print(text, markup=False, soft_wrap=True)


def say_notes(console: Console, notes: Sequence[str]) -> None:
    """Print what was decided about the data; those that begin with `WARNING:` as warnings."""
    for note in notes:
        warning = note.removeprefix("WARNING: ")
        say(console, f"note: {note}" if warning == note else f"warning: {warning}")


def short_value(value: Any) -> str:
    """A setting as people read it: `0.00035`, `8`, `cosine`."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def key_settings(config: dict[str, Any]) -> str:
    """The searched settings of a trial in one line: `lr=0.00035 warmup=0.1 batch=8`."""
    return " ".join(f"{SHORT_NAMES.get(name, name)}={short_value(value)}" for name, value in config.items())


def print_plan(plan: SearchPlan, console: Console) -> None:
    """The head of the output: what is searched, on what."""
    lines = [
        f"experiment {plan.name} in {plan.where}",
        f"model {plan.base.model} · data {plan.base.data} · language {plan.base.language} · {plan.base.task}",
        f"space {plan.space.path.name}:",
        *(f"  {name}: {text}" for name, text in plan.space.describe()),
    ]
    shown = {"model", "data", "language", "task"}
    fixed = {name: getattr(plan.base, name) for name in plan.space.fixed if name not in shown}
    if fixed:
        lines.append("fixed: " + ", ".join(f"{name}={value}" for name, value in fixed.items()))
    for line in lines:
        say(console, line)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any: `03:25`, `1:03:25`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60:02d}:{rest % 60:02d}"


def trial_table(trials: list[TrialRecord], best: TrialRecord | None, *, title: str | None = None) -> Table:
    """All trials: status, searched settings, effective batch, epoch, WER, best WER."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.config))
    effective = any(trial.effective_batch != trial.config.get("train_batch_size") for trial in trials)
    last = [*(["effective"] if effective else []), "epoch", "WER %", "best %", "time"]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("trial")
    table.add_column("status")
    for name in [SHORT_NAMES.get(name, name) for name in names] + last:
        table.add_column(name, justify="right")
    for trial in trials:
        chosen = best is not None and trial.trial_id == best.trial_id
        table.add_row(
            trial.trial_id,
            _STATUS[trial.status],
            *(short_value(trial.config.get(name, "")) for name in names),
            *([str(trial.effective_batch)] if effective else []),
            f"{trial.epoch_now:.2f}",
            "" if trial.wer is None else f"{trial.wer:.2f}",
            "" if trial.best_wer is None else best_rate(trial) + (" *" if chosen else ""),
            clock(trial.elapsed),
            style="bold" if chosen else None,
        )
    return table


def best_rate(trial: TrialRecord) -> str:
    """A trial's best WER, with its standard error where only a part of the clips was measured."""
    return f"{trial.best_wer:.2f}" + (f" ± {trial.best_wer_error:.2f}" if trial.best_is_partial else "")


def time_left(records: Records, n_trials: int, budget: int, elapsed: float) -> float | None:
    """Seconds that the rest of the search may take, from the samples seen so far; None before the first.

    Trials to come are taken to need what those that ended needed on average (the full budget before any ended),
    running ones to go to the end.
    """
    trials = records.all()
    seen = sum(trial.samples_now for trial in trials)
    if not seen or elapsed <= 0:
        return None
    ended = [trial for trial in trials if trial.status != "running"]
    expected = sum(trial.samples_now for trial in ended) / len(ended) if ended else budget
    to_come = (n_trials - len(trials)) * expected
    running = sum(max(0, budget - trial.samples_now) for trial in trials if trial.status == "running")
    return (to_come + running) * elapsed / seen


class LiveDisplay(abc.ABC):
    """Something live on a terminal while a block runs; `event` prints a line that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._live = LiveLines(self._console, self._render)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live:
            live.stop()

    @abc.abstractmethod
    def _render(self) -> RenderableType:
        """What is live now."""

    def event(self, text: str) -> None:
        """Print one line, which may hold rich's markup, with the time since the start; within a second where
        something is live.
        """
        line = Text.from_markup(f"[dim]{clock(time.monotonic() - self._started)}[/] {text}")
        if isinstance(self._live, LiveLines):
            self._live.add(line)
        else:
            self._console.print(line, soft_wrap=True)


class SearchDisplay(LiveDisplay):
    """Shows the search while it runs."""

    def __init__(
        self,
        console: Console,
        records: Records,
        *,
        n_trials: int,
        budget: int,
        baseline: float,
        trouble: Callable[[], str | None],
        noun: str = "trials",
    ) -> None:
        super().__init__(console)
        self._noun = noun
        self._records = records
        self._n_trials = n_trials
        self._budget = budget
        self._baseline = baseline
        self._trouble = trouble

    def trial_ended(self) -> None:
        """Say how far the search is, where no live table shows it."""
        if self._live is None:
            self.event(escape(self.summary()))

    def summary(self) -> str:
        """How far the search is: trials ended, best so far, time left."""
        trials, best = self._records.all(), self._records.best()
        ended = sum(trial.status != "running" for trial in trials)
        left = time_left(self._records, self._n_trials, self._budget, time.monotonic() - self._started)
        parts = [f"{ended}/{self._n_trials} {self._noun} ended"]
        if best and best.best_wer is not None:
            parts.append(
                f"best WER {best_rate(best)} % (trial {best.trial_id}), baseline {self._baseline:.2f} %"
            )
        if left is not None and ended < self._n_trials:
            parts.append(f"about {clock(left)} left")
        trouble = self._trouble()
        if trouble:
            parts.append(trouble)
        return " · ".join(parts)

    def _render(self) -> Group:
        trials, best = self._records.all(), self._records.best()
        # What does not fit would be cut off at the bottom, where the running trials are.
        shown = most_telling(trials, best, self._console.height - 5)
        hidden = len(trials) - len(shown)
        more = [Text(f"... and {hidden} that ended earlier", style="dim")] if hidden else []
        return Group(Text(self.summary(), style="bold"), trial_table(shown, best), *more)


def most_telling(trials: Sequence[TrialRecord], best: TrialRecord | None, rows: int) -> list[TrialRecord]:
    """At most `rows` trials by number: the running ones and the best first, then those that ended last."""

    def rank(trial: TrialRecord) -> tuple[bool, bool, tuple[int, int, str]]:
        is_best = best is not None and trial.trial_id == best.trial_id
        return trial.status == "running", is_best, trial_order(trial.trial_id)

    chosen = sorted(trials, key=rank, reverse=True)[: max(1, rows)]
    return sorted(chosen, key=lambda trial: trial_order(trial.trial_id))
