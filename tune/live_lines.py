"""Something live on a terminal, and lines that stay above it, drawn together."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text


class LiveLines(Live):
    """Draws what is live once a second, and with it the lines that came meanwhile.

    Each print of rich's draws all that is live anew: a table of trials at every event took more time than all else
    that a driver does for a trial.
    """

    def __init__(self, console: Console, render: Callable[[], RenderableType]) -> None:
        """`render` gives what is live at the moment of drawing."""
        super().__init__(_Now(render), console=console, refresh_per_second=1, transient=True)
        self._lines: collections.deque[Text] = collections.deque()

    def add(self, line: Text) -> None:
        """Print a line within a second; from any thread."""
        self._lines.append(line)

    def refresh(self) -> None:
        """Draw now."""
        if not self._print_lines():
            super().refresh()

    def stop(self) -> None:
        """End what is live; the lines stay."""
        super().stop()
        self._print_lines()  # those that other threads added meanwhile

    def _print_lines(self) -> bool:
        """Print the lines that wait, with what is live below them; whether there were any."""
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if lines:
            self.console.print(*lines, sep="\n", soft_wrap=True)
        return bool(lines)


@dataclasses.dataclass(frozen=True)
class _Now:
    """What rich asks anew at each drawing."""

    render: Callable[[], RenderableType]

    def __rich__(self) -> RenderableType:
        return self.render()
