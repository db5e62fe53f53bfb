"""What a transcription shows: progress on standard error, two models' transcripts side by side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.progress import Progress as Bar
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from trainer.transcription.differences import Comparison, Difference
from trainer.transcription.recordings import Recording
from trainer.transcription.transcripts import Transcript
from tune.util.console import clock, say

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

_LINE_SECONDS = 15.0
"""How often progress is told where no line can be live."""
_BASE_STYLE = {"replace": "red", "delete": "red", "written": "dim"}
_MODEL_STYLE = {"replace": "bold green", "insert": "bold green", "written": "dim"}


class Progress:
    """How much of all audio is transcribed, and how long the rest will take; everything on the console given."""

    def __init__(self, console: Console, recordings: Sequence[Recording]) -> None:
        self._console = console
        self._lengths = {recording: recording.seconds for recording in recordings}
        self._total = sum(self._lengths.values())
        self._finished = self._under_way = 0.0
        self._count = 0
        self._started = self._told = time.monotonic()
        # Standard output is the transcript's alone; left to itself, rich would send it to this console.
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._line = self._bar.add_task(self._state())

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the way while something is printed to standard output, which may be the same terminal."""
        self._bar.stop()
        yield
        self._bar.start()

    def advance(self, seconds: float) -> None:
        """Take note that so much more audio is transcribed."""
        self._under_way += seconds
        self._bar.update(self._line, description=self._state())
        if self._bar.disable and time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            self.say(self._state())

    def advance_half(self, seconds: float) -> None:
        """The same, where every recording is transcribed twice."""
        self.advance(seconds / 2)

    def finish(self, recording: Recording) -> None:
        """Take note that a recording is done, with its silences."""
        self._count += 1
        self._finished += self._lengths[recording]
        self._under_way = max(0.0, self._under_way - self._lengths[recording])

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self._console, text)

    def summarise(self, failed: int, trusts_times: bool | None) -> None:
        """The last line: how much, how fast, and whose times the segments have."""
        elapsed = time.monotonic() - self._started
        done = self._count - failed
        parts = [
            f"{done} recording{'' if done == 1 else 's'}, {clock(self._finished)} of audio in {clock(elapsed)}"
        ]
        if self._finished:
            parts.append(f"real-time factor {elapsed / self._finished:.3f}")
        parts.append("times by the model's timestamps" if trusts_times else "times by the pauses")
        self.say(" · ".join([*parts, *([f"{failed} could not be read"] if failed else [])]))

    def _state(self) -> str:
        elapsed = time.monotonic() - self._started
        done = min(self._total, self._finished + self._under_way)
        parts = [f"{clock(done)} of {clock(self._total)} transcribed"]
        if done > 0:
            parts.append(f"about {clock((self._total - done) * elapsed / done)} left")
        return " · ".join(parts)


def say_doubts(progress: Progress, found: Transcript) -> None:
    """Warn of what may be missing or wrong in a transcript."""
    path = found.recording.path
    if found.missing_seconds:
        progress.say(
            f"warning: {path}: ends after {found.seconds:.1f} s, though its header says "
            f"{found.recording.seconds:.1f} s"
        )
    for doubt, words in (("repeats", "says the same over and over"), ("breaks off", "breaks off")):
        places = [clock(segment.start) for segment in found.segments if segment.doubt == doubt]
        if places:
            more = f" and {len(places) - 5} more places" if len(places) > 5 else ""
            progress.say(f"warning: {path}: the text {words} at {', '.join(places[:5])}{more}")


def comparison_table(comparison: Comparison, base: str, model: str, *, coloured: bool) -> Table:
    """Both transcripts, a row a segment.

    Args:
        comparison: of one recording.
        base: name of the model on the left.
        model: of the one on the right.
        coloured: else differences stand between asterisks.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True, padding=(0, 2, 0, 0))
    table.add_column("time", justify="right", no_wrap=True, style="dim")
    table.add_column(Text(base), ratio=1)
    table.add_column(Text(model), ratio=1)
    gap = " " if comparison.unit == "words" else ""
    for row in comparison.rows:
        table.add_row(
            clock(row.start),
            _side(row.differences, "base", gap, coloured),
            _side(row.differences, "model", gap, coloured),
        )
    return table


def _side(differences: Sequence[Difference], side: str, gap: str, coloured: bool) -> Text:
    styles = _BASE_STYLE if side == "base" else _MODEL_STYLE
    line = Text()
    for difference in differences:
        words: str = getattr(difference, side)
        if not words:
            continue
        if line:
            line.append(gap)
        marked = not coloured and difference.kind not in ("equal", "written")
        line.append(
            f"*{words}*" if marked else words, style=styles.get(difference.kind) if coloured else None
        )
    return line
