"""An inspection on the screen: warnings first, then what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.inspection.characters import by_kind
from trainer.inspection.inspection import Distribution, distributions
from tune.util.console import clock, say, say_notes

if TYPE_CHECKING:
    from trainer.inspection.characters import Character
    from trainer.inspection.inspection import Inspection

_SHOWN = 4
"""Clips of each finding."""
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 24
_MOST_CHARACTERS = 90


def print_inspection(inspection: Inspection, console: Console, *, more: bool) -> None:
    """Print everything; `more` says how to get the rest of long lists."""
    say(console, headline(inspection))
    say_notes(console, inspection.notes)
    console.print()
    _print_findings(inspection, console, more=more)
    console.print(_splits_table(inspection))
    console.print()
    console.print(_distributions_table(inspection))
    console.print()
    for line in _facts(inspection):
        say(console, line)
    heard = inspection.measured / max(inspection.listening_seconds, 1e-3)
    say(
        console,
        f"listened  {inspection.measured:,} clips in {clock(inspection.listening_seconds)} ({heard:,.0f} a second)",
    )


def headline(inspection: Inspection) -> str:
    """What was looked at, in one line."""
    seconds = sum(facts.seconds for facts in inspection.splits.values())
    about = "" if inspection.measured == len(inspection.entries) else "about "
    languages = ", ".join(inspection.languages)
    return (
        f"data {inspection.config.data}: {len(inspection.entries):,} clips, {about}{long_time(seconds)}, "
        f"language {languages}"
    )


def long_time(seconds: float) -> str:
    """`1,234.5 hours`, `25.7 minutes`."""
    return f"{seconds / 3600:,.1f} hours" if seconds >= 7200 else f"{seconds / 60:.1f} minutes"


def limits_text(inspection: Inspection) -> str:
    """What was taken for too long, and where that comes from."""
    limits, left_out = inspection.limits, inspection.left_out
    told = f"{limits.window:g} s and {limits.max_tokens} tokens"
    if limits.model is not None:
        return f"{told}, of {limits.model}"
    if left_out.maybe_too_long:
        number = left_out.maybe_too_long
        texts = "1 text may be over it" if number == 1 else f"{number:,} texts may be over it"
        return f"{told}, of Whisper's own models; {texts}, --model small counts their tokens"
    return f"{told}, of Whisper's own models; no text can be over it (--model small counts tokens)"


def _print_findings(inspection: Inspection, console: Console, *, more: bool) -> None:
    if not inspection.warnings:
        console.print(Text("no warnings: nothing in this data looks wrong", style="green"))
    for finding in inspection.findings:
        colour = "yellow" if finding.level == "warning" else "cyan"
        title = Text.assemble((f"{finding.level}: ", f"bold {colour}"), (finding.title, "bold"))
        console.print(title, soft_wrap=True)
        for one in finding.suspects[:_SHOWN]:
            say(console, f"  {one.name} ({one.split}): {one.detail}")
        if finding.count > _SHOWN:
            say(console, f"  ... and {finding.count - _SHOWN:,} more")
        console.print(Text(f"  → {finding.advice}", style="dim"), soft_wrap=True)
    if more and any(finding.count > _SHOWN for finding in inspection.findings):
        say(console, "--output DIR writes all of them to suspicious.csv, and a page with pictures")
    console.print()


def _splits_table(inspection: Inspection) -> Table:
    """Clips, hours, words, texts and speakers of each split."""
    speakers = any(facts.speakers for facts in inspection.splits.values())
    table = _table("split", "clips", "time", "words", "different texts", *(["speakers"] if speakers else []))
    for name, facts in inspection.splits.items():
        cells = [f"{facts.clips:,}", clock(facts.seconds), f"{facts.words:,}", f"{facts.texts:,}"]
        table.add_row(name, *cells, *([f"{facts.speakers or 0:,}"] if speakers else []))
    return table


def _distributions_table(inspection: Inspection) -> Table:
    """Quantiles of each measure and how it spreads."""
    table = _table("per clip", "least", "5 %", "median", "95 %", "most")
    table.add_column("from least to most")
    for one in distributions(inspection.entries):
        table.add_row(*quantile_row(one), _spark(one))
    return table


def quantile_row(found: Distribution) -> list[str]:
    """What is measured, and its least, 5 %, median, 95 % and most, with as many digits as tell something."""
    values = [found.quantile(share) for share in (0.0, 0.05, 0.5, 0.95, 1.0)]
    return [
        found.title,
        *(
            f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"
            for value in values
        ),
    ]


def _table(first: str, *names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in names:
        table.add_column(name, justify="right")
    return table


def _spark(found: Distribution) -> str:
    """The histogram as a row of bars."""
    import numpy as np

    counts = np.histogram(found.values, _COLUMNS)[0].tolist()
    most = max(counts)
    # What is there at all must be seen.
    return "".join(_BARS[min(7, 8 * count // most)] if count else " " for count in counts)


def _facts(inspection: Inspection) -> list[str]:
    """Formats, alphabet and limits, a line each."""
    formats = [
        f"{count:,} {format_name(rate, channels, kind)}"
        for (rate, channels, kind), count in inspection.formats().most_common(6)
    ]
    lines = [f"audio     {'; '.join(formats) or 'none that can be read'}"]
    lines += [f"alphabet  {line}" for line in _alphabet_lines(inspection.alphabet)]
    return [*lines, f"limits    {limits_text(inspection)}"]


def format_name(rate: int, channels: int, kind: str) -> str:
    """`FLAC PCM 16 at 16 kHz, mono`."""
    count = {1: "mono", 2: "stereo"}.get(channels, f"{channels} channels")
    return f"{kind.replace('_', ' ')} at {rate / 1000:g} kHz, {count}"


def _alphabet_lines(alphabet: Sequence[Character]) -> list[str]:
    """Letters by script, then digits and signs, in one line each."""
    lines = []
    for name, chars in by_kind(alphabet).items():
        rest = len(chars) - _MOST_CHARACTERS
        tail = f" and {rest:,} more" if rest > 0 else ""
        shown = " ".join(one.shown for one in chars[:_MOST_CHARACTERS])
        lines.append(f"{name} ({len(chars):,}): {shown}{tail}")
    return lines
