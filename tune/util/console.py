"""What commands show on the screen: lines, values as people read them, and something live on a terminal."""

from __future__ import annotations

import abc
import collections
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trainer.scoring.objectives import words

SHORT_NAMES = {
    "learning_rate": "lr",
    "warmup_ratio": "warmup",
    "train_batch_size": "batch",
    "gradient_accumulation_steps": "accum",
    "weight_decay": "decay",
    "label_smoothing": "smoothing",
}
_LINE_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""
_MINUTE = 60.0
"""The same of what takes hours."""


class TaskConsole(Console):
    """A console that gives the rate that decides its name for the task."""

    task = "transcribe"

    def render_str(self, text: str, **options: Any) -> Text:
        """All that is printed as a string comes by here, cells of tables too."""
        return super().render_str(words(text, self.task), **options)


def make_console(*, error: bool = False) -> TaskConsole:
    """A console for people: 120 columns where the output is no terminal, no automatic colours of numbers.

    A notebook is no terminal, though it sets FORCE_COLOR: what is live would fill it with outputs.
    """
    terminal = (sys.stderr if error else sys.stdout).isatty()
    width = None if terminal else 120
    return TaskConsole(
        highlight=False, stderr=error, force_terminal=terminal, force_jupyter=False, width=width
    )


def set_task(console: Console, task: str) -> None:
    """Write of an experiment with this task from here on."""
    if isinstance(console, TaskConsole):
        console.task = task


def short_path(path: Path) -> str:
    """A path as people read it: relative where it lies below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def short_source(source: str) -> str:
    """A model or data set as people know it: a folder or file by its name, all else as it is."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith(("/", ".", "~")) else source


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
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def key_settings(config: dict[str, Any]) -> str:
    """The searched settings of a trial in one line: `lr=0.00035 warmup=0.1 batch=8`."""
    return " ".join(f"{SHORT_NAMES.get(name, name)}={short_value(value)}" for name, value in config.items())


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any: `03:25`, `1:03:25`."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60:02d}:{rest % 60:02d}"


def make_table(names: Sequence[str], rows: Iterable[Sequence[str]], *, bold: bool = False) -> Table:
    """A table whose first column is set left; `bold` is its first row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    # As text: rich takes strings for markup, and names may hold what looks like it.
    for index, name in enumerate(names):
        table.add_column(Text(name), justify="right" if index else "left")
    for index, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if bold and not index else None)
    return table


@contextlib.contextmanager
def doing(console: Console, what: str) -> Iterator[None]:
    """Show what is done in the block: live on a terminal, elsewhere a line before it and one each minute."""
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield
        return
    say(console, f"{what} ...")
    begun, done = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not done.wait(_MINUTE):
            say(console, f"{what}: for {clock(time.monotonic() - begun)}")

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class ProgressBar:
    """How far a piece of work is and the time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(
        self, console: Console, phase: str, *, number: Callable[[float], str] = "{:,}".format
    ) -> None:
        """Begin with a phase of the work; `number` writes how much is done and how much there is."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
        )
        # Where the bar is on standard error, standard output is for results: rich would send those here too.
        self._bar = Progress(
            *(*columns, TimeRemainingColumn()),
            console=console,
            transient=True,
            redirect_stdout=not console.stderr,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(phase, total=None, count="")
        self._number, self._phase = number, phase
        self._begun = self._shown_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Out of the way while something is printed elsewhere, which may be the same terminal."""
        self._bar.stop()
        yield
        self._bar.start()

    def update(self, done: float, total: float) -> None:
        """How much of how much is done in this phase."""
        self.show(self._phase, done, total)

    def show(self, phase: str, done: float, total: float) -> None:
        """The same of a phase, which takes the place of another."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._begun, self._shown_at = phase, now, now
            self._bar.reset(self._task, description=phase)
        count = f"{self._number(done)} of {self._number(total)}"
        self._bar.update(self._task, completed=done, total=total, count=count)
        if self._bar.disable and now - self._shown_at >= _LINE_SECONDS and 0 < done < total:
            self._shown_at = now
            left = clock((now - self._begun) * (total - done) / done)
            say(self._bar.console, f"{phase}: {count}, about {left} left")


class LiveDisplay(abc.ABC):
    """How far something is, live on a terminal while a block runs; `event` prints a line that stays."""

    def __init__(self, console: Console, trouble: Callable[[], str | None]) -> None:
        """`trouble` gives what the summary ends with, if there is any."""
        self._console, self._trouble = console, trouble
        self._started = self._shown_at = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._started = self._shown_at = time.monotonic()
        if self._console.is_terminal:
            self._live = _LiveLines(self, self._console)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live:
            live.stop()

    @abc.abstractmethod
    def parts(self) -> list[str]:
        """What the summary says now."""

    def summary(self) -> str:
        return " · ".join([*self.parts(), *filter(None, [self._trouble()])])

    def __rich__(self) -> RenderableType:
        """What is live now; rich asks anew at each drawing."""
        return self._console.render_str(self.summary(), style="bold", markup=False, highlight=False)

    def print_progress(self) -> None:
        """Print the summary where nothing live shows it."""
        if self._live is None:
            self.event(escape(self.summary()))

    def running(self) -> list[str]:
        """What there is to say of each thing that runs, once a minute where nothing live shows it."""
        return []

    def look(self) -> None:
        """Called every second or so: print how far it is where nothing live shows it, once a minute."""
        now = time.monotonic()
        if self._live is None and now - self._shown_at >= _MINUTE:
            self._shown_at = now
            for line in self.running():
                self.event(escape(line))
            self.print_progress()

    def event(self, text: str) -> None:
        """Print one line, which may hold rich's markup, with the time since the start; within a second where
        something is live. From any thread.
        """
        line = self._console.render_str(
            f"[dim]{clock(time.monotonic() - self._started)}[/] {text}", markup=True, highlight=False
        )
        if isinstance(self._live, _LiveLines):
            self._live.lines.append(line)
        else:
            self._console.print(line, soft_wrap=True)


class _LiveLines(Live):
    """Draws what is live twice a second, and with it the lines that came meanwhile.

    Each print of rich's draws all that is live anew: a table of trials at every event took more time than all else
    that a driver does for a trial.
    """

    def __init__(self, shown: LiveDisplay, console: Console) -> None:
        super().__init__(shown, console=console, refresh_per_second=2, transient=True)
        self.lines: collections.deque[Text] = collections.deque()

    def refresh(self) -> None:
        if not self._print_lines():
            super().refresh()

    def stop(self) -> None:
        """End what is live; the lines stay."""
        super().stop()
        self._print_lines()  # those that other threads added meanwhile

    def _print_lines(self) -> bool:
        """Print the lines that wait, with what is live below them; whether there were any."""
        lines = [self.lines.popleft() for _ in range(len(self.lines))]
        if lines:
            self.console.print(*lines, sep="\n", soft_wrap=True)
        return bool(lines)
