"""Two models' transcripts side by side: as a table, as JSON, as a page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich.table import Table
from rich.text import Text

from trainer.transcription.differences import Comparison, Difference, compare
from trainer.transcription.transcripts import Failure, as_dict
from tune.transcription.output import Progress, put_out
from tune.util.console import clock, make_console, say
from tune.util.files import write_whole, writing

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {
    "base": {"replace": "red", "delete": "red", "written": "dim"},
    "model": {"replace": "bold green", "insert": "bold green", "written": "dim"},
}


def compare_all(progress: Progress, arguments: argparse.Namespace) -> int:
    """Transcribe every recording with both models and show where they differ; the exit code.

    Raises:
        ConfigError: the page cannot be written; what differs was printed.
    """
    comparisons: list[Comparison] = []
    console = make_console()
    for _, results in progress.results():
        if isinstance(results, Failure):
            if arguments.format == "json":
                models = {"base": arguments.compare, "model": arguments.model}
                put_out(json.dumps(as_dict(results, models=models), ensure_ascii=False) + "\n")
            continue
        model, base = results
        comparisons.append(compare(base, model))
        with progress.aside():
            _print(comparisons[-1], arguments, console)
    if arguments.html:
        with writing(f"--html {arguments.html}"):
            write_whole(arguments.html, comparison_page(comparisons, arguments.compare, arguments.model))
        progress.say(f"wrote {arguments.html}")
    return progress.finish()


def _print(comparison: Comparison, arguments: argparse.Namespace, console: Console) -> None:
    base, model = arguments.compare, arguments.model
    if arguments.format == "json":
        put_out(json.dumps(comparison.to_dict(base, model), ensure_ascii=False) + "\n")
        return
    say(console, f"== {comparison.model.recording.path} ==")
    console.print(comparison_table(comparison, base, model, coloured=console.is_terminal))
    share = 100 * comparison.changed / comparison.count if comparison.count else 0.0
    say(
        console,
        f"{comparison.changed:,} of {comparison.count:,} {comparison.unit} differ ({share:.2f} %), "
        "capitals and punctuation aside",
    )


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
    gap = Text(" " if comparison.unit == "words" else "")
    for row in comparison.rows:
        sides = (gap.join(_side(row.differences, side, coloured)) for side in ("base", "model"))
        table.add_row(clock(row.start), *sides)
    return table


def _side(differences: Sequence[Difference], side: Literal["base", "model"], coloured: bool) -> list[Text]:
    shown = []
    for one in differences:
        words = one.base if side == "base" else one.model
        if words and coloured:
            shown.append(Text(words, style=_STYLES[side].get(one.kind, "")))
        elif words:
            shown.append(Text(words if one.kind in ("equal", "written") else f"*{words}*"))
    return shown


def comparison_page(comparisons: Sequence[Comparison], base: str, model: str) -> str:
    """The page of all recordings: what only the base model heard is struck out, what only the model heard is bold."""
    from tune.pages.page import render_page

    count, changed = (sum(getattr(each, name) for each in comparisons) for name in ("count", "changed"))
    unit = comparisons[0].unit if comparisons else "words"
    return render_page(
        "comparison.html",
        f"{model} beside {base}",
        "what two models hear in the same recordings",
        tiles=[
            (f"{100 * changed / count if count else 0:.2f} %", f"of {unit} differ"),
            (f"{changed:,} of {count:,}", unit),
            (clock(sum(each.model.seconds for each in comparisons)), "of audio"),
        ],
        comparisons=comparisons,
        base=base,
        model=model,
    )
