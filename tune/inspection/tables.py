"""An inspection on the screen, warnings first; as JSON, and as a list of suspicious clips."""

from __future__ import annotations

import csv
import datetime
import io
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.inspection.inspection import Distribution, distributions
from tune.util.console import clock, say, say_notes

if TYPE_CHECKING:
    from trainer.inspection.inspection import Inspection

_SHOWN = 4
"""Clips of each finding."""


def print_inspection(inspection: Inspection, console: Console, *, more: bool) -> None:
    """Print everything; `more` says how to get the rest of long lists."""
    say(console, headline(inspection))
    say_notes(console, inspection.notes)
    console.print()
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
    table = _table("split", "clips", "time", "words", "different texts", "speakers")
    for name, facts in inspection.splits.items():
        counts = [facts.words, facts.texts, facts.speakers]
        cells = ["" if count is None else f"{count:,}" for count in counts]
        table.add_row(name, f"{facts.clips:,}", clock(facts.seconds), *cells)
    console.print(table)
    console.print()
    table = _table("per clip", "least", "5 %", "median", "95 %", "most")
    for found in distributions(inspection.entries):
        table.add_row(*quantile_row(found))
    console.print(table)
    console.print()
    say(console, f"limits    {limits_text(inspection)}")


def _table(first: str, *names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in names:
        table.add_column(name, justify="right")
    return table


def headline(inspection: Inspection) -> str:
    """What was looked at, in one line."""
    seconds = sum(facts.seconds for facts in inspection.splits.values())
    about = "" if inspection.measured == len(inspection.entries) else "about "
    return (
        f"data {inspection.config.data}: {len(inspection.entries):,} clips, {about}{long_time(seconds)}, "
        f"language {', '.join(inspection.languages)}"
    )


def long_time(seconds: float) -> str:
    """`1,234.5 hours`, `25.7 minutes`."""
    return f"{seconds / 3600:,.1f} hours" if seconds >= 7200 else f"{seconds / 60:.1f} minutes"


def limits_text(inspection: Inspection) -> str:
    """What was taken for too long, and where that comes from."""
    limits = inspection.limits
    whose = limits.model or "Whisper's own models; --model small counts tokens"
    return f"{limits.window:g} s and {limits.max_tokens} tokens, of {whose}"


def quantile_row(found: Distribution) -> list[str]:
    """What is measured, and its least, 5 %, median, 95 % and most, with as many digits as tell something."""
    values = [found.quantile(share) for share in (0.0, 0.05, 0.5, 0.95, 1.0)]
    whole = [abs(value) >= 100 or value == int(value) for value in values]
    return [
        found.title,
        *(f"{value:,.0f}" if short else f"{value:.2f}" for value, short in zip(values, whole, strict=True)),
    ]


def to_dict(inspection: Inspection) -> dict[str, Any]:
    """The content of `inspection.json`; plain values only, times in seconds, shares from 0 to 1."""
    limits, left_out = inspection.limits, inspection.left_out
    shares = {"least": 0.0, "p05": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
    return {
        "kind": "tune-whisper inspection",
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "data": inspection.config.data,
        "model": limits.model,
        "languages": inspection.languages,
        "limits": {"seconds": limits.window, "tokens": limits.max_tokens},
        "clips": len(inspection.entries),
        "listened_to": inspection.measured,
        "warnings": len(inspection.warnings),
        "findings": [
            {
                **{name: getattr(finding, name) for name in ("kind", "level", "title", "advice", "count")},
                "clips": [
                    {"split": one.split, "file": one.name, "detail": one.detail} for one in finding.suspects
                ],
            }
            for finding in inspection.findings
        ],
        "notes": inspection.notes,
        "splits": {
            name: {
                **{"clips": facts.clips, "seconds": round(facts.seconds, 1), "words": facts.words},
                **{"different_texts": facts.texts, "speakers": facts.speakers},
            }
            for name, facts in inspection.splits.items()
        },
        "dropped": {
            "by_reason": dict(Counter(drop.reason for drop in left_out.drops).most_common()),
            "search_stops": left_out.stops,
        },
        "usual_letters_per_second": {code: round(rate.rate, 2) for code, rate in inspection.rates.items()},
        "distributions": {
            one.key: {"clips": len(one.values)}
            | {name: round(one.quantile(share), 4) for name, share in shares.items()}
            for one in distributions(inspection.entries)
        },
    }


def suspicious_list(inspection: Inspection) -> str:
    """The clips that warnings are about, as CSV."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(("file", "split", "why", "detail"))
    for finding in inspection.warnings:
        why = finding.kind.replace("_", " ")
        writer.writerows((one.name, one.split, why, one.detail) for one in finding.suspects)
    return lines.getvalue()
