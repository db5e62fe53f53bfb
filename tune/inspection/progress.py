"""How far an inspection is: one bar after the other on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tune.display import clock, say

if TYPE_CHECKING:
    from typing_extensions import Self

_LINE_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""


class _Speed(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", style="dim")


class PhaseProgress:
    """Shows what is being done and the time left; phases follow one another."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._phase = ""
        self._begun = self._last = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def show(self, phase: str, done: int, total: int) -> None:
        """Tell how far a phase is: what is being done, how many are done and how many there are."""
        if phase != self._phase:
            self._phase = phase
            self._begun = self._last = time.monotonic()
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(phase, total=total)
        if self._console.is_terminal and self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
        elif time.monotonic() - self._last >= _LINE_SECONDS and 0 < done < total:
            self._last = time.monotonic()
            left = (self._last - self._begun) * (total - done) / done
            say(self._console, f"{phase}: {done:,} of {total:,}, about {clock(left)} left")
