"""An inspection on the screen, warnings first; as JSON, and as a list of suspicious clips."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
from typing import Any

from rich.console import Console
from rich.text import Text

from trainer.data.drops import count_by_reason
from trainer.inspection.inspection import Inspection, quantiles
from tune.util.console import clock, make_table, say, say_notes

_SHOWN = 4
"""Clips of each finding."""


def print_inspection(inspection: Inspection, console: Console, *, more: bool) -> None:
    """Print everything; `more` says how to get the rest of long lists."""
    say(console, headline(inspection))
    say_notes(console, inspection.notes)
    console.print()
    if not inspection.findings:
        console.print(Text("no warnings: nothing in this data looks wrong", style="green"))
    for finding in inspection.findings:
        console.print(Text.assemble(("warning: ", "bold yellow"), (finding.title, "bold")), soft_wrap=True)
        for one in finding.suspects[:_SHOWN]:
            say(console, f"  {one.name} ({one.split}): {one.detail}")
        if len(finding.suspects) > _SHOWN:
            say(console, f"  ... and {len(finding.suspects) - _SHOWN:,} more")
        console.print(Text(f"  → {finding.advice}", style="dim"), soft_wrap=True)
    if more and any(len(finding.suspects) > _SHOWN for finding in inspection.findings):
        say(console, "--output DIR writes all of them to suspicious.csv, and a page with pictures")
    console.print()
    rows = []
    for name, facts in inspection.splits.items():
        counts = [facts.words, facts.different_texts, facts.speakers]
        cells = ["" if count is None else f"{count:,}" for count in counts]
        rows.append([name, f"{facts.clips:,}", clock(facts.seconds), *cells])
    console.print(make_table(["split", "clips", "time", "words", "different texts", "speakers"], rows))
    console.print()
    names = ["per clip", "least", "5 %", "median", "95 %", "most"]
    console.print(make_table(names, quantile_rows(inspection)))
    console.print()
    say(console, f"limits    {limits_text(inspection)}")


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


def quantile_rows(inspection: Inspection) -> list[list[str]]:
    """What is measured, and its least, 5 %, median, 95 % and most, with as many digits as tell something."""
    return [
        [
            name.replace("_", " "),
            *(f"{one:,.0f}" if abs(one) >= 100 else f"{one:.4g}" for one in row.values()),
        ]
        for name, row in quantiles(inspection.entries).items()
    ]


def to_dict(inspection: Inspection) -> dict[str, Any]:
    """The content of `inspection.json`; plain values only, times in seconds."""
    limits = inspection.limits
    return {
        "kind": "tune-whisper inspection",
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "data": inspection.config.data,
        "model": limits.model,
        "languages": inspection.languages,
        "limits": {"seconds": limits.window, "tokens": limits.max_tokens},
        "clips": len(inspection.entries),
        "listened_to": inspection.measured,
        "findings": [dataclasses.asdict(finding) for finding in inspection.findings],
        "notes": inspection.notes,
        "splits": {name: dataclasses.asdict(facts) for name, facts in inspection.splits.items()},
        "dropped": {
            "by_reason": count_by_reason(inspection.drops),
            "search_stops": inspection.stops,
        },
        "usual_letters_per_second": inspection.rates,
        "distributions": quantiles(inspection.entries),
    }


def suspicious_list(inspection: Inspection) -> str:
    """The clips that warnings are about, as CSV."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines)
    writer.writerow(("file", "split", "why", "detail"))
    for finding in inspection.findings:
        why = finding.kind.replace("_", " ")
        writer.writerows((one.name, one.split, why, one.detail) for one in finding.suspects)
    return lines.getvalue()
